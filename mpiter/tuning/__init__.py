"""How many workers, and where the time goes: on the engine's ``stats()``; the core imports nothing of it."""

"""Finds the number of workers; the core imports none of it."""

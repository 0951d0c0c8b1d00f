"""The workers of one iterator, with the memory that they share with this process.

Made in the caller's thread, which also starts the workers; then used by the prefetch
thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from operator import methodcaller

from .. import machine
from ..bell import Bell
from ..pool.backends import Cargo
from ..pool.crew import Crew
from ..rules import Rules
from ..samples import leaf
from ..samples.copying import Held
from ..samples.envelope import Sealing
from ..transport.memory import Arena
from ..transport.slots import Slots
from ..worker.sheets import Packing, Writer
from .delivery import Opens
from .options import Options
from .rooms import Rooms

# Batches may take one part in so many of the machine's memory.
_SHARE = 8


class Team:
    """The workers (``crew``) and the memory of batches (``rooms``).

    ``serializer`` says how samples get from one to the other.
    """

    def __init__(
        self,
        rules: Rules,
        options: Options,
        bell: Bell,
        warn: Callable[[str], None],
    ) -> None:
        backend = options.backend
        serializer = options.serializer
        # An error before the end of the block undoes what was done so far.
        with contextlib.ExitStack() as undoing:
            launch = backend.launch(options.cargo)
            undoing.callback(launch.cargo.close)
            self.carries: Callable[[Cargo], bool] = launch.cargo.holds
            address_space = machine.address_space() // 4
            arena = Arena(min(machine.memory_total() // 2, address_space))
            undoing.callback(arena.close)
            is_own = not isinstance(serializer, str)
            # Of a class, each iterator gets an object of its own.
            if isinstance(serializer, type):
                serializer = serializer()
            self.opens: Opens = methodcaller("open")
            if is_own:
                self.opens = serializer.unpack
            in_slots = serializer == "slots" and backend.shares_memory
            as_objects = is_own or (backend.in_process and rules.as_samples)
            slots = Slots(arena, machine.memory_total() // _SHARE, bell)
            undoing.callback(slots.close)
            self.rooms = Rooms(
                rules, slots, launch.dumps, warn, options.copy, in_slots, as_objects
            )
            seals: Callable[[], Packing | Held | Sealing] = Sealing
            if is_own:
                seals = partial(Packing, serializer)
            elif backend.in_process:
                seals = Held
            # Threads know the program's leaves.
            leaves: list[bytes] = []
            if not backend.in_process:
                leaves = leaf.sent(launch.dumps)
            writer = Writer(arena if in_slots else None, seals, leaves)
            self.crew = Crew(rules, backend, launch, arena, writer, bell)
            self._closing = undoing.pop_all()

    def close(self, timeout: float) -> None:
        """End the workers within ``timeout`` seconds, then free the shared memory."""
        with self._closing:
            self.crew.dismiss(timeout)

"""The workers of one iterator, with the memory that they share with this process.

Made in the caller's thread, which also starts the workers; then used by the prefetch
thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

from .. import machine
from ..bell import Bell
from ..pool.crew import Crew
from ..rules import Rules
from ..samples.copying import Held
from ..samples.envelope import Sealing
from ..transport.memory import Arena
from ..transport.slots import Slots
from ..worker.sheets import Packing, Writer
from .options import Options
from .rooms import Rooms

# Of the memory: what batches may take unless told otherwise.
_SHARE = 8


class Team:
    """The workers (``crew``) and the memory of batches (``rooms``), joined as
    ``serializer`` says.
    """

    def __init__(
        self, rules: Rules, options: Options, bell: Bell, warn: Callable[[str], None]
    ) -> None:
        backend = options.backend
        serializer = options.serializer
        # If an error comes before the end of the block.
        with contextlib.ExitStack() as undoing:
            launch = backend.launch(options.cargo)
            undoing.callback(launch.cargo.close)
            self.carries = launch.cargo.holds
            arena = Arena(
                min(machine.memory_total() // 2, machine.address_space() // 4)
            )
            undoing.callback(arena.close)
            is_own = not isinstance(serializer, str)
            if isinstance(serializer, type):
                serializer = serializer()  # a new one for each iterator
            self.opens: Callable[[Any], Sequence[Any]]
            if is_own:
                self.opens = serializer.unpack
            else:
                self.opens = methodcaller("open")
            in_slots = serializer == "slots" and backend.shares_memory
            as_objects = is_own or (backend.in_process and rules.as_samples)
            slots = Slots(arena, machine.memory_total() // _SHARE, bell)
            undoing.callback(slots.close)
            self.rooms = Rooms(
                rules, slots, launch.dumps, warn, options.copy, in_slots, as_objects
            )
            seals: Any
            if is_own:
                seals = partial(Packing, serializer)
            else:
                seals = Held if backend.in_process else Sealing
            self.crew = Crew(
                rules,
                backend,
                launch,
                arena,
                Writer(arena if in_slots else None, seals),
                bell,
            )
            self._closing = undoing.pop_all()

    def close(self, timeout: float) -> None:
        """End the workers within ``timeout`` seconds, then give the shared memory
        back.
        """
        with self._closing:
            self.crew.dismiss(timeout)

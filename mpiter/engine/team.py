"""The workers of one iterator, with the memory that they share with this process.

Made in the caller's thread, which also starts the workers; then used by the prefetch thread.  Guarantees that the
dataset is sent once, and that ``close`` is idempotent, bounded in time, and leaves neither process nor descriptor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .. import machine
from ..bell import Bell
from ..pool.backends import Backend
from ..pool.crew import Crew
from ..rules import Rules
from ..samples.copying import Held
from ..samples.envelope import Sealing
from ..transport.memory import Arena
from ..worker.sheets import Packing, Writer
from .rooms import Host, Rooms

_SHARE = 8  # of the memory: what batches may take unless told otherwise


class Team:
    """The workers (``crew``) and the memory of batches (``rooms``), joined as ``serializer`` says."""

    def __init__(
        self,
        rules: Rules,
        backend: Backend,
        serializer: Any,
        copy: bool,
        cargo: tuple[Any, Any],
        bell: Bell,
        warn: Callable[[str], None],
    ) -> None:
        self.most_bytes = machine.memory_total() // _SHARE
        self._crew: Crew | None = None
        self._rooms: Rooms | None = None
        self._arena: Arena | None = None
        self._launch = backend.launch(cargo)
        self.carries = self._launch.cargo.holds
        try:
            arena = self._arena = Arena(min(machine.memory_total() // 2, machine.address_space() // 4))
            is_own = not isinstance(serializer, str)
            if isinstance(serializer, type):
                serializer = serializer()  # a new one for each iterator
            self.opens: Callable[[Any], Sequence[Any]] = serializer.unpack if is_own else _opened
            in_slots = serializer == "slots" and backend.shares_memory
            as_objects = is_own or (backend.in_process and rules.as_samples)
            host = Host(rules, arena, self.most_bytes, self._launch.dumps, bell, warn)
            self.rooms = self._rooms = Rooms(host, copy, in_slots, as_objects)
            seals: Any = partial(Packing, serializer) if is_own else Held if backend.in_process else Sealing
            writer = Writer(arena if in_slots else None, seals)
            self.crew = self._crew = Crew(rules, backend, self._launch, arena, writer, bell)
        except BaseException:
            self.close()
            raise

    def close(self, timeout: float = 5.0) -> None:
        """End the workers within ``timeout`` seconds, then give the shared memory back."""
        if self._crew is not None:
            self._crew.dismiss(timeout)
        if self._rooms is not None:
            self._rooms.close()
        self._launch.cargo.close()
        if self._arena is not None:
            self._arena.close()


def _opened(sealed: Any) -> Sequence[Any]:
    return sealed.open()  # type: ignore[no-any-return]

"""How worker processes are started: without the caller's script, undisturbed by Ctrl-C,
by a fork server of our own.

Changes to multiprocessing take effect in the thread that starts workers only, while it
does.  Guarantees that a fork of the consumer process doesn't end our workers or wait
for them, and that a killed program leaves no socket of the fork server in the file
system.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from multiprocessing import forkserver as mp_forkserver
from multiprocessing import process as mp_process
from multiprocessing import resource_tracker, spawn
from typing import Any, cast

from ..datasets.variables import is_installed
from ..worker import preloaded as preloading
from ..worker.home import TO_THE_LAUNCHER

# How long a dying fork server is waited for.
_DYING_S = 1.0
# How long the server may import what datasets need; workers may take as long.
_FOR_IMPORTS_S = 60.0
_starting = threading.RLock()
# Worker processes that this process has started.
ours: weakref.WeakSet[Any] = weakref.WeakSet()


_Base: Any = mp_forkserver.ForkServer  # whose attributes aren't public


class _ForkServer(_Base):  # type: ignore[misc]
    """A fork server for our workers only, which imports what they need.

    Its socket is unlinked as soon as it listens, if possible, and reached through a
    descriptor: no name stays behind.
    """

    _forkserver_address: Any
    _forkserver_alive_fd: Any
    # A descriptor on the socket's place in the file system.
    _door: int | None = None

    def __init__(
        self, modules: frozenset[str] = frozenset(), others: tuple[str, ...] = ()
    ) -> None:
        """Make a server that will also import ``modules``, which datasets need, and
        ``others``, unless they fail.
        """
        super().__init__()
        self._others = others
        self.workers: weakref.WeakSet[Any] = weakref.WeakSet()  # that it has started
        self._began_in: Any = None
        self._read: dict[str, float] = {}
        self._take(modules)

    def _take(self, modules: frozenset[str]) -> None:
        self.modules = modules
        self._has_started_one = not modules
        # By the user; __main__ unless he has chosen.
        chosen = cast(Any, mp_forkserver)._forkserver._preload_modules
        others = (
            *preloaded,
            *self._others,
            *(name for name in _USEFUL.split() if name in sys.modules),
            *chosen,
        )
        # That are there for all workers anyway.
        self.packages = {name.partition(".")[0] for name in others}
        needed = "multiprocessing.popen_forkserver", "mpiter.worker.worker"
        in_order = [name for name in list(sys.modules) if name in modules]
        self._preload_modules = _Preload(
            [*needed, *(name for name in others if name != "__main__")], in_order
        )

    def ensure_running(self) -> None:
        # First, because starting it unblocks interrupts.
        start_tracker()
        # Making a folder each time would take as long as a fork.
        if self.is_running():
            return
        if self._forkserver_pid is not None and self.modules:
            # It has died, perhaps because a module can't be imported once for all
            # workers.
            _refused.update(self.modules)
            self._take(frozenset())
        self._began_in, self._read = _surroundings(), _own_files()
        config: dict[str, Any] = mp_process.current_process()._config  # type: ignore[attr-defined]
        before = config.get("tempdir")
        folder = _new_folder()
        where = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        through = f"/proc/self/fd/{where}"
        # A socket's address has about a hundred bytes, and TMPDIR may have more.
        short = config["tempdir"] = through if os.path.exists(through) else folder
        try:
            super().ensure_running()
            # A new one has begun to listen.
            if self._forkserver_address.startswith(short):
                self._forkserver_address = os.path.join(
                    folder, os.path.basename(self._forkserver_address)
                )
                self._go_unnamed()
        finally:
            config["tempdir"] = before
            os.close(where)
            if not str(self._forkserver_address).startswith(folder):
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def is_outdated(self) -> bool:
        """True if what this server has imported for datasets might be another thing
        if it were imported now.
        """
        if not self.modules:
            return False
        files = _own_files()
        return self._began_in != _surroundings() or any(
            files.get(file) != when for file, when in self._read.items()
        )

    @property
    def is_ready(self) -> bool:
        """True if this server has imported everything: it then makes a selector, to
        wait for requests.
        """
        try:
            descriptors = [*os.scandir(f"/proc/{self._forkserver_pid}/fd")]
            return any(
                "eventpoll" in os.readlink(descriptor.path)
                for descriptor in descriptors
            )
        except OSError:
            # It is asked, and answers once it is ready.
            return True

    @contextlib.contextmanager
    def in_time(self) -> Iterator[None]:
        """Limit the time that the first worker waits while the server imports what
        datasets need.
        """
        if self._has_started_one:
            yield
            return
        self.ensure_running()
        too_late = threading.Timer(
            _FOR_IMPORTS_S, self._give_up, [self._forkserver_pid]
        )
        too_late.start()
        try:
            yield
            self._has_started_one = True
        finally:
            too_late.cancel()

    def _give_up(self, pid: int) -> None:
        if self._forkserver_pid == pid and self.is_running():
            os.kill(pid, signal.SIGKILL)

    def has_ended(self) -> bool:
        """End the server unless it has workers, whose exit codes it is to report;
        return True if it is gone.
        """
        if any(not process._closed for process in self.workers):
            return False
        self.part()
        try:
            return self._forkserver_pid is None or os.waitpid(
                self._forkserver_pid, os.WNOHANG
            ) != (0, 0)
        except ChildProcessError:  # its exit code was read elsewhere
            return True

    def part(self) -> None:
        """Close this process's descriptors of the server."""
        for descriptor in (self._forkserver_alive_fd, self._door):
            if descriptor is not None:
                os.close(descriptor)
        self._forkserver_alive_fd = self._door = None

    def is_running(self) -> bool:
        if self._forkserver_pid is not None:
            # Its exit code was read elsewhere.
            with contextlib.suppress(ChildProcessError):
                return (
                    os.waitid(
                        os.P_PID,
                        self._forkserver_pid,
                        os.WEXITED | os.WNOHANG | os.WNOWAIT,
                    )
                    is None
                )
        return False

    def _go_unnamed(self) -> None:
        door = self._door
        self._door = None
        if door is not None:
            os.close(door)
        with contextlib.suppress(OSError):
            self._door = os.open(self._forkserver_address, os.O_PATH | os.O_CLOEXEC)
            through = f"/proc/self/fd/{self._door}"
            # Where /proc is not mounted the name stays.
            os.lstat(through)
            os.unlink(self._forkserver_address)
            self._forkserver_address = through


def _new_folder() -> str:
    """Make a folder for the server's socket: where temporary files belong, else in
    memory.
    """
    try:
        return tempfile.mkdtemp(prefix="pymp-")
    except OSError:
        if not os.access("/dev/shm", os.W_OK):
            raise
        return tempfile.mkdtemp(prefix="pymp-", dir="/dev/shm")


class _Preload(list[str]):
    """The list of modules that the fork server imports; ``of_datasets`` are imported
    last.

    The server's command line contains the ``repr`` of this list, which here is an
    expression that first sets the ``sys.path`` of this program: else the server might
    find another mpiter, or none.
    """

    def __init__(self, usual: list[str], of_datasets: list[str]) -> None:
        super().__init__(usual)
        self._of_datasets = of_datasets

    def __repr__(self) -> str:
        path = spawn.get_preparation_data("mpiter").get("sys_path", [])
        forgets = (
            f"[__import__('os').environ.pop(name, None) for name in {TO_THE_LAUNCHER}]"
        )
        load = f"__import__({preloading.__name__!r}, fromlist=['load']).load"
        loads = f"{load}({list(self)!r}, {self._of_datasets!r}, {sys.argv!r})"
        return (
            f"__import__('sys').path.__setitem__(slice(None), {path!r}) or {forgets} "
            f"and {loads}"
        )


# Modules that can be imported before a fork; if this program has one, its datasets
# probably use it.
_USEFUL = (
    "PIL.Image cv2 h5py datasets.arrow_dataset torch_geometric.data "
    "torchvision.transforms transformers.data"
)
# Other modules that the fork server imports when it starts, so that workers needn't.
preloaded: list[str] = []
_server: _ForkServer | None = None
# Imports what datasets need, and takes the server's place at the next launch.
_coming: _ForkServer | None = None
# Modules that the server couldn't import for all workers, or others beside them.
_refused: set[str] = set()
# Servers that end with their last worker.
_ending: list[_ForkServer] = []


def _our_server() -> _ForkServer:
    global _server
    if _server is None:
        _server = _ForkServer()
    return _server


def _surroundings() -> Any:
    """Return what a module may look at while it is imported."""
    folder = None
    with contextlib.suppress(OSError):  # it has been removed
        folder = os.getcwd()
    return folder, dict(os.environ), [*sys.path], [*sys.argv]


def _own_files() -> dict[str, float]:
    """Return the files of the program's own modules, and when each was last changed."""
    found = dict[str, float]()
    for module in list(sys.modules.values()):
        # A lazy module mustn't load itself.
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and not is_installed(file):
            with contextlib.suppress(OSError):
                found[file] = os.stat(file).st_mtime
    return found


def import_once(modules: Iterable[str]) -> None:
    """Have a fork server import ``modules`` for the workers of later launches, while
    those of this one are at work.
    """
    global _server, _coming
    if sys.platform != "linux":
        return
    with _starting:
        server = _our_server()
        coming = _coming
        if coming is not None and not coming.is_running():
            # It has ended itself: a fork couldn't share what one of its modules has
            # left.
            _refused.update(coming.modules)
            _ending.append(coming)
            coming = _coming = None
        needed = {
            name for name in modules if name.partition(".")[0] not in server.packages
        }
        wanted = server.modules.union(needed - _refused)
        if server.is_outdated:
            # No worker may get what it has imported: those of this launch wait for
            # another server.
            _ending.append(server)
            _server = _ForkServer(wanted)
        elif wanted == server.modules:
            return
        elif coming is not None and not coming.is_ready:
            # It isn't replaced before it has finished, even if more is wanted by now:
            # it doesn't end while it imports, and on a busy machine such servers would
            # pile up, each slowing the others down.
            return
        elif coming is not None and wanted <= coming.modules and not coming.is_outdated:
            _ending.append(server)
            _server = coming
            _coming = None
        else:
            if coming is not None:
                _ending.append(coming)
                wanted |= coming.modules
            _coming = _ForkServer(wanted)
            _coming.ensure_running()
    end_servers()


def retire(server: _ForkServer) -> None:
    """End a server once it has no processes."""
    with _starting:
        _ending.append(server)
    end_servers()


def end_servers() -> None:
    """End the fork servers that aren't asked for workers any more and have none."""
    # Another thread may be starting workers, and that may take long; a later call will
    # do.
    if _ending and _starting.acquire(blocking=False):
        try:
            _ending[:] = [server for server in _ending if not server.has_ended()]
        finally:
            _starting.release()


class ServerDied(ConnectionError):
    """The fork server has died twice over one worker: something kills it, or a
    module does that it imports.
    """


def start_server() -> None:
    """Start our fork server if it isn't running; it imports what workers need while
    the program goes on.
    """
    with _starting:
        _our_server().ensure_running()


def server_with(*modules: str) -> _ForkServer:
    """Return a fork server for processes that need ``modules``; it starts with the
    first of them.
    """
    return _ForkServer(others=modules)


def start(process: Any, server: _ForkServer | None = None) -> None:
    """Start a process from a fork server, or from that of the workers.

    If the fork server dies meanwhile, start another and try once more.
    """
    with _as_workers_start(server):
        is_servers = process._start_method == "forkserver"
        server = server or _our_server()
        try:
            with server.in_time() if is_servers else contextlib.nullcontext():
                process.start()
        except (EOFError, ConnectionError):
            # Its socket closes shortly before the process ends.
            end = time.monotonic() + _DYING_S
            while server.is_running() and time.monotonic() < end:
                time.sleep(0.001)
            try:
                process.start()
            except (EOFError, ConnectionError) as error:
                raise ServerDied from error
        if is_servers:
            server.workers.add(process)
    ours.add(process)


@contextlib.contextmanager
def _as_workers_start(server: _ForkServer | None) -> Iterator[None]:
    """Have this thread start processes from ``server``, or our own fork server, and
    without the caller's script.
    """
    here = threading.get_ident()
    forking = cast(Any, mp_forkserver)
    spawning = cast(Any, spawn)
    with _starting:
        connect = mp_forkserver.connect_to_new_process
        prepare = spawn.get_preparation_data

        def connect_to_new_process(descriptors: Any) -> Any:
            is_ours = threading.get_ident() == here
            if not is_ours:
                return connect(descriptors)
            return (server or _our_server()).connect_to_new_process(descriptors)

        def get_preparation_data(name: str) -> dict[str, Any]:
            data = prepare(name)
            # What the script defines is pickled by value.
            if threading.get_ident() == here:
                data = {
                    key: value
                    for key, value in data.items()
                    if not key.startswith("init_main_from")
                }
            return data

        forking.connect_to_new_process = connect_to_new_process
        spawning.get_preparation_data = get_preparation_data
        try:
            yield
        finally:
            forking.connect_to_new_process = connect
            spawning.get_preparation_data = prepare


def keep_standard_descriptors() -> None:
    """Open standard input, output and error on nothing where the program has closed
    them.

    Otherwise a pipe or the memory of batches would get the number, and what is printed
    would be written into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def start_tracker() -> None:
    """Start multiprocessing's resource tracker, whose start unblocks signals, and
    restore the mask.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _disown() -> None:
    """Give up the parent's workers in a forked child, whose normal exit would terminate
    them.

    Also close its copies of the pipes by which workers notice the parent's end; else
    they would wait for the child's.
    """
    global _server, _coming, _starting
    # A thread of the parent may have held it.
    _starting = threading.RLock()
    for process in ours:
        finalizer = getattr(getattr(process, "_popen", None), "finalizer", None)
        # Else the numbers may belong to other files.
        if finalizer is not None and finalizer.still_active():
            for descriptor in finalizer._args:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
    forget(list(ours))
    if _server is not None:  # it is the parent's
        _server.part()
        _server = None
    for server in (*_ending, *filter(None, [_coming])):
        server.part()
    _ending.clear()
    _coming = None


def forget(processes: Iterable[Any]) -> None:
    """Have multiprocessing neither terminate ``processes`` at the interpreter's exit
    nor wait for them.
    """
    for process in processes:
        getattr(mp_process, "_children", set()).discard(process)
        ours.discard(process)
        # newer Pythons also wait for the resource tracker, which ends after the last of
        # these processes
        cast(Any, resource_tracker)._resource_tracker._pid = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown)


def never_interrupted() -> None:
    """Block Ctrl-C in this thread, and in the workers that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])


@contextlib.contextmanager
def interrupts_later() -> Iterator[None]:
    """Delay Ctrl-C while workers start, since they inherit our mask and handler until
    they ignore it themselves.

    Blocking the signal isn't enough: another thread (a numerical library's, say) may
    receive it for the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    if callable(handler):
        signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        # What is pending comes now, to the handler above.
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if callable(handler):
            signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)

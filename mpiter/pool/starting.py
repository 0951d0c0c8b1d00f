"""How worker processes are started, by a fork server of our own.

They start without the caller's script, and undisturbed by Ctrl-C.
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
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import forkserver as mp_forkserver
from multiprocessing import process as mp_process
from multiprocessing import resource_tracker, spawn
from multiprocessing.process import BaseProcess
from typing import Any, cast

from ..datasets.variables import is_installed
from ..worker import preloaded as preloading
from ..worker.home import TO_THE_LAUNCHER

# The time that a dying fork server has to end.
_DYING_S = 1.0
# The time that the server has to import what datasets need; workers may take as long.
_FOR_IMPORTS_S = 60.0
_starting = threading.RLock()
# The worker processes that this process has started.
ours: weakref.WeakSet[BaseProcess] = weakref.WeakSet()


class _ForkServer(mp_forkserver.ForkServer):
    """A fork server for our workers only, which imports what they need.

    Its socket is unlinked as soon as it listens, if possible, and reached through a
    descriptor: no name stays behind.
    """

    # These the base class has made; they aren't public.
    _forkserver_address: str | None
    _forkserver_alive_fd: int | None
    _forkserver_pid: int | None

    def __init__(
        self,
        modules: frozenset[str] = frozenset(),
        others: tuple[str, ...] = (),
    ) -> None:
        """Make a server that imports ``modules`` and ``others``, unless they fail.

        Datasets need ``modules``.
        """
        super().__init__()
        self._others = others
        # The processes that it has started.
        self.workers: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
        # A descriptor on the socket's place in the file system.
        self._door: int | None = None
        self._began_in: _Surroundings | None = None
        self._read: dict[str, float] = {}
        self._take(modules)

    def _take(self, modules: frozenset[str]) -> None:
        self.modules = modules
        self._has_started_one = not modules
        # What the user has chosen: __main__, unless it was set.
        chosen = cast(Any, mp_forkserver)._forkserver._preload_modules
        others = (
            *preloaded,
            *self._others,
            *(name for name in _USEFUL.split() if name in sys.modules),
            *chosen,
        )
        # All workers have these anyway.
        self.packages = {name.partition(".")[0] for name in others}
        usual = ["multiprocessing.popen_forkserver", "mpiter.worker.worker"]
        usual += (name for name in others if name != "__main__")
        in_order = [name for name in list(sys.modules) if name in modules]
        self._preload_modules = _Preload(usual, in_order)

    def ensure_running(self) -> None:
        # Otherwise the base class would start the tracker, and that unblocks
        # interrupts.
        start_tracker()
        # Making a folder each time would take as long as a fork.
        if self.is_running():
            return
        # The server has died, perhaps because a module can't be imported once for all
        # workers.  The next one does without.
        if self._forkserver_pid is not None and self.modules:
            _refused.update(self.modules)
            self._take(frozenset())
        self._began_in = _surroundings()
        self._read = _own_files()
        config: dict[str, Any] = mp_process.current_process()._config  # type: ignore[attr-defined]
        before = config.get("tempdir")
        folder = _new_folder()
        where = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        # A socket's address has about a hundred bytes, and TMPDIR may have more.
        short = f"/proc/self/fd/{where}"
        if not os.path.exists(short):
            short = folder
        config["tempdir"] = short
        try:
            super().ensure_running()
            address = self._forkserver_address
            assert address is not None
            # A new server has begun to listen, below the short name.
            if address.startswith(short):
                name = os.path.basename(address)
                self._forkserver_address = os.path.join(folder, name)
                self._go_unnamed()
        finally:
            config["tempdir"] = before
            os.close(where)
            # The folder is needed only if the socket still has its name in it.
            if not str(self._forkserver_address).startswith(folder):
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def is_outdated(self) -> bool:
        """True if what this server has imported might be another thing by now."""
        if not self.modules:
            return False
        files = _own_files()
        if self._began_in != _surroundings():
            return True
        return any(files.get(file) != when for file, when in self._read.items())

    @property
    def is_ready(self) -> bool:
        """True if this server has imported everything.

        It then makes a selector, to wait for requests.
        """
        try:
            descriptors = [*os.scandir(f"/proc/{self._forkserver_pid}/fd")]
            return any(map(_is_selector, descriptors))
        except OSError:
            # We can't see it.  A server that isn't ready answers the first request
            # later, which is no harm.
            return True

    @contextlib.contextmanager
    def in_time(self) -> Iterator[None]:
        """Limit the time that the first worker waits for the server's imports."""
        if self._has_started_one:
            yield
            return
        self.ensure_running()
        too_late = threading.Timer(
            _FOR_IMPORTS_S,
            self._give_up,
            [self._forkserver_pid],
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
        """End the server, and return True once it is gone.

        While it has workers it stays, since it is to report their exit codes.
        """
        if not all(map(_is_closed, self.workers)):
            return False
        self.part()
        pid = self._forkserver_pid
        try:
            return pid is None or os.waitpid(pid, os.WNOHANG) != (0, 0)
        except ChildProcessError:
            # Its exit code was read elsewhere.
            return True

    def part(self) -> None:
        """Close this process's descriptors of the server."""
        for descriptor in (self._forkserver_alive_fd, self._door):
            if descriptor is not None:
                os.close(descriptor)
        self._forkserver_alive_fd = None
        self._door = None

    def is_running(self) -> bool:
        pid = self._forkserver_pid
        if pid is None:
            return False
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, pid, how) is None
        except ChildProcessError:
            # Its exit code was read elsewhere.
            return False

    def _go_unnamed(self) -> None:
        door = self._door
        self._door = None
        if door is not None:
            os.close(door)
        address = self._forkserver_address
        assert address is not None
        # Where /proc is not mounted ``lstat`` fails, and the name stays.
        with contextlib.suppress(OSError):
            self._door = os.open(address, os.O_PATH | os.O_CLOEXEC)
            through = f"/proc/self/fd/{self._door}"
            os.lstat(through)
            os.unlink(address)
            self._forkserver_address = through


def _is_selector(descriptor: os.DirEntry[str]) -> bool:
    """True if this entry of a process's folder of descriptors is a selector's."""
    # A server that imports closes files all the time, and this one may be gone.
    with contextlib.suppress(FileNotFoundError):
        return "eventpoll" in os.readlink(descriptor.path)
    return False


def _is_closed(process: BaseProcess) -> bool:
    """True once the exit code of a process was read and ``close`` called."""
    is_closed: bool = process._closed  # type: ignore[attr-defined]
    return is_closed


def _new_folder() -> str:
    """Make a folder for the server's socket, in memory if nowhere else."""
    try:
        return tempfile.mkdtemp(prefix="pymp-")
    except OSError:
        if not os.access("/dev/shm", os.W_OK):
            raise
        return tempfile.mkdtemp(prefix="pymp-", dir="/dev/shm")


class _Preload(list[str]):
    """The list of modules that the fork server imports, ``of_datasets`` last.

    The server's command line contains the ``repr`` of this list, which here is an
    expression that first sets the ``sys.path`` of this program: else the server might
    find another mpiter, or none.
    """

    def __init__(
        self,
        usual: list[str],
        of_datasets: list[str],
    ) -> None:
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


# These modules can be imported before a fork.  If this program has one, its datasets
# probably use it.
_USEFUL = (
    "PIL.Image cv2 h5py datasets.arrow_dataset torch_geometric.data "
    "torchvision.transforms transformers.data"
)
# Other modules that the fork server imports when it starts, so that workers needn't.
preloaded: list[str] = []
_server: _ForkServer | None = None
# This server imports what datasets need, and takes the other's place at the next
# launch.
_coming: _ForkServer | None = None
# A server couldn't import these modules for all workers, or others beside them.
_refused: set[str] = set()
# These servers end with their last worker.
_ending: list[_ForkServer] = []


def _our_server() -> _ForkServer:
    global _server
    if _server is None:
        _server = _ForkServer()
    return _server


# Folder, environment, sys.path and sys.argv.
_Surroundings = tuple[str | None, dict[str, str], list[str], list[str]]


def _surroundings() -> _Surroundings:
    """Return what a module may look at while it is imported."""
    folder = None
    # The folder may have been removed.
    with contextlib.suppress(OSError):
        folder = os.getcwd()
    environment = dict(os.environ)
    return folder, environment, [*sys.path], [*sys.argv]


def _own_files() -> dict[str, float]:
    """Return the files of the program's own modules, and when each was last changed."""
    found: dict[str, float] = {}
    for module in list(sys.modules.values()):
        # A lazy module would load itself if an attribute was looked up.
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and not is_installed(file):
            with contextlib.suppress(OSError):
                found[file] = os.stat(file).st_mtime
    return found


def import_once(modules: Iterable[str]) -> None:
    """Have a fork server import ``modules`` for the workers of later launches.

    It does so while the workers of this launch are at work.  This launch has them too
    if such a server is ready, or if the present one must be replaced.
    """
    global _server, _coming
    if sys.platform != "linux":
        return
    with _starting:
        server = _our_server()
        coming = _coming
        if coming is not None and not coming.is_running():
            # It has ended itself, because a fork couldn't share what one of its modules
            # has left or because an import failed; or it was killed.
            _refused.update(coming.modules)
            _ending.append(coming)
            coming = _coming = None
        needed = {
            name for name in modules if name.partition(".")[0] not in server.packages
        }
        wanted = server.modules.union(needed - _refused)
        if server.is_outdated:
            # No worker may get what it has imported, so those of this launch wait for
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
            # The old server stays until its workers have ended.
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
    # Another thread may be starting workers, which may take long.  It isn't waited for,
    # as a later call will do as well.
    if _ending and _starting.acquire(blocking=False):
        try:
            _ending[:] = [server for server in _ending if not server.has_ended()]
        finally:
            _starting.release()


class ServerDied(ConnectionError):
    """The fork server has died twice over one worker.

    Something kills it, or a module does that it imports.
    """


def start_server() -> None:
    """Start our fork server if it isn't running.

    It imports what workers need while the program goes on.
    """
    with _starting:
        _our_server().ensure_running()


def server_with(*modules: str) -> _ForkServer:
    """Return a fork server for processes that need ``modules``.

    It starts with the first of these processes.
    """
    return _ForkServer(others=modules)


def start(
    process: BaseProcess,
    server: _ForkServer | None = None,
) -> None:
    """Start a process from a fork server, or from that of the workers.

    If the fork server dies meanwhile, start another and try once more.
    """
    with _as_workers_start(server):
        method: str = process._start_method  # type: ignore[attr-defined]
        is_servers = method == "forkserver"
        server = server or _our_server()
        try:
            with server.in_time() if is_servers else contextlib.nullcontext():
                process.start()
        except (EOFError, ConnectionError):
            # The socket of a dying server closes shortly before the process ends.
            # Until then the server would be asked once more.
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
    """Have this thread start processes our way.

    They start from ``server``, or from our own fork server, and without the caller's
    script.
    """
    # Other threads may start processes of their own meanwhile, in multiprocessing's
    # way.
    here = threading.get_ident()
    forking = cast(Any, mp_forkserver)
    spawning = cast(Any, spawn)
    with _starting:
        connect = mp_forkserver.connect_to_new_process
        prepare = spawn.get_preparation_data

        def connect_to_new_process(descriptors: Sequence[int]) -> tuple[int, int]:
            is_ours = threading.get_ident() == here
            if not is_ours:
                return connect(descriptors)
            return (server or _our_server()).connect_to_new_process(descriptors)

        def get_preparation_data(name: str) -> dict[str, object]:
            data = prepare(name)
            if threading.get_ident() != here:
                return data
            # What the script defines is pickled by value, so no worker runs the script.
            return {
                key: value
                for key, value in data.items()
                if not key.startswith("init_main_from")
            }

        forking.connect_to_new_process = connect_to_new_process
        spawning.get_preparation_data = get_preparation_data
        try:
            yield
        finally:
            forking.connect_to_new_process = connect
            spawning.get_preparation_data = prepare


def keep_standard_descriptors() -> None:
    """Open standard input, output and error on nothing if the program has closed them.

    Otherwise a pipe or the memory of batches would get the number, and what is printed
    would be written into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def start_tracker() -> None:
    """Start multiprocessing's resource tracker, and keep the mask of signals.

    The start of the tracker unblocks some.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _disown() -> None:
    """Give up the parent's workers in a forked child.

    Its normal exit would terminate them.  Also close its copies of the pipes by which
    workers notice the parent's end; else they would wait for the child's.
    """
    global _server, _coming, _starting
    # A thread of the parent may have held the lock, and doesn't exist here.
    _starting = threading.RLock()
    for process in ours:
        popen = getattr(process, "_popen", None)
        finalizer = getattr(popen, "finalizer", None)
        # Once it was called, the numbers may belong to other files.
        if finalizer is not None and finalizer.still_active():
            for descriptor in finalizer._args:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
    forget(list(ours))
    # The servers are the parent's.
    if _server is not None:
        _server.part()
        _server = None
    for server in _ending:
        server.part()
    _ending.clear()
    if _coming is not None:
        _coming.part()
        _coming = None


def forget(processes: Iterable[BaseProcess]) -> None:
    """Have multiprocessing neither end ``processes`` at exit nor wait for them."""
    for process in processes:
        getattr(mp_process, "_children", set()).discard(process)
        ours.discard(process)
        # Newer Pythons also wait for the resource tracker, which ends after the last of
        # these processes.
        cast(Any, resource_tracker)._resource_tracker._pid = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown)


def never_interrupted() -> None:
    """Block Ctrl-C in this thread, and in the workers that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])


@contextlib.contextmanager
def interrupts_later() -> Iterator[None]:
    """Delay Ctrl-C while workers start.

    They inherit our mask and handler until they ignore it themselves.  Blocking the
    signal isn't enough: another thread (a numerical library's, say) may receive it for
    the process.
    """
    # Python calls handlers in the main thread only.
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
        # A signal that is pending comes now, to the handler above.  With the caller's
        # handler back in place it would be raised before all is as it was.
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if callable(handler):
            signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)

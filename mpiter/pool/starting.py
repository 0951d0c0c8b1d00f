"""How worker processes are started: without the caller's script, undisturbed by Ctrl-C, by a fork server of our own.

Runs in the consumer process, in whichever thread starts workers.  What it changes in multiprocessing it changes for
that thread only and only while workers start.  Guarantees that a fork of the consumer doesn't take our workers for its
own, and that the fork server has no name in the file system that a killed program would leave behind.
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
from collections.abc import Callable, Iterator
from multiprocessing import forkserver as mp_forkserver
from multiprocessing import process as mp_process
from multiprocessing import resource_tracker, spawn
from typing import Any

from ..errors import WorkerStartError
from ..worker.worker import TO_THE_LAUNCHER

_LONGEST_FOLDER = 64
_DYING_S = 1.0  # how long a fork server that was killed may take to be gone
_starting = threading.RLock()
_closing = threading.RLock()  # held while descriptors are closed that a fork closes too, by their numbers
ours: weakref.WeakSet[Any] = weakref.WeakSet()  # worker processes that this process has started


class _ForkServer(mp_forkserver.ForkServer):
    """A fork server for our workers alone: it has imported what they need, and its socket goes unnamed.

    The stock server's socket stays in a temporary folder when the program is killed.  Ours is unlinked as soon as the
    server listens; we reach it through a descriptor.  Where that can't be done it keeps its name.
    """

    _door: int | None = None  # a descriptor on the socket's place in the file system
    # the standard library's, which may be called otherwise some day: the socket then keeps its name
    _forkserver_address: Any = None
    _forkserver_alive_fd: Any = None
    _forkserver_pid: Any = None
    _preload_modules: Any = None

    def ensure_running(self) -> None:
        if self._is_running():
            _run_tracker()
            return
        config: dict[str, Any] = mp_process.current_process()._config  # type: ignore[attr-defined]
        before, address = config.get("tempdir"), self._forkserver_address
        folder = config["tempdir"] = tempfile.mkdtemp(prefix="pymp-", dir=_short_enough(tempfile.gettempdir()))
        try:
            with _closing, _no_standard_stream_missing():
                super().ensure_running()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # with the socket of one that could not be started
            raise
        finally:
            config["tempdir"] = before
        if self._forkserver_address not in (None, address) and hasattr(os, "O_PATH"):  # a new one has begun to listen
            self._go_unnamed()
        with contextlib.suppress(OSError):  # it holds the name, where that stays
            os.rmdir(folder)

    def _is_running(self) -> bool:
        """Every start asks, and a folder for nothing takes as long as a fork."""
        if self._forkserver_pid is not None:
            with contextlib.suppress(ChildProcessError):  # somebody else has heard of its end
                return os.waitid(os.P_PID, self._forkserver_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        return False

    def wait_while_it_dies(self) -> None:
        """Its socket is closed some time before the system says that it has ended."""
        end = time.monotonic() + _DYING_S
        while self._is_running() and time.monotonic() < end:
            time.sleep(0.001)

    def _go_unnamed(self) -> None:
        with _closing:
            if self._door is not None:
                os.close(self._door)
                self._door = None
        address: str = self._forkserver_address
        with contextlib.suppress(OSError):
            self._door = os.open(address, os.O_PATH | os.O_CLOEXEC)
            through = f"/proc/self/fd/{self._door}"
            os.lstat(through)  # where /proc is not mounted the name stays
            os.unlink(address)
            self._forkserver_address = through

    def disown(self) -> None:
        """In a fork of the consumer: the server is the parent's."""
        for descriptor in (self._forkserver_alive_fd, self._door):
            if descriptor is not None:
                os.close(descriptor)


class _Preload(list[str]):
    """What the server is to import, from where this program would import it.

    The command that starts it has its ``repr``; by itself it would look in the working directory and for installed
    packages alone, and find another mpiter there, or none.
    """

    def __repr__(self) -> str:
        path = spawn.get_preparation_data("mpiter").get("sys_path", [])
        # before a script is imported
        forgets = f"[__import__('os').environ.pop(name, None) for name in {TO_THE_LAUNCHER}]"
        return f"__import__('sys').path.__setitem__(slice(None), {path!r}) or {forgets} and {list(self)!r}"


def _short_enough(folder: str) -> str:
    """A folder for a socket, whose address may have a hundred characters."""
    return folder if len(os.fsencode(folder)) <= _LONGEST_FOLDER else "/tmp"


def _new_server() -> _ForkServer:
    server = _ForkServer()
    chosen = getattr(getattr(mp_forkserver, "_forkserver", None), "_preload_modules", ["__main__"])
    others = [name for name in chosen if name != "__main__"]  # what the user wants in every fork server
    useful = [name for name in _USEFUL if name in sys.modules]
    wanted = ["mpiter.worker.worker", *_preloaded, *useful, *others, "mpiter.worker.preloaded"]
    server._preload_modules = _Preload(wanted)
    return server


_preloaded: list[str] = []
# What may be forked once it is imported: where the program has it, its datasets use it, most likely.
_USEFUL = ("PIL.Image", "cv2", "h5py", "datasets.arrow_dataset", "torch_geometric.data", "torchvision.transforms")


def preload(module: str) -> None:
    """Have a fork server that is yet to start import ``module``, so that its workers needn't."""
    if module not in _preloaded:
        _preloaded.append(module)


_server: _ForkServer | None = None


def _our_server() -> _ForkServer:
    """The one of this process; it runs when somebody needs it."""
    global _server
    if _server is None:
        _server = _new_server()
    return _server


def start_server() -> None:
    """Have our fork server start, if it has not: it imports what workers need while the program does something else."""
    with _starting:
        start_tracker()
        _our_server().ensure_running()


def _connect(descriptors: Any) -> Any:
    server = _our_server()
    try:
        return server.connect_to_new_process(descriptors)
    except (EOFError, ConnectionError):
        server.wait_while_it_dies()
        return server.connect_to_new_process(descriptors)


def start(process: Any) -> None:
    """Start a worker: from another fork server if this one dies over it."""
    try:
        process.start()
    except (EOFError, ConnectionError):
        try:
            process.start()
        except (EOFError, ConnectionError) as error:
            raise WorkerStartError(
                "the fork server, from which workers are started, has died twice over one of them: it is killed, or "
                "cannot import what it is to. See standard error; backend=mpiter.Process('spawn') does without it."
            ) from error
    ours.add(process)


def _disown() -> None:
    """In a fork of the consumer: its workers are not the child's, whose normal exit would terminate them.

    Nor are the ends of the pipes on which their lives hang: they would outlive the consumer as long as the child lives.
    """
    global _server, _starting, _closing
    _starting, _closing = threading.RLock(), threading.RLock()  # a thread of the parent may have held the first
    for process in ours:
        for descriptor in getattr(getattr(getattr(process, "_popen", None), "finalizer", None), "_args", None) or ():
            with contextlib.suppress(OSError):
                os.close(descriptor)
    forget(list(ours))
    if _server is not None:
        _server.disown()
        _server = None


def forget(processes: list[Any]) -> None:
    """Let multiprocessing neither terminate nor wait for these at the interpreter's exit."""
    children: set[Any] = getattr(mp_process, "_children", set())
    for process in processes:
        children.discard(process)
        ours.discard(process)


def leave_behind(processes: list[Any]) -> None:
    """Processes that would not die: nobody is to wait for them, not even by way of the resource tracker.

    It ends when the last of them does, and newer Pythons wait for that.
    """
    forget(processes)
    tracker: Any = getattr(resource_tracker, "_resource_tracker", None)
    if processes and hasattr(tracker, "_pid"):
        tracker._pid = None


def let_go(process: Any) -> None:
    """Close what is still open of a process that has ended; no fork may see half of that."""
    with _closing:
        process.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _closing.acquire(), after_in_parent=lambda: _closing.release(), after_in_child=_disown
    )


@contextlib.contextmanager
def _in_this_thread(module: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a function of multiprocessing by ``make(function)``, as far as this thread is concerned."""
    with _starting:
        genuine, here = getattr(module, name), threading.get_ident()
        replaced = make(genuine)

        def function(*args: Any) -> Any:
            return (replaced if threading.get_ident() == here else genuine)(*args)

        setattr(module, name, function)
        try:
            yield
        finally:
            setattr(module, name, genuine)


def _hidden_main() -> contextlib.AbstractContextManager[None]:
    """Start workers without importing the caller's script: what it defines travels by value."""

    def without_main(genuine: Any) -> Any:
        def preparation(name: str) -> dict[str, Any]:
            keys = ("init_main_from_name", "init_main_from_path")
            return {key: value for key, value in genuine(name).items() if key not in keys}

        return preparation

    return _in_this_thread(spawn, "get_preparation_data", without_main)


@contextlib.contextmanager
def as_workers_start(imports_main: bool) -> Iterator[None]:
    """What this thread starts in here comes from our own fork server, and imports the caller's script only if asked."""
    with contextlib.ExitStack() as changes:
        changes.enter_context(_in_this_thread(mp_forkserver, "connect_to_new_process", lambda genuine: _connect))
        if not imports_main:
            changes.enter_context(_hidden_main())
        yield


def start_tracker() -> None:
    """multiprocessing's resource tracker lets interrupts through when it starts: not in the midst of our workers."""
    if not hasattr(signal, "pthread_sigmask"):
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    _run_tracker()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_tracker() -> None:
    with _no_standard_stream_missing():
        resource_tracker.ensure_running()


@contextlib.contextmanager
def _no_standard_stream_missing() -> Iterator[None]:
    """multiprocessing hands its servers a pipe and sys.stderr: in a program that has closed descriptor 2 the pipe would
    have that number."""
    missing = []
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            missing.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))  # has the lowest number that is free
    try:
        yield
    finally:
        for number in missing:
            os.close(number)


def never_interrupted() -> None:
    """Ctrl-C is not for this thread, nor for the workers that it starts."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])


@contextlib.contextmanager
def interrupts_later() -> Iterator[None]:
    """Hold Ctrl-C back while workers start: before they ignore it themselves they inherit our mask and handler.

    The mask alone would not do: another thread (of a numerical library, say) may take the signal for us.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
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
        signal.pthread_sigmask(signal.SIG_SETMASK, before)  # what is pending comes now, to the handler above
        if callable(handler):
            signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)

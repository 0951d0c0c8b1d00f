"""The ranks of a training, in processes that talk by torch.distributed's gloo.

They are forked from a fork server that has imported torch, in which no thread and no
GPU is in use; the training function is pickled, by value where it can't be imported.
Guarantees that no rank is left when a run has ended: as launchers do, once one has
failed the others get SIGTERM, and SIGKILL later.
"""

from __future__ import annotations

import importlib.util
import io
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Never

from ..datasets.ship import by_value
from ..errors import OptionError, RemoteTraceback
from ..pool import starting
from ..samples.byvalue import ByValue
from ..worker.home import die_with_parent
from .interrupting import Interruption, Report, Run, Train, run

_GRACE_S = 5.0  # between SIGTERM and SIGKILL

# torch's optimizers import the second, which takes as long as the first.
_IMPORTED_ONCE = ("torch", "torch._dynamo")


class Processes:
    """Runs a training in ranks, again and again."""

    def __init__(self, train: Train) -> None:
        if importlib.util.find_spec("torch") is None:
            raise OptionError("ranks talk by torch.distributed: install torch.")
        self._train = by_value(train)
        self._server = starting.server_with(*_IMPORTED_ONCE)

    def run(
        self, runs: Sequence[Run], interruption: Interruption | None
    ) -> list[Report]:
        """Run the training in a process for each of ``runs``; return their reports."""
        context = multiprocessing.get_context("forkserver")
        processes = list[ForkServerProcess]()
        with tempfile.TemporaryDirectory(prefix="mpiter-") as folder:
            # The fork server has begun elsewhere, and with another environment.
            cwd = os.getcwd()
            environment = dict(os.environ)
            try:
                for each in runs:
                    arguments = (
                        self._train,
                        each,
                        interruption,
                        Path(folder),
                        cwd,
                        environment,
                    )
                    process = context.Process(target=_train_as_rank, args=arguments)
                    starting.start(process, self._server)
                    processes.append(process)
                _wait(processes)
                return [_report(Path(folder), each.rank) for each in runs]
            finally:
                for process in processes:
                    process.kill()
                    process.join()
                    process.close()

    def close(self) -> None:
        """End the fork server."""
        starting.retire(self._server)


def _wait(processes: Sequence[BaseProcess]) -> None:
    """Wait until all have ended; once one has failed, end the others."""
    left = list(processes)
    kill_at: float | None = None
    while left:
        patience: float | None = None
        if kill_at is not None:
            patience = max(0.0, kill_at - time.monotonic())
        sentinels = [process.sentinel for process in left]
        has_some_ended = bool(connection.wait(sentinels, patience))
        # The time after SIGTERM is over.  A rank that waits in gloo for one that has
        # ended never comes to the handler of its SIGTERM.
        if not has_some_ended:
            for process in left:
                process.kill()
            kill_at = None
        ended = [process for process in left if process.exitcode is not None]
        left = [process for process in left if process not in ended]
        has_one_failed = any(process.exitcode for process in ended)
        if kill_at is None and has_one_failed:
            kill_at = time.monotonic() + _GRACE_S
            for process in left:
                process.terminate()


def _report(folder: Path, rank: int) -> Report:
    """Return what a rank has reported; one that was killed reports nothing."""
    path = folder / f"{rank}.pickle"
    if path.exists():
        return pickle.loads(path.read_bytes())  # type: ignore[no-any-return]
    return Report()


def _train_as_rank(
    train: bytes,
    where: Run,
    interruption: Interruption | None,
    folder: Path,
    cwd: str,
    environment: dict[str, str],
) -> Never:
    """Be a rank, in a process that has just begun."""
    die_with_parent()
    # The fork server ignores or blocks signals that a program of its own would get.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for name, number in (("RANK", where.rank), ("WORLD_SIZE", where.ranks)):
        os.environ[name] = str(number)
        os.environ[f"LOCAL_{name}"] = str(number)
    report = Report()
    try:
        import torch.distributed

        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{folder}/group",
            rank=where.rank,
            world_size=where.ranks,
        )
        report = run(pickle.loads(train), where, interruption, _kill)
    except Exception as error:
        report.error = error
    # The error itself may be of a class that can't be pickled.
    if report.error is not None:
        told = "".join(traceback.format_exception(report.error))
        report.error = RemoteTraceback(f"in rank {where.rank}:\n{told}")
    # Once another rank has ended, a signal may end this one at any time.  Half a report
    # must not be there then, so the file gets its name when it is whole.
    unfinished = folder / f"{where.rank}.unfinished"
    unfinished.write_bytes(_pickled(report))
    unfinished.rename(folder / f"{where.rank}.pickle")
    sys.exit(0 if report.has_returned else 1)


def _pickled(report: Report) -> bytes:
    out = io.BytesIO()
    ByValue(out, protocol=5).dump(report)
    return out.getvalue()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

"""Several ranks share one epoch under real launchers: MPI's and torch's."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from copy import copy
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from launched import (
    LIMIT_S,
    TELL,
    by_mpiexec,
    by_torch,
    launch,
    launch_each,
    port_for_jax,
    told,
    with_mpi4py,
    with_mpiexec,
    with_torch,
)

from mpiter.audit import audit

LENGTH = 103

PROGRAM = (
    TELL
    + """
import sys
import mpiter
from mpiter.receipts import Receipts

class Indices:
    def __len__(self):
        return 103

    def __getitem__(self, index):
        return index

name, before, exact, batch_size, workers, steps, has_fault = json.loads(sys.argv[1])
if sys.argv[2:] == ["torch"]:
    import torch.distributed
    torch.distributed.init_process_group("gloo")
if sys.argv[2:] == ["mpi4py"]:
    import mpi4py.MPI
shard = mpiter.Shard(exact=exact)
rank, size = shard.share().rank, shard.share().size
options = {"seed": 3, "shard": shard, "hooks": Receipts("receipts", rank, size)}
if rank == 1 and has_fault:
    options["shard"] = mpiter.Shard(0, size, exact=exact)
if sys.argv[2:] == ["torch"]:
    import mpiter.torch
    stream = mpiter.torch.DataLoader(
        Indices(), batch_size, shuffle=True, num_workers=workers, **options)
else:
    stream = mpiter.batches(Indices(), batch_size, n_processes=workers, **options)
with stream:
    if before:
        state = json.loads(Path(f"{before} 0.json").read_text())["state"]
        stream.load_state_dict(state)
    batches, epoch = [], iter(stream)
    for batch in epoch:
        batches.append(batch.tolist())
        if len(batches) == steps:
            break
    state = stream.state_dict()
tell(name, rank, batches=batches, state=state, size=size)
if sys.argv[2:] == ["torch"]:
    torch.distributed.destroy_process_group()
"""
)
# Each run has its name, the run that it goes on from, and numbers of ranks, samples in
# a batch, workers and steps.
RUNS: list[tuple[str, str, int, int, int, int | None]] = [
    ("three", "", 3, 4, 0, 2),
    ("two", "three", 2, 3, 1, None),
]
LAUNCHERS: list[Any] = [
    pytest.param((by_mpiexec, "", False), marks=with_mpiexec, id="mpiexec"),
    pytest.param(
        (by_mpiexec, "mpi4py", True), marks=with_mpi4py, id="mpiexec, mpi4py, exact"
    ),
    pytest.param((by_torch, "torch", False), marks=with_torch, id="torch"),
]


class Trained:
    """An epoch that three ranks have begun, and that two can complete."""

    def __init__(self, folder: Path, launcher: tuple[Any, str, bool]) -> None:
        self.folder = folder
        self._by, self._library, self.exact = launcher
        # Counts how often each sample was handed out.
        self.given: Counter[int] = Counter()
        for run in RUNS[:-1]:
            self._run(*run, has_fault=False)

    def ended(self, folder: Path, has_fault: bool = False) -> Trained:
        """Complete the epoch in a copy of its folder.

        If ``has_fault``, rank 1 takes the part of rank 0.
        """
        ended = copy(self)
        ended.folder = folder
        ended.given = Counter(self.given)
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        ended._run(*RUNS[-1], has_fault)
        return ended

    def _run(
        self,
        name: str,
        before: str,
        ranks: int,
        batch_size: int,
        workers: int,
        steps: int | None,
        has_fault: bool,
    ) -> None:
        asked = json.dumps(
            [name, before, self.exact, batch_size, workers, steps, has_fault]
        )
        code, _, err = launch(
            self.folder,
            self._by(ranks),
            PROGRAM,
            asked,
            *[self._library] * bool(self._library),
        )
        assert code == 0, err
        facts = told(self.folder, name, ranks)
        assert all(fact["size"] == ranks for fact in facts)
        if not has_fault:
            assert all(fact["state"] == facts[0]["state"] for fact in facts)
            if not self.exact or steps is not None:
                assert len({tuple(map(len, fact["batches"])) for fact in facts}) == 1
        self.given.update(
            chain.from_iterable(chain.from_iterable(fact["batches"] for fact in facts))
        )


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    return Trained(tmp_path_factory.mktemp("begun"), request.param)


@pytest.mark.timeout(3 * LIMIT_S)
@pytest.mark.parametrize("trained", LAUNCHERS, indirect=True)
def test_ranks_share_an_epoch_and_fewer_go_on_with_it(
    tmp_path: Path, trained: Trained
) -> None:
    given = trained.ended(tmp_path).given
    assert sorted(given) == list(range(LENGTH))
    # The number of samples left for two ranks is odd, so one comes twice unless exact.
    assert given.total() == LENGTH + (not trained.exact)
    verdict = audit(tmp_path / "receipts")
    assert verdict.is_sound, "\n".join(verdict.lines)
    assert verdict.starts == tuple(ranks for _, _, ranks, *_ in RUNS)
    [epoch] = verdict.epochs
    assert (epoch.is_over, epoch.samples) == (True, LENGTH)
    filled_up = "1 came again to fill up the last step"
    assert (filled_up in epoch.lines[0]) is not trained.exact


@pytest.mark.timeout(3 * LIMIT_S)
@pytest.mark.parametrize("trained", LAUNCHERS[:1], indirect=True)
def test_the_audit_finds_what_a_rank_in_anothers_seat_loses_and_repeats(
    tmp_path: Path, trained: Trained
) -> None:
    given = trained.ended(tmp_path, has_fault=True).given
    repeated = {index for index, count in given.items() if count > 1}
    verdict = audit(tmp_path / "receipts")
    assert not verdict.is_sound
    assert verdict.missing == LENGTH - len(given) > 0
    lines = verdict.epochs[0].lines[1:]
    assert {
        int(line.split()[3]) for line in lines if "never came: sample" in line
    }.isdisjoint(given)
    assert {
        int(line.split()[4]) for line in lines if "several times: sample" in line
    } <= repeated
    assert verdict.twice > 0


JAX = (
    TELL
    + """
import sys
import jax
import numpy as np
import mpiter

class Numbers:
    def __len__(self):
        return 22

    def __getitem__(self, index):
        return np.float32(index)

def main():
    process, address = int(sys.argv[1]), sys.argv[2]
    loader = mpiter.DataLoader(Numbers(), 4, shuffle=True, seed=0, shard="auto")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, num_processes=2, process_id=process)
    devices = jax.sharding.Mesh(jax.devices(), "data")
    part = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec("data"))
    sums, seen = [], []
    for batch in loader:
        seen += batch.tolist()
        everything = jax.make_array_from_process_local_data(part, batch)
        sums.append(float(jax.jit(lambda x: x.sum())(everything)))
    tell("jax", jax.process_index(), sums=sums, seen=seen, state=loader.state_dict())

if __name__ == "__main__":
    main()
"""
)


@pytest.mark.torch
@pytest.mark.timeout(2 * LIMIT_S)
def test_processes_of_jax_find_their_part_once_jax_has_begun(tmp_path: Path) -> None:
    """The loader is made before the number of ranks is known."""
    pytest.importorskip("jax", reason="JAX is not installed: run `python3 tests --all`")
    with port_for_jax() as port:
        address = f"127.0.0.1:{port}"
        words: list[list[object]] = [[0, address], [1, address]]
        ended = launch_each(tmp_path, JAX, *words, JAX_PLATFORMS="cpu")
    for code, _, err in ended:
        assert code == 0, err
    facts = told(tmp_path, "jax", 2)
    assert facts[0]["sums"] == facts[1]["sums"]
    assert facts[0]["state"] == facts[1]["state"]
    assert len(facts[0]["sums"]) == 3
    assert sorted(facts[0]["seen"] + facts[1]["seen"]) == list(range(22))
    assert sum(facts[0]["sums"]) == sum(range(22))

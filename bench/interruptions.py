"""Trainings of several ranks are interrupted again and again, and compared.

Shows what diverges, is lost, is repeated or differs in a bit.

    python bench/interruptions.py --out bench/results/interruptions.json
    python bench/interruptions.py --small  # a smoke test, never a conclusion

It needs torch, and for the others' rows lightning and accelerate.

Each training of four epochs is interrupted once in each, by a signal at a planned
place, and resumed by as many ranks, fewer or more; then it is compared with one that
nobody interrupted.  Ranks are forked by a launcher that does as torch's does; some
interruptions are done under torch's own.  Each model learns which samples it has
learnt, so what was thrown away with a model isn't counted.  Lightning and Accelerate go
through the same with one rank and two, as their docs resume within an epoch.  Must, of
ours: ranks begin and end equal; each sample is learnt once an epoch; each epoch's tail
counts once; with as many ranks all is equal to the last bit; a signal that can be heard
loses no step. tests/checkpoints/test_ranks_interrupted.py runs a short part of it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from driver import (
    Claim,
    Verdict,
    add_common,
    at_least,
    at_most,
    drawn,
    heading,
    judge,
    keep_result,
    refuse_to_overwrite,
    versions,
)
from interrupted_ranks import (
    BORDER,
    KILLS,
    LAST,
    PLACES,
    SAVING,
    SIGNALS,
    Ended,
    Seat,
    Strike,
    launched,
)
from interrupted_trainings import EPOCHS, EVERY_STEPS, LENGTH, TRAININGS

AS_MANY = "as many"
FEWER = "fewer"
MORE = "more"
OURS = "mpiter"
# Interruptions are counted of trainings by so many ranks.
COUNTED = (2, 3)
COUNTED_OF_OTHERS = (1, 2)
# A run that takes longer hangs.
LIMIT_S = 120.0
# The result says of so many trainings what was wrong.
MOST_WORDS = 20
# Fewer interruptions allow no conclusion.
ENOUGH = 500
# Two intervals, since a save may have been under way when the next one was due.
MOST_REDONE = 2 * EVERY_STEPS
# Ranks may have been out of the block when SIGTERM came, and end with such codes.
_KINDLY = (0, 1, 130, 143, -15)
_PROBLEMS = {
    "unequal_starts": "ranks began with other weights, or after other steps",
    "unequal_ends": "ranks ended with other weights",
    "lost": "samples that an epoch never learnt",
    "twice": "samples that were learnt again, fill-ups left out",
    "tails": "epochs whose tail didn't count once",
    "bits": "trainings that differ from an uninterrupted one",
    "lost_steps": "steps lost by signals that can be heard",
    "raised": "resumed and ended by an error",
    "hung": "never ended",
    "forced": "had to be killed after the grace",
    "aborted": "ended by a signal of their own",
}


# -- what is played --------------------------------------------------------------------


@dataclass(frozen=True)
class Chain:
    """One training: the ranks of each of its runs, and the strikes that end them.

    The last run isn't struck.
    """

    row: str
    sizes: tuple[int, ...]
    strikes: tuple[Strike, ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_of_as_many(self) -> bool:
        return len(set(self.sizes)) == 1

    def strike_of(self, run: int) -> Strike | None:
        if run < len(self.strikes):
            return self.strikes[run]
        return None

    def resumed_by(self, run: int) -> str:
        return resumed_by(self.sizes[run], self.sizes[run + 1])


def resumed_by(before: int, after: int) -> str:
    if after == before:
        return AS_MANY
    return FEWER if after < before else MORE


def chains_of(
    row: str, patterns: Iterable[tuple[int, ...]], rounds: int, draw: random.Random
) -> Iterator[Chain]:
    """Deal all signals at all places out to the runs, so many times.

    The runs are those that these patterns of ranks have.

    Only a training's last epoch has the last step, so that those strikes come last.
    """
    left: dict[tuple[int, str], list[tuple[str, str]]] = defaultdict(list)
    for sizes in dict.fromkeys(patterns):
        for key in _keys(sizes):
            if not left[key]:
                left[key] = list(product(SIGNALS, PLACES)) * rounds
                draw.shuffle(left[key])
    counted = COUNTED if row == OURS else COUNTED_OF_OTHERS
    for sizes in patterns:
        while any(
            _fitting(left[key], epoch)
            for epoch, key in enumerate(_keys(sizes))
            if key[0] in counted
        ):
            strikes = []
            for epoch, key in enumerate(_keys(sizes)):
                signal, place = _dealt(left[key], epoch, draw)
                strikes.append(_strike(signal, place, epoch, sizes[epoch], draw))
            yield Chain(row, sizes, tuple(strikes))


def _keys(sizes: tuple[int, ...]) -> list[tuple[int, str]]:
    return [(before, resumed_by(before, after)) for before, after in pairwise(sizes)]


def _fitting(left: list[tuple[str, str]], epoch: int) -> list[tuple[str, str]]:
    """Return what can come in this epoch, that of the last step first."""
    is_last = epoch == EPOCHS - 1
    some = [cell for cell in left if is_last or cell[1] != LAST]
    return sorted(some, key=lambda cell: cell[1] != LAST)


def _dealt(
    left: list[tuple[str, str]], epoch: int, draw: random.Random
) -> tuple[str, str]:
    some = _fitting(left, epoch)
    if not some:
        signal = draw.choice(SIGNALS)
        return signal, draw.choice([place for place in PLACES if place != LAST])
    left.remove(some[0])
    return some[0]


def _strike(
    signal: str, place: str, epoch: int, size: int, draw: random.Random
) -> Strike:
    once = place in (SAVING, LAST)
    at = 0
    if not once:
        # A border has two sides. The other places come at least three times: a
        # validation has three batches, and an epoch of four ranks three steps.
        at = draw.randrange(2 if place == BORDER else 3)
    return Strike(signal, place, epoch, at, draw.randrange(size))


def with_options(chains: Iterable[Chain]) -> Iterator[Chain]:
    """Vary what must make no difference.

    That is who fetches, how steps are told, and when and how the training is saved.
    """
    for number, chain in enumerate(chains):
        options: dict[str, Any] = {
            "workers": int(number % 20 == 3),
            "by_hand": number % 4 == 1,
            "background": number % 5 != 2,
            "keep": number % 3,
        }
        if number % 6 == 5:
            options |= {"every_steps": None, "every_s": 0.01}
        yield replace(chain, options=options)


# -- playing ---------------------------------------------------------------------------


@dataclass
class Interruption:
    """A strike that was carried out, in a run of so many ranks.

    ``redone`` steps were done again after it.
    """

    run: int
    ranks: int
    signal: str
    place: str
    resumed: str
    redone: int | None = None

    @property
    def can_be_heard(self) -> bool:
        return self.signal not in KILLS


@dataclass
class Played:
    """What came of one training."""

    chain: Chain
    interruptions: list[Interruption] = field(default_factory=list)
    # Strikes whose place never came.
    missed: int = 0
    # Runs of which a rank was killed, and the others hadn't ended when their time to
    # end was over.
    stuck: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    words: list[str] = field(default_factory=list)
    # What each rank wrote at the end.
    ends: dict[int, dict[str, Any]] = field(default_factory=dict)

    def note(self, problem: str, count: int, words: str = "") -> None:
        if count:
            self.problems[problem] += count
            if words:
                problem = f"{problem}: {words}"
            self.words.append(problem)


def played(
    chain: Chain,
    reference: dict[int, dict[str, Any]] | None = None,
    limit_s: float = LIMIT_S,
) -> Played:
    """Train to the end with interruptions, and compare with an undisturbed training.

    That one has as many ranks.
    """
    found = Played(chain)
    with tempfile.TemporaryDirectory(prefix="mpiter-bench-") as name:
        folder = Path(name)
        for run, size in enumerate(chain.sizes):
            strike = chain.strike_of(run)
            seats = [
                Seat(folder, run, rank, size, strike, chain.options)
                for rank in range(size)
            ]
            ended = launched(TRAININGS[chain.row], seats, limit_s)
            told = _told(folder)
            _judge_run(found, run, ended, told)
            if found.problems["raised"] or found.problems["hung"]:
                return found
            _note_redone(found, run, told)
        _judge_end(found, told, reference)
    return found


def _told(folder: Path) -> list[dict[str, Any]]:
    file = folder / "told"
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines()]


def _of(told: list[dict[str, Any]], run: int, kind: str) -> list[dict[str, Any]]:
    return [line for line in told if (line["run"], line["kind"]) == (run, kind)]


def _judge_run(
    found: Played, run: int, ended: Ended, told: list[dict[str, Any]]
) -> None:
    chain = found.chain
    size = chain.sizes[run]
    strike = chain.strike_of(run)
    about = (
        f"run {run}, {size} ranks, {strike}, exit codes {ended.codes}\n{ended.words}"
    )
    starts = _of(told, run, "start")
    found.note(
        "unequal_starts",
        len({(one["step"], one["same"]) for one in starts}) > 1,
        f"{about}\n{starts}",
    )
    found.note("hung", ended.hung, about)
    rightly = list(_KINDLY)
    if strike is not None and _of(told, run, "struck"):
        found.interruptions.append(
            Interruption(run, size, strike.signal, strike.place, chain.resumed_by(run))
        )
        if strike.signal in KILLS:
            # Others may wait for the killed rank in the code of gloo, where they can
            # neither hear a signal nor save, until they are killed too.
            rightly.append(-9)
            found.stuck += ended.forced
        else:
            found.note("forced", ended.forced, about)
    else:
        found.missed += strike is not None
        found.note("raised", any(ended.codes) and not ended.hung, about)
    if not (ended.hung or ended.forced):
        found.note("aborted", sum(code not in rightly for code in ended.codes), about)


def _note_redone(found: Played, run: int, told: list[dict[str, Any]]) -> None:
    """Count the steps that were done before this run and aren't in what it began with.

    One is lost if all ranks had finished it.  A loop that calls c.step() itself may be
    ended just before it does.
    """
    begun = [line["step"] for line in _of(told, run, "start")]
    for interruption in found.interruptions:
        if begun and interruption.run == run - 1:
            done = dict.fromkeys(range(interruption.ranks), 0)
            for line in _of(told, run - 1, "step"):
                done[line["rank"]] = line["step"]
            interruption.redone = max(0, max(done.values()) - begun[0])
            if interruption.can_be_heard:
                about = (
                    f"run {run - 1}, {found.chain.strikes[run - 1]}: {done} done, "
                    f"{begun[0]} saved"
                )
                found.note("lost_steps", max(0, min(done.values()) - begun[0]), about)


def _judge_end(
    found: Played,
    told: list[dict[str, Any]],
    reference: dict[int, dict[str, Any]] | None,
) -> None:
    last = len(found.chain.sizes) - 1
    ends = _of(told, last, "end")
    found.ends = {end["rank"]: end for end in ends}
    is_short = len(ends) < found.chain.sizes[-1]
    found.note("raised", is_short and not found.problems["raised"])
    if not ends:
        return
    different = {(end["step"], end["same"]) for end in ends}
    found.note("unequal_ends", len(different) > 1, str(ends))
    for epoch in range(EPOCHS):
        learnt = Counter(ends[0]["learnt"].get(str(epoch), []))
        found.note(
            "lost",
            LENGTH - len(learnt),
            f"of epoch {epoch}: {sorted(set(range(LENGTH)) - set(learnt))}",
        )
        # The last step is filled up to as many samples in each rank, so those come
        # again rightly.
        fill_ups = 0
        if not found.chain.is_of_as_many:
            fill_ups = max(found.chain.sizes) - 1
        again = learnt.total() - len(learnt)
        found.note(
            "twice",
            max(0, again - fill_ups),
            f"in epoch {epoch}: {learnt.most_common(9)}",
        )
    for what in ("validations", "decays"):
        found.note("tails", abs(ends[0][what] - EPOCHS), f"{what}: {ends[0][what]}")
    if reference and found.chain.is_of_as_many:
        differ = [
            rank
            for rank, end in found.ends.items()
            if _bits(end) != _bits(reference[rank])
        ]
        found.note(
            "bits", bool(differ), f"ranks {differ}: {found.ends} instead of {reference}"
        )


def _bits(end: dict[str, Any]) -> tuple[Any, ...]:
    return end["same"], end["own"], end["step"], end["learnt"]


def references(
    rows_and_sizes: Iterable[tuple[str, int]],
) -> dict[tuple[str, int], dict[int, dict[str, Any]]]:
    """Return what the ranks of uninterrupted trainings tell at their end."""
    found = {}
    for row, size in rows_and_sizes:
        quiet = played(Chain(row, (size,), ()))
        if quiet.problems:
            raise RuntimeError(
                f"{row} with {size} ranks can't even train: {quiet.words}"
            )
        found[row, size] = quiet.ends
    return found


def play_all(chains: list[Chain], lanes: int, tells: bool = True) -> list[Played]:
    """Play so many trainings at once; return them in the order of their ends."""
    quiet = references(
        sorted({(chain.row, chain.sizes[0]) for chain in chains if chain.is_of_as_many})
    )
    asked = [(chain, quiet.get((chain.row, chain.sizes[0]))) for chain in chains]
    found = []
    # Ranks are forked, and a fork copies locks that other threads hold. So processes
    # without other threads fork them, which are there before any training.
    with ProcessPoolExecutor(lanes, multiprocessing.get_context("fork")) as pool:
        for future in as_completed([pool.submit(played, *one) for one in asked]):
            one = future.result()
            found.append(one)
            if tells and one.problems:
                words = "\n".join([str(one.chain), *one.words])
                print(words, file=sys.stderr, flush=True)
            if tells and len(found) % 20 == 0:
                count = sum(len(other.interruptions) for other in found)
                place = f"{len(found)} of {len(chains)} trainings"
                print(f"{place}, {count} interruptions", file=sys.stderr, flush=True)
    return found


# -- under torch's launcher ------------------------------------------------------------


def under_torchrun(
    strike: Strike, size: int, reference: dict[int, dict[str, Any]]
) -> Played:
    """Interrupt a training once under torch's own launcher, and resume it there."""
    found = Played(Chain(OURS, (size, size), (strike,)))
    with tempfile.TemporaryDirectory(prefix="mpiter-bench-") as name:
        folder = Path(name)
        for run in range(2):
            ended = torchrun(folder, run, size, None if run else strike)
            told = _told(folder)
            _judge_run(found, run, ended, told)
            if found.problems["raised"] or found.problems["hung"]:
                return found
            _note_redone(found, run, told)
        _judge_end(found, told, reference)
    return found


def torchrun(folder: Path, run: int, size: int, strike: Strike | None) -> Ended:
    asked = {
        "folder": str(folder),
        "run": run,
        "strike": asdict(strike) if strike else None,
        "options": {},
    }
    program = str(Path(__file__).with_name("interrupted_trainings.py"))
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(size),
    ]
    words = folder / f"words-{run}"
    with open(words, "wb") as file:
        process = subprocess.Popen(
            [*launcher, program, OURS, json.dumps(asked)],
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        try:
            process.wait(LIMIT_S)
            hung = False
        except subprocess.TimeoutExpired:
            hung = True
            process.terminate()
            process.wait(LIMIT_S)
    text = words.read_text(errors="replace")
    # The launcher says in words how its ranks ended; its own code is 0 only if all of
    # theirs are.
    codes: list[int | None] = []
    if "SIGABRT" in text or "terminate called" in text:
        codes.append(-6)
    if strike is None:
        codes.append(process.returncode)
    return Ended(codes, False, hung, text[-3000:])


# -- what came of it -------------------------------------------------------------------


def summary(
    all_played: list[Played], sizes: tuple[int, ...] = (1, 2, 3, 4)
) -> dict[str, Any]:
    """Return all that the result says of the trainings of one row.

    Interruptions of so many ranks are counted.
    """
    matrix: Counter[tuple[int, str, str, str]] = Counter()
    redone: dict[str, list[int]] = defaultdict(list)
    problems: Counter[str] = Counter(dict.fromkeys(_PROBLEMS, 0))
    for one in all_played:
        problems.update(one.problems)
        is_counted = one.chain.options.get("every_s") is None
        for each in one.interruptions:
            matrix[each.ranks, each.signal, each.place, each.resumed] += 1
            if each.redone is not None and is_counted:
                redone[each.signal].append(each.redone)
    told: dict[str, dict[str, Any]] = {f"{size} ranks": {} for size in sizes}
    for (size, signal, place, resumed), count in sorted(matrix.items()):
        told[f"{size} ranks"].setdefault(signal, {}).setdefault(place, {})[resumed] = (
            count
        )
    return {
        "trainings": len(all_played),
        "sound": sum(not one.problems for one in all_played),
        "interruptions": matrix.total(),
        "of_ranks": {
            size: sum(n for cell, n in matrix.items() if cell[0] == size)
            for size in sizes
        },
        "missed": sum(one.missed for one in all_played),
        "stuck": sum(one.stuck for one in all_played),
        "problems": dict(problems),
        "redone": {
            s: {"most": max(n), "mean": sum(n) / len(n)} for s, n in redone.items()
        },
        "matrix": told,
        "words": [first_words(one) for one in all_played if one.problems][:MOST_WORDS],
    }


def first_words(one: Played) -> dict[str, Any]:
    """Return what was wrong with a training, without the tracebacks.

    They name this machine's folders.
    """
    return {
        "chain": asdict(one.chain),
        "words": [words.partition("\n")[0][:200] for words in one.words],
    }


def empty_cells(found: dict[str, Any]) -> int:
    """Return how many cells of the matrix have no interruption.

    The cells are those of two and three ranks.
    """
    empty = 0
    for size in (2, 3):
        for signal in SIGNALS:
            for place in PLACES:
                there = found["matrix"][f"{size} ranks"].get(signal, {}).get(place, {})
                empty += sum(resumed not in there for resumed in (AS_MANY, FEWER, MORE))
    return empty


def claims(ours: dict[str, Any], torchs: dict[str, Any]) -> Iterator[Claim]:
    yield at_least(
        OURS,
        "interruptions of 2 and 3 ranks",
        ours["of_ranks"][2] + ours["of_ranks"][3],
        ENOUGH,
    )
    yield at_most(OURS, "cells of the matrix without any", empty_cells(ours), 0)
    for name in _PROBLEMS:
        yield at_most(OURS, name, ours["problems"][name], 0)
    for signal in KILLS:
        most = ours["redone"].get(signal, {}).get("most")
        yield at_most(OURS, f"steps done again after {signal}", most, MOST_REDONE)
    if torchs:
        yield at_most("torchrun", "problems", sum(torchs["problems"].values()), 0)


def table(rows: dict[str, dict[str, Any]]) -> list[list[str]]:
    lines = [["", *rows]]
    heads = {
        "interruptions": "interruptions",
        "trainings": "trainings",
        "sound": "of them sound",
    }
    for name, says in heads.items():
        lines.append([says, *(str(row[name]) for row in rows.values())])
    for name, says in _PROBLEMS.items():
        lines.append([says, *(str(row["problems"][name]) for row in rows.values())])
    for signal in SIGNALS:
        most = [row["redone"].get(signal, {}).get("most", "") for row in rows.values()]
        lines.append([f"most steps done again, {signal}", *map(str, most)])
    lines.append(
        [
            "killed after the grace, beside one that was",
            *(str(row["stuck"]) for row in rows.values()),
        ]
    )
    lines.append(
        [
            "strikes whose place never came",
            *(str(row["missed"]) for row in rows.values()),
        ]
    )
    return lines


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--rows", nargs="+", default=list(TRAININGS), choices=list(TRAININGS)
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=4,
        help="times that each cell is played with as many ranks",
    )
    parser.add_argument("--lanes", type=int, default=2, help="trainings at once")
    parser.add_argument("--seed", type=int, default=1, help="of what is dealt out")
    parser.add_argument(
        "--trainings", type=int, help="of each row, the first ones (default: all)"
    )
    parser.add_argument(
        "--under-torchrun",
        type=int,
        default=10,
        help="further interruptions, under torch's launcher",
    )
    add_common(parser)
    asked = parser.parse_args()
    refuse_to_overwrite(parser, asked)
    if asked.small:
        asked.trainings = 3
        asked.under_torchrun = 1
    return asked


def chains_asked(
    row: str, asked: argparse.Namespace, draw: random.Random
) -> list[Chain]:
    if row != OURS:
        found = list(chains_of(row, [(1,) * 5, (2,) * 5], 1, draw))
        draw.shuffle(found)
        return found[: asked.trainings]
    same = chains_of(row, [(2,) * 5, (3,) * 5], asked.rounds, draw)
    patterns = [(3, 2, 3, 2, 3), (2, 3, 2, 3, 2)]
    between = chains_of(row, patterns, max(1, asked.rounds // 2), draw)
    patterns = [(1, 2, 1, 2, 1), (4, 3, 4, 3, 4)]
    beyond = chains_of(row, patterns, max(1, asked.rounds // 4), draw)
    found = [*with_options(same), *with_options(between), *with_options(beyond)]
    draw.shuffle(found)
    return found[: asked.trainings]


def torchrun_played(asked: argparse.Namespace, draw: random.Random) -> list[Played]:
    cells = [
        (size, signal)
        for _ in range(asked.under_torchrun)
        for signal in SIGNALS
        for size in COUNTED
    ]
    quiet = references((OURS, size) for size in COUNTED)
    found = []
    for size, signal in cells[: asked.under_torchrun]:
        place = draw.choice([place for place in PLACES if place != LAST])
        strike = _strike(signal, place, 1, size, draw)
        found.append(under_torchrun(strike, size, quiet[OURS, size]))
        if found[-1].problems:
            print(strike, *found[-1].words, sep="\n", file=sys.stderr)
    return found


def versions_here() -> dict[str, str]:
    found = versions()
    for package in ("lightning", "accelerate"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def main() -> int:
    asked = parse()
    began = time.time()
    load = os.getloadavg()
    here = versions_here()
    settings = {"epochs": EPOCHS, "samples": LENGTH, "every_steps": EVERY_STEPS}
    settings |= {
        name: value
        for name, value in vars(asked).items()
        if name not in ("out", "force")
    }
    rows: dict[str, dict[str, Any]] = {}
    torchs: dict[str, Any] = {}
    judged: list[Verdict] = []
    for row in asked.rows:
        if here.get(row) == "absent":
            print(f"{row}: absent, `pip install {row}`")
            continue
        rows[row] = summary(
            play_all(chains_asked(row, asked, random.Random(asked.seed)), asked.lanes)
        )
        if row == OURS:
            if asked.under_torchrun:
                torchs = summary(torchrun_played(asked, random.Random(asked.seed)))
            judged = [
                judge(claim, rows[OURS]["interruptions"], ENOUGH)
                for claim in claims(rows[OURS], torchs)
            ]
        found = {
            "versions": here,
            "settings": settings,
            "rows": rows,
            "torchrun": torchs,
        }
        told = (
            heading("interruptions", began, load)
            | found
            | {"verdicts": [asdict(one) for one in judged]}
        )
        keep_result(asked.out, told)
    print(*drawn(table(rows | ({"torchrun": torchs} if torchs else {}))), sep="\n")
    print("", *[verdict.line() for verdict in judged], sep="\n")
    return int(any(verdict.failed for verdict in judged))


if __name__ == "__main__":
    sys.exit(main())

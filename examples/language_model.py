"""Two ranks train a small language model, Ctrl-C stops them, and three ranks go on.

    python examples/language_model.py

Texts that every machine has are packed into rows, and mixed by weights, which change.
Gradients go through pipes, without torch or MPI. One process does it all undisturbed.
"""

import contextlib
import inspect
import re
import signal
import tempfile
from multiprocessing import connection, get_context
from pydoc_data.topics import topics
from typing import Any

import numpy as np

import mpiter

FIRST = {"code": 0.5, "manual": 0.3, "docstrings": 0.2}
LATER = {"code": 0.2, "manual": 0.3, "docstrings": 0.5}
SIZE = 60_000  # letters of each source
ROWS = 12  # in a step of all ranks
# Ctrl-C comes in this step. Sources are shuffled within blocks of 256 rows, and a
# planned change of weights ends a block, so the change comes where one ends anyway.
LAST = 3 * 256 // ROWS


class Texts:
    """The paragraphs of a text; each letter has a number, from ``first`` on."""

    def __init__(self, text: str, first: int) -> None:
        letters = text[:SIZE].encode("ascii", "replace")
        self.parts = re.split(rb"(?<=\n\n)", letters)
        self.firsts = first + np.cumsum([0, *map(len, self.parts)])

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        numbers = np.arange(self.firsts[index], self.firsts[index + 1])
        return {"tokens": np.frombuffer(self.parts[index], "u1"), "numbers": numbers}


def loader_of(weights: Any, rank: int, ranks: int) -> mpiter.DataLoader:
    """Return a rank's part of the rows, in which each letter comes once."""
    texts = {
        "code": inspect.getsource(inspect),
        "manual": "\n\n".join(topics.values()),
        "docstrings": "\n\n".join(str(one.__doc__) for one in vars(np).values()),
    }
    packs = dict[str, mpiter.Pack]()
    for name, text in texts.items():
        documents = Texts(text, len(packs) * SIZE)
        packs[name] = mpiter.Pack(documents, capacity=128, long="split")
    mix = mpiter.Mix(packs, weights, short="renormalise")
    # In the last step ranks may have unequal numbers of rows, so that none comes twice.
    shard = mpiter.Shard(rank, ranks, exact=True)
    return mpiter.DataLoader(mix, ROWS // ranks, shuffle=True, seed=0, shard=shard)


def part_of_step(table: np.ndarray, batch: Any, step_tokens: int) -> tuple[Any, ...]:
    """Return what some rows add to a step: gradient, loss, and the letters' numbers."""
    is_real = batch["segment_ids"] > 0
    letters = batch["tokens"][is_real]
    # A letter is predicted from the one before, and the first of a paragraph from 0.
    before = np.where(batch["positions"] > 0, np.roll(batch["tokens"], 1), 0)[is_real]
    chances = np.exp(table[before])
    chances /= chances.sum(axis=1, keepdims=True)
    rows = np.arange(len(letters))
    # Each rank divides by the tokens of all ranks: sums over ranks are those of one.
    loss = -np.log(chances[rows, letters]).sum() / step_tokens
    chances[rows, letters] -= 1
    gradient = np.zeros_like(table)
    np.add.at(gradient, before, chances / step_tokens)
    return gradient, loss, batch["numbers"][is_real]


def other_rank(pipe: connection.Connection, state: Any, *of_loader: Any) -> None:
    """Do another rank's part in each step, until rank 0 closes the pipe."""
    # A terminal sends Ctrl-C to every process. Here rank 0 alone ends the step.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loader = loader_of(*of_loader)
    loader.load_state_dict(state)
    with contextlib.suppress(EOFError):
        for batch in loader:
            pipe.send(part_of_step(pipe.recv(), batch, loader.step_tokens))
        # The last step may have no row for this rank.
        pipe.recv()
        pipe.send((0, 0, []))


def train(path: str, weights: Any, ranks: int, last: int = 0) -> dict[str, Any]:
    """Train as rank 0 until ``last`` steps are done, or the epoch; tell what came."""
    loader = loader_of(weights, 0, ranks)
    run = {"table": np.zeros((128, 128)), "losses": np.zeros(len(loader))}
    run |= {"times": np.zeros(3 * SIZE, int), "steps": np.zeros(3 * SIZE, int)}
    spawn = get_context("spawn")
    with mpiter.Checkpoint(path, loader, run=run) as c, contextlib.ExitStack() as stack:
        pipes = []
        for rank in range(1, ranks):
            pipe, its = spawn.Pipe()
            told = (its, loader.state_dict(), weights, rank, ranks)
            spawn.Process(target=other_rank, args=told).start()
            its.close()
            pipes.append(stack.enter_context(pipe))
        for batch in c.steps(loader):
            if c.finished + 1 == last:
                # As Ctrl-C does. The step is finished and saved before it is heard.
                signal.raise_signal(signal.SIGINT)
            for pipe in pipes:
                pipe.send(run["table"])
            parts = [part_of_step(run["table"], batch, loader.step_tokens)]
            parts += [pipe.recv() for pipe in pipes]
            for gradient, loss, numbers in parts:
                run["table"] -= 8 * gradient
                run["losses"][c.finished] += loss
                run["times"][numbers] += 1
                run["steps"][numbers] = c.finished
    return run


def main() -> None:
    # A program that a shell starts in the background would ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(KeyboardInterrupt):
            train(f"{folder}/1.npz", FIRST, ranks=2, last=LAST)
        print(f"Ctrl-C ended two ranks after step {LAST}; three go on by other weights")
        found = train(f"{folder}/1.npz", LATER, ranks=3)
        whole = train(f"{folder}/2.npz", [(0, FIRST), (ROWS * LAST, LATER)], ranks=1)
    steps = found["steps"].reshape(3, SIZE)
    for begin, stop in (0, LAST), (LAST, LAST + 30):
        counts = ((begin <= steps) & (steps < stop)).sum(axis=1)
        shares = " : ".join(f"{share:.0%}" for share in counts / counts.sum())
        print(f"letters of {', '.join(FIRST)} in steps {begin + 1} to {stop}: {shares}")
    # Sums over ranks are added in another order, which may change the last digits.
    apart = np.max(np.abs(found["losses"] / whole["losses"] - 1))
    assert apart < 1e-12, f"a loss differs by {apart}"
    print(f"one process, undisturbed: the same losses in 12 digits ({apart:.0e} apart)")
    assert np.array_equal(found["steps"], whole["steps"]), "a step has other letters"
    assert (found["times"] == 1).all(), "letters were lost or repeated"
    print(f"each of {3 * SIZE:,} letters came once, and in the same step")


if __name__ == "__main__":
    main()

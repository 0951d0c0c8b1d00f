"""A stream of records from compressed files, which is resumed where it was.

    python examples/stream.py

The library shares the stream out among the workers. On resuming there is another number
of them, and the batches are the same.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import mpiter


class Records:
    """JSON records from a folder of `.jsonl.gz` files, one file after the other.

    It knows its place, and goes on there after `load_state_dict`.
    """

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*.jsonl.gz"))
        # The next record is in this line of this file.
        self.file = 0
        self.line = 0

    def state_dict(self) -> dict[str, int]:
        return {"file": self.file, "line": self.line}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.file = state["file"]
        self.line = state["line"]

    def __iter__(self) -> Iterator[dict[str, object]]:
        while self.file < len(self.files):
            with gzip.open(self.files[self.file], "rt") as lines:
                for number, line in enumerate(lines):
                    if number >= self.line:
                        # Move on before the record is handed out: a state that is asked
                        # for afterwards must not give it again.
                        self.line = number + 1
                        yield json.loads(line)
            self.file += 1
            self.line = 0
        # The next epoch begins at the first file again.
        self.file = 0


def write_some(folder: Path, files: int = 4, lines: int = 250) -> None:
    for file in range(files):
        with gzip.open(folder / f"{file:02}.jsonl.gz", "wt") as out:
            for line in range(lines):
                number = file * lines + line
                record = {"id": number, "text": f"record {line} of file {file}"}
                out.write(json.dumps(record) + "\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_some(Path(folder))
        records = Records(Path(folder))
        with mpiter.DataLoader(records, batch_size=32, num_workers=2) as loader:
            epoch = iter(loader)
            for _ in range(10):
                batch = next(epoch)
            state = json.dumps(loader.state_dict())
            rest = [batch["id"].tolist() for batch in epoch]
        last = batch["text"][-1]
        print(f"10 batches read by 2 workers; the last one ends with {last!r}")
        print(f"the state: {state}")
        records = Records(Path(folder))
        with mpiter.DataLoader(records, batch_size=32, num_workers=3) as loader:
            loader.load_state_dict(json.loads(state))
            found = [batch["id"].tolist() for batch in loader]
        verdict = "identical" if found == rest else "DIFFERENT"
        print(f"resumed with 3 workers: {len(found)} batches, {verdict}")


if __name__ == "__main__":
    main()

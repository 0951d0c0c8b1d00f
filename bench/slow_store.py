"""A slow store: an HTTP server on the loopback.

It takes so long for each file, and has so much bandwidth for all.

    python bench/slow_store.py [BYTES]

The program prints its port, and ends with its standard input. It runs in a process of
its own; its files have so many bytes, or else 80,000. Guarantees the latency for each
request, the bandwidth for all connections together, and files of a fixed size whose
bytes follow from their numbers. `Remote` is a dataset of them, which keeps one
connection for each thread.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

LATENCY_S = 20e-3
BYTES_PER_S = 20e6
SIZE = 80_000


def content(number: int, size: int = SIZE) -> bytes:
    return np.random.default_rng(number).bytes(size)


class Store(ThreadingHTTPServer):
    """All files, made when they are asked for first."""

    daemon_threads = True
    # As many connections as may be opened at the same time.
    request_queue_size = 512

    def __init__(self, size: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.size = size
        self.files: dict[int, bytes] = {}
        self._line = threading.Lock()
        self._is_free_at = 0.0

    def wait(self, size: int) -> None:
        """Wait until so many bytes have gone out, behind those of other requests."""
        time.sleep(LATENCY_S)
        with self._line:
            self._is_free_at = (
                max(self._is_free_at, time.monotonic()) + size / BYTES_PER_S
            )
            until = self._is_free_at
        time.sleep(max(0.0, until - time.monotonic()))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Store

    def do_GET(self) -> None:
        number = int(re.findall(r"\d+", self.path)[0])
        data = self.server.files.get(number) or self.server.files.setdefault(
            number, content(number, self.server.size)
        )
        self.server.wait(len(data))
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(size: int = SIZE) -> Iterator[int]:
    """Run a store of files of ``size`` bytes in a process of its own; give its port."""
    with subprocess.Popen(
        [sys.executable, __file__, str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()


class Remote:
    """The first files of a store: each sample is a file's number and its bytes."""

    def __init__(self, port: int, samples: int) -> None:
        self.root = f"http://127.0.0.1:{port}"
        self._port = port
        self._samples = samples
        self._mine: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mine": None}

    def __len__(self) -> int:
        return self._samples

    def source(self, index: int) -> str:
        # The name is the same whatever port the store has today.
        return f"http://slow.store/{index}.bin"

    def fetch(self, index: int) -> bytes:
        if self._mine is None or self._mine[0] != os.getpid():
            self._mine = os.getpid(), threading.local()
        mine = self._mine[1]
        if not hasattr(mine, "connection"):
            mine.connection = http.client.HTTPConnection("127.0.0.1", self._port)
        mine.connection.request("GET", f"/{index}.bin")
        return bytes(mine.connection.getresponse().read())

    def close(self) -> None:
        """Return this thread's connection."""
        if self._mine is not None and hasattr(self._mine[1], "connection"):
            self._mine[1].connection.close()

    def __getitem__(self, index: int) -> Any:
        return index, np.frombuffer(self.fetch(index), np.uint8)


if __name__ == "__main__":
    store = Store(int(sys.argv[1]) if sys.argv[1:] else SIZE)
    threading.Thread(target=store.serve_forever, daemon=True).start()
    print(store.server_address[1], flush=True)
    sys.stdin.read()

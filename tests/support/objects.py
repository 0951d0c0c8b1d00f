"""A store of objects in this process, with the little of S3 that reading needs."""

from __future__ import annotations

import contextlib
import email.utils
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_DATE = 0.0


@contextlib.contextmanager
def serving() -> Iterator[dict[str, str]]:
    """Serve a store, empty at first; yield the variables by which clients find it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    _Handler.objects = {}
    thread = threading.Thread(target=server.serve_forever, args=[0.05])
    thread.start()
    try:
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_address[1]}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "anyone",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """Puts, gets, heads and lists objects; addresses are /bucket/key."""

    protocol_version = "HTTP/1.1"
    # Otherwise the body waits 40 ms for the client to acknowledge the headers.
    disable_nagle_algorithm = True
    objects: dict[str, bytes]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.objects[self._key()] = body
        self._answer(200, b"")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            self._answer(200, self._listed(query.get("prefix", [""])[0]))
            return
        body = self.objects.get(self._key())
        if body is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None:
            self._answer(200, body)
            return
        first, last = map(int, asked.groups())
        part = body[first : last + 1]
        end = first + len(part) - 1
        self._answer(206, part, f"bytes {first}-{end}/{len(body)}")

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).strip("/")

    def _listed(self, prefix: str) -> bytes:
        bucket = self._key()
        found = []
        for key, body in sorted(self.objects.items()):
            name = key.removeprefix(f"{bucket}/")
            if name.startswith(prefix):
                found.append(
                    f"<Contents><Key>{escape(name)}</Key><Size>{len(body)}</Size>"
                    "<LastModified>1970-01-01T00:00:00.000Z</LastModified>"
                    '<ETag>"0"</ETag></Contents>'
                )
        return (
            '<?xml version="1.0"?><ListBucketResult>'
            f"<Name>{escape(bucket)}</Name><IsTruncated>false</IsTruncated>"
            f"<KeyCount>{len(found)}</KeyCount>{''.join(found)}</ListBucketResult>"
        ).encode()

    def _answer(self, status: int, body: bytes, content_range: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"0"')
        self.send_header("Last-Modified", email.utils.formatdate(_DATE, usegmt=True))
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...

"""Between a broker and an S3 server: replies that are lost, late, doubled, or errors of the server's own.

An HTTP proxy on a free port. `fault` is asked about each request and says what happens to it.
"""

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 30.0


class Fault(StrEnum):
    """What happens to a request."""

    NONE = "none"
    UNAVAILABLE = "unavailable"  # it does not get there; the answer is 503
    LOST_REPLY = "lost_reply"  # it gets there, and the connection breaks
    TWICE = "twice"  # it gets there twice, and the second answer comes back
    SLOW = "slow"  # it gets there after a while


class Proxy:
    """What stands between."""

    def __init__(self, endpoint: str, url: str) -> None:
        self.endpoint = endpoint
        self.url = url
        self.fault: Callable[[str, str], Fault] = lambda _method, _path: Fault.NONE
        self.seen: list[tuple[str, str, Fault]] = []
        self.slow_seconds = 0.3
        self.ended = threading.Event()

    def forward(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(urlsplit(self.endpoint).netloc, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


@contextlib.contextmanager
def s3_proxy(endpoint: str) -> Iterator[Proxy]:
    """A proxy to the server at `endpoint`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    port = server.socket.getsockname()[1]
    proxy = _Handler.proxies[port] = Proxy(endpoint, f"http://127.0.0.1:{port}")
    thread = threading.Thread(target=server.serve_forever, name="s3-proxy")
    thread.start()
    try:
        yield proxy
    finally:
        proxy.ended.set()
        server.shutdown()
        thread.join(TIMEOUT_SECONDS)
        server.server_close()
        del _Handler.proxies[port]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxies: dict[int, Proxy] = {}  # noqa: RUF012 - by port

    def _handle(self) -> None:
        proxy = self.proxies[self.connection.getsockname()[1]]
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        fault = proxy.fault(self.command, self.path)
        proxy.seen.append((self.command, self.path, fault))
        if fault is Fault.UNAVAILABLE:
            self._answer(503, [], b"")
            return
        if fault is Fault.SLOW:
            proxy.ended.wait(proxy.slow_seconds)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        for _ in range(2 if fault is Fault.TWICE else 1):
            status, answered, data = proxy.forward(self.command, self.path, headers, body)
        if fault is Fault.LOST_REPLY:
            self.close_connection = True
            return
        self._answer(status, answered, data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815 - as the base class wants them

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = next((value for name, value in headers if name.lower() == "content-length"), None)
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass

"""The proxy that breaks networks does break them, each way as it says, and heals."""

import contextlib
import http.client
import socket
import socketserver
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.fault_proxy import FaultProxy, HttpFaultProxy

SECONDS_MAX = 20.0
SILENCE_SECONDS = 0.2


class Echo(socketserver.BaseRequestHandler):
    """Says back what it hears, and keeps it."""

    heard: bytearray

    def handle(self) -> None:
        connection: socket.socket = self.request
        with contextlib.suppress(ConnectionError):
            while data := connection.recv(1 << 16):
                self.heard += data
                connection.sendall(data)


@pytest.fixture
def echo() -> Iterator[tuple[FaultProxy, bytearray]]:
    """A proxy before an echo, and what the echo has heard."""
    heard = bytearray()
    handler = type("Handler", (Echo,), {"heard": heard})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            with FaultProxy(f"127.0.0.1:{server.server_address[1]}") as proxy:
                yield proxy, heard
        finally:
            server.shutdown()
            thread.join()


def dial(proxy: FaultProxy) -> socket.socket:
    host, port = proxy.address.split(":")
    return socket.create_connection((host, int(port)), SECONDS_MAX)


def said(connection: socket.socket, data: bytes) -> bytes:
    """What comes back; nothing when it is silent."""
    connection.sendall(data)
    connection.settimeout(SECONDS_MAX)
    received = b""
    while len(received) < len(data):
        received += connection.recv(1 << 16) or pytest.fail("it ended")
    return received


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(SILENCE_SECONDS)
    try:
        return connection.recv(1) == b"never"
    except TimeoutError:
        return True


def is_refused(proxy: FaultProxy) -> bool:
    try:
        with dial(proxy) as connection:
            return connection.recv(1) == b"never"
    except ConnectionError:
        return True


def test_everything_passes_both_ways(echo: tuple[FaultProxy, bytearray]) -> None:
    proxy, heard = echo
    with dial(proxy) as connection:
        assert said(connection, b"x" * 300_000) == b"x" * 300_000
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert len(heard) == 300_000


def test_a_cut_resets_what_there_is_and_what_comes(echo: tuple[FaultProxy, bytearray]) -> None:
    proxy, _ = echo
    with dial(proxy) as connection:
        assert said(connection, b"before") == b"before"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    assert is_refused(proxy)
    proxy.heal()
    with dial(proxy) as connection:
        assert said(connection, b"after") == b"after"


def test_a_black_hole_holds_everything_back_until_it_is_healed(echo: tuple[FaultProxy, bytearray]) -> None:
    proxy, heard = echo
    with dial(proxy) as old:
        assert said(old, b"a") == b"a"
        proxy.blackhole()
        old.sendall(b"b")
        with dial(proxy) as new:
            new.sendall(b"c")
            assert is_silent(old)
            assert is_silent(new)
            assert heard == b"a"
            proxy.heal()
            new.settimeout(SECONDS_MAX)
            old.settimeout(SECONDS_MAX)
            assert (old.recv(1), new.recv(1)) == (b"b", b"c")


def test_replies_alone_are_dropped_and_such_a_connection_ends_when_it_is_healed(
    echo: tuple[FaultProxy, bytearray],
) -> None:
    proxy, heard = echo
    proxy.drop_replies()
    with dial(proxy) as connection:
        connection.sendall(b"done")
        assert is_silent(connection)
        assert heard == b"done"
        proxy.heal()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_a_delay_comes_before_each_direction(echo: tuple[FaultProxy, bytearray]) -> None:
    proxy, _ = echo
    proxy.delay(SILENCE_SECONDS)
    with dial(proxy) as connection:
        connection.sendall(b"slow")
        assert is_silent(connection)
        connection.settimeout(SECONDS_MAX)
        assert connection.recv(4) == b"slow"


def test_a_server_that_is_not_there_is_a_reset() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
        with FaultProxy(nobody) as proxy, pytest.raises(ConnectionResetError), dial(proxy) as connection:
            connection.recv(1)


class Counting(BaseHTTPRequestHandler):
    """Answers every request with how many of its kind there were."""

    protocol_version = "HTTP/1.1"
    seen: list[str]

    def do_GET(self) -> None:
        size_bytes = int(self.headers.get("content-length", "0"))
        self.seen.append(f"{self.command} {self.rfile.read(size_bytes).decode()}")
        body = str(len(self.seen)).encode()
        self.send_response(200)
        if self.command == "GET":
            self.send_header("transfer-encoding", "chunked")
            body = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
        else:
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_PUT = do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Nothing."""


class QuietServer(ThreadingHTTPServer):
    """A connection that is reset is what these tests are about."""

    def handle_error(self, request: object, client_address: object) -> None:
        assert isinstance(sys.exc_info()[1], ConnectionError), sys.exc_info()


@pytest.fixture
def web() -> Iterator[tuple[HttpFaultProxy, list[str]]]:
    """A proxy before a web server, and what the server has seen."""
    seen: list[str] = []
    handler = type("Handler", (Counting,), {"seen": seen})
    with QuietServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            with HttpFaultProxy(f"127.0.0.1:{server.server_address[1]}") as proxy:
                yield proxy, seen
        finally:
            server.shutdown()
            thread.join()


def asked(connection: http.client.HTTPConnection, method: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection.request(method, "/", body)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_requests_pass_one_after_the_other_on_one_connection(web: tuple[HttpFaultProxy, list[str]]) -> None:
    proxy, seen = web
    connection = http.client.HTTPConnection(proxy.address, timeout=SECONDS_MAX)
    assert asked(connection, "GET") == (200, b"1")
    assert asked(connection, "HEAD") == (200, b"")
    assert asked(connection, "PUT", b"body") == (200, b"3")
    connection.close()
    assert seen == ["GET ", "HEAD ", "PUT body"]
    assert proxy.connections == 1


def test_the_next_requests_fail_without_reaching_the_server(web: tuple[HttpFaultProxy, list[str]]) -> None:
    proxy, seen = web
    proxy.fail_next(2, 500)
    connection = http.client.HTTPConnection(proxy.address, timeout=SECONDS_MAX)
    assert [asked(connection, "PUT", b"x")[0] for _ in range(3)] == [500, 500, 200]
    connection.close()
    assert len(seen) == 1
    assert proxy.counts["failed"] == 2


def test_a_put_arrives_twice_and_the_second_answer_counts(web: tuple[HttpFaultProxy, list[str]]) -> None:
    proxy, seen = web
    proxy.duplicate_puts(1)
    connection = http.client.HTTPConnection(proxy.address, timeout=SECONDS_MAX)
    assert asked(connection, "GET") == (200, b"1")
    assert asked(connection, "PUT", b"x") == (200, b"3")
    assert asked(connection, "PUT", b"y") == (200, b"4")
    connection.close()
    assert seen == ["GET ", "PUT x", "PUT x", "PUT y"]


def test_a_reply_is_lost_after_the_request_was_done(web: tuple[HttpFaultProxy, list[str]]) -> None:
    proxy, seen = web
    proxy.lose_replies(1)
    connection = http.client.HTTPConnection(proxy.address, timeout=SECONDS_MAX)
    with pytest.raises(ConnectionError):
        asked(connection, "PUT", b"x")
    connection.close()
    assert seen == ["PUT x"]
    assert asked(connection, "PUT", b"x") == (200, b"2")
    connection.close()

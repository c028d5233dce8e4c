"""Real etcd servers for tests, on free ports of this machine: one, or a cluster; killed, paused, started again.

```
with EtcdServer(tmp_path) as server:            # or EtcdCluster(tmp_path, 3)
    … server.endpoints, server.url …
    server.kill(); server.restart()             # the same port and data
```
A test module that imports the fixture `etcd` gets a server that its tests share, one for each pytest worker: use a
prefix of your own (`etcd.new_prefix()`), and do nothing to it that others would feel.

Calls block until the server answers, so from a running loop use `asyncio.to_thread`. Without an etcd on this machine
tests fail and say how to get one, or are left out where the run is told so (tests/support/needs.py).
"""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from sulina.cli.cluster.local import find_etcd
from tests.support import needs

START_SECONDS_MAX = 60.0
START_ATTEMPTS_MAX = 3  # a port that was free may be taken before the server has it
ASK_SECONDS = 0.02
CALL_SECONDS_MAX = 10.0
ALONE = ("--heartbeat-interval=60", "--election-timeout=600")  # nobody else can stand; leases may last only 1 s

SMALL = (
    "--logger=zap",
    "--log-level=warn",
    "--snapshot-count=1000",
    f"--quota-backend-bytes={256 << 20}",
    "--max-txn-ops=128",  # the default, and what users have
)


class NotStarted(Exception):
    """The server ended, or did not answer in time."""


class EtcdServer:
    """One member, by default of a cluster of one. Its data goes with `close`."""

    def __init__(self, directory: Path, *, name: str = "etcd", arguments: Sequence[str] = (), is_tls: bool = False):
        self.name = name
        self.arguments = list(arguments)
        needs.require("etcd")
        self._binary = find_etcd()
        self._scheme = "https" if is_tls else "http"
        directory.mkdir(parents=True, exist_ok=True)
        self._home = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=directory))
        self._process: subprocess.Popen[bytes] | None = None
        self.peers: Sequence[EtcdServer] = [self]
        self.tls_context: ssl.SSLContext | None = None  # how to talk to it, where it has TLS
        self.choose_ports()

    def choose_ports(self) -> None:
        """Other ports than before, free at this moment."""
        self.port, self.peer_port = free_ports(2)

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def endpoints(self) -> list[str]:
        return [self.endpoint]

    @property
    def url(self) -> str:
        """As `--metadata` takes it."""
        return f"etcd{'s' if self._scheme == 'https' else ''}://{self.endpoint}"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} does not run"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def new_prefix(self) -> str:
        """For a test that shares the server with others."""
        return f"/test-{random.SystemRandom().getrandbits(64):016x}"

    def start(self) -> None:
        """Start it on new ports if the first are taken meanwhile, and wait until it answers."""
        for attempt in range(START_ATTEMPTS_MAX):
            self.launch()
            try:
                self.wait_ready()
                return
            except NotStarted as failure:
                self.kill()
                if attempt == START_ATTEMPTS_MAX - 1 or len(self.peers) > 1:
                    pytest.fail(f"etcd did not start: {failure}\n{self.log()[-4000:]}")
                self.choose_ports()

    def launch(self) -> None:
        """Start the process, and do not wait for it."""
        assert not self.is_running
        peers = ",".join(f"{peer.name}=http://127.0.0.1:{peer.peer_port}" for peer in self.peers)
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._binary,
                    f"--name={self.name}",
                    f"--data-dir={self._home / 'data'}",
                    f"--listen-client-urls={self._scheme}://{self.endpoint}",
                    f"--advertise-client-urls={self._scheme}://{self.endpoint}",
                    f"--listen-peer-urls=http://127.0.0.1:{self.peer_port}",
                    f"--initial-advertise-peer-urls=http://127.0.0.1:{self.peer_port}",
                    f"--initial-cluster={peers}",
                    *SMALL,
                    *self.arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={key: value for key, value in os.environ.items() if not key.startswith("ETCD_")},
            )

    def wait_ready(self) -> None:
        """Return when it has a leader and answers. There is no event to wait for: ask until it does."""
        deadline = time.monotonic() + START_SECONDS_MAX
        failure: Exception | None = None
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                raise NotStarted(f"it ended with {self._process and self._process.returncode}")
            try:
                if int(self.status().get("leader", 0)):
                    return
            except urllib.error.HTTPError as error:
                failure = error
                error.close()
            except OSError as error:
                failure = error
            time.sleep(ASK_SECONDS)
        raise NotStarted(f"no answer in {START_SECONDS_MAX} s: {failure}")

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9, also of a paused one. No error when it does not run."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start it again, after ending it if it runs, with the port and the data that it had."""
        self.kill()
        self.launch()
        try:
            self.wait_ready()
        except NotStarted as failure:
            pytest.fail(f"etcd did not start again: {failure}\n{self.log()[-4000:]}")

    def save(self, to: Path) -> None:
        """Keep a snapshot of what it has now, as docs/guides/operations.md says."""
        self._etcdctl("snapshot", "save", str(to), f"--endpoints={self.endpoint}")

    def go_back(self, to: Path | None) -> None:
        """Restart it with what a snapshot has, or with nothing."""
        self.kill()
        shutil.rmtree(self._home / "data")
        if to is not None:
            address = f"http://127.0.0.1:{self.peer_port}"
            self._etcdctl(
                "snapshot",
                "restore",
                str(to),
                f"--data-dir={self._home / 'data'}",
                f"--name={self.name}",
                f"--initial-cluster={self.name}={address}",
                f"--initial-advertise-peer-urls={address}",
            )
        self.restart()

    def _etcdctl(self, *words: str) -> None:
        program = shutil.which("etcdctl") or shutil.which("etcdctl", path=os.path.dirname(sys.executable))
        assert program is not None, "there is no etcdctl: `make etcd` fetches it"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ETCD")}
        done = subprocess.run(
            [program, *words], env=environment | {"ETCDCTL_API": "3"}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing. On a busy machine that takes a moment."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it, and delete its data."""
        self.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    def log(self) -> str:
        """What it has printed."""
        path = self._home / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def call(self, path: str, body: object = None, *, seconds: float = CALL_SECONDS_MAX, token: str = "") -> Any:
        """A call of etcd's JSON gateway. Bytes are base64 there, and numbers of 64 bits are strings."""
        request = urllib.request.Request(
            f"{self._scheme}://{self.endpoint}/v3/{path}", data=json.dumps(body or {}).encode(), method="POST"
        )
        if token:
            request.add_header("Authorization", token)
        with urllib.request.urlopen(request, timeout=seconds, context=self.tls_context) as answer:
            return json.loads(answer.read())

    def status(self) -> dict[str, Any]:
        """As the member sees it; without "leader" when there is none."""
        status: dict[str, Any] = self.call("maintenance/status", seconds=2.0)
        return status

    def compact(self, revision: int) -> None:
        """Forget the history up to and with `revision`."""
        self.call("kv/compaction", {"revision": revision, "physical": True})

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self, with_signal: signal.Signals) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(with_signal)
            self._process.wait(START_SECONDS_MAX)
            self._process = None


class EtcdCluster:
    """Several members. As with one server: `start` and `close`, or `with`."""

    def __init__(self, directory: Path, members: int = 3, *, arguments: Sequence[str] = ()):
        names = [f"etcd{number}" for number in range(members)]
        ports = free_ports(2 * members)
        self.members = [EtcdServer(directory, name=name, arguments=arguments) for name in names]
        for member in self.members:
            member.port, member.peer_port = ports.pop(), ports.pop()
            member.peers = self.members

    @property
    def endpoints(self) -> list[str]:
        return [member.endpoint for member in self.members]

    @property
    def url(self) -> str:
        return f"etcd://{','.join(self.endpoints)}"

    def start(self) -> None:
        for member in self.members:
            member.launch()
        for member in self.members:
            try:
                member.wait_ready()
            except NotStarted as failure:
                pytest.fail(f"{member.name} did not start: {failure}\n{member.log()[-4000:]}")

    def leader(self) -> EtcdServer:
        """The member that leads, as soon as a majority agrees on it."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if found := self._leader():
                return found
            time.sleep(ASK_SECONDS)
        raise AssertionError("the cluster has no leader")

    def followers(self) -> list[EtcdServer]:
        leader = self.leader()
        return [member for member in self.members if member is not leader]

    def close(self) -> None:
        for member in self.members:
            member.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _leader(self) -> EtcdServer | None:
        votes: dict[str, int] = {}
        by_id: dict[str, EtcdServer] = {}
        for member in self.members:
            if not member.is_running:
                continue
            try:
                status = member.status()
            except urllib.error.HTTPError as error:
                error.close()
                continue
            except OSError:
                continue
            by_id[status["header"]["member_id"]] = member
            if leader := status.get("leader"):
                votes[leader] = votes.get(leader, 0) + 1
        for member_id, count in votes.items():
            if count > len(self.members) // 2 and member_id in by_id:
                return by_id[member_id]
        return None


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """A server that the tests of a module share."""
    with EtcdServer(tmp_path_factory.mktemp("etcd"), arguments=ALONE) as server:
        yield server


def free_ports(count: int) -> list[int]:
    """Ports below those that this machine gives to outgoing connections: none of these takes one while its server is
    down, and no client that tries to reach the server then meets itself."""
    range_path = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(range_path.read_text().split()[0]) if range_path.exists() else 32_768
    chance = random.SystemRandom()
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(ports) < count:
            port = chance.randrange(first // 2, first)
            bound = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                bound.bind(("127.0.0.1", port))
                ports.append(port)
    return ports

"""A cluster on this machine: an etcd and brokers, each a process that can be killed.

The command that starts it holds a lock on the directory, and so do its processes: a second cluster never runs on the
same data, even if a killed command has left processes behind.
"""

import asyncio
import contextlib
import fcntl
import os
import random
import shutil
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from sulina.errors import InvalidSettings, NotServing
from sulina.json_values import decode_json

HOST = "127.0.0.1"
READY_SECONDS_MAX = 120.0  # the first time, kernels are compiled
ETCD_READY_SECONDS_MAX = 30.0
KNOWN_SECONDS_MAX = 30.0
ETCD_ATTEMPTS_MAX = 3  # a port that was free may be taken before etcd has it
STOP_SECONDS_MAX = 60.0
ASK_SECONDS = 0.05
WORDS_BYTES = 4096  # of a log, to find the last words
# A single member need not wait for others, and leases may be short.
ETCD_FLAGS = ("--heartbeat-interval=20", "--election-timeout=200", "--logger=zap", "--log-level=warn")


class Child:
    """A process with a name and a log file, which can be started more than once."""

    def __init__(self, name: str, directory: str, lock: int) -> None:
        self.name = name
        self.log = os.path.join(directory, f"{name}.log")
        self.url = ""
        self.is_ready = False
        self.ended: str | None = None  # how, if it has ended without being told to
        self._directory, self._lock = directory, lock
        self._process: asyncio.subprocess.Process | None = None
        self._is_ending = False

    @property
    def pid(self) -> int | None:
        """Return the process ID, or None while it is not running."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def launch(self, command: Sequence[str], environment: Mapping[str, str]) -> asyncio.subprocess.Process:
        """Start the process, with standard error in its log file."""
        mode = os.O_TRUNC if self._process is None else os.O_APPEND
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | mode, 0o644)
        self.ended, self._is_ending = None, False
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the terminal is for the command that started the cluster
                env=dict(environment),
                cwd=self._directory,  # away from a sulina.toml of the reader's own
                pass_fds=[self._lock],
            )
        finally:
            os.close(log)
        return self._process

    async def wait_died(self) -> None:
        """Wait until the process ends without a stop or kill; for ever if it was stopped."""
        assert self._process is not None
        code = await self._process.wait()
        if self._is_ending:
            await asyncio.Event().wait()
        self.is_ready = False
        self.ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"

    async def stop(self) -> None:
        """Stop the process with SIGTERM; kill it if that takes too long."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """Kill the process with SIGKILL."""
        await self._end(signal.SIGKILL)

    async def _end(self, number: int) -> None:
        self._is_ending, self.is_ready = True, False
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def last_words(self) -> str:
        """Return the last line of the log file."""
        with contextlib.suppress(OSError), open(self.log, "rb") as log:
            log.seek(max(0, os.path.getsize(self.log) - WORDS_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
            if lines:
                return lines[-1]
        return f"its log {self.log} is empty"


class Etcd(Child):
    """An etcd with one member."""

    def __init__(self, directory: str, lock: int, binary: str) -> None:
        super().__init__("etcd", directory, lock)
        self._binary = binary
        self._ports: list[int] = []  # of the first start

    async def start(self) -> None:
        """Start etcd, and wait until it answers. A restart uses the same ports.

        Raises:
            NotServing: it did not start.
        """
        for _ in range(ETCD_ATTEMPTS_MAX):
            client, peer = ports = self._ports or free_ports(2)
            own, others = f"http://{HOST}:{client}", f"http://{HOST}:{peer}"
            command = [
                self._binary,
                "--name=etcd",
                f"--data-dir={os.path.join(self._directory, 'etcd')}",
                f"--listen-client-urls={own}",
                f"--advertise-client-urls={own}",
                f"--listen-peer-urls={others}",
                f"--initial-advertise-peer-urls={others}",
                f"--initial-cluster=etcd={others}",
                *ETCD_FLAGS,
            ]
            kept = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
            process = await self.launch(command, kept)
            if await self._answers(own, process):
                self.url, self.is_ready, self._ports = f"etcd://{HOST}:{client}", True, ports
                return
            await self.kill()
        raise NotServing(reason=f"etcd did not start: {self.last_words()}")

    async def _answers(self, url: str, process: asyncio.subprocess.Process) -> bool:
        until = time.monotonic() + ETCD_READY_SECONDS_MAX
        while process.returncode is None and time.monotonic() < until:
            with contextlib.suppress(OSError):
                if b'"true"' in await asyncio.to_thread(fetched, f"{url}/health", 2.0):
                    return True
            await asyncio.sleep(ASK_SECONDS)
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSettings:
    """The settings that all brokers of a cluster share."""

    metadata: str
    objects: str
    lease_seconds: float


class BrokerChild(Child):
    """A `sulina serve` process that is a broker of the cluster."""

    def __init__(self, name: str, directory: str, lock: int, port: int) -> None:
        super().__init__(name, directory, lock)
        self._http = f"{HOST}:{port}"

    async def start(self, membership: SharedSettings) -> None:
        """Start the broker, and wait until it answers. A restart uses the same port.

        Raises:
            NotServing: it did not start.
        """
        command = [
            *(sys.executable, "-m", "sulina.cli", "serve", "--json", "--broker-id", self.name, "--http", self._http),
            *("--data", os.path.join(self._directory, self.name), "--log-format", "json"),
            *("--metadata", membership.metadata, "--objects", membership.objects),
            *("--lease-seconds", f"{membership.lease_seconds:g}"),
        ]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SULINA_")}
        process = await self.launch(command, kept)
        assert process.stdout is not None
        line = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_SECONDS_MAX):
                line = await process.stdout.readline()
        if not line:
            await self.kill()
            raise NotServing(reason=f"broker {self.name} did not start: {self.last_words()}")
        self.url = msgspec.json.decode(line)["url"]
        self._http = self.url.removeprefix("http://")
        self.is_ready = True

    async def wait_known(self, brokers: Set[str]) -> None:
        """Return when it knows these brokers: it hears of one a moment after that one has started.

        Raises:
            NotServing: it did not hear of all of them in time.
        """
        from sulina.wire.messages import ClusterInfo

        unknown, until = brokers, time.monotonic() + KNOWN_SECONDS_MAX
        while time.monotonic() < until:
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                body = await asyncio.to_thread(fetched, f"{self.url}/v1/cluster", KNOWN_SECONDS_MAX)
                found = decode_json(body, ClusterInfo).brokers
                unknown = brokers - {each.broker_id for each in found if each.state != "unreachable"}
                if not unknown:
                    return
            await asyncio.sleep(ASK_SECONDS)
        raise NotServing(
            reason=f"broker {self.name} does not hear of {', '.join(sorted(unknown))}: {self.last_words()}"
        )


class LocalCluster:
    """An etcd and brokers on this machine. Calls `on_event` when a process dies, and restarts it if asked to."""

    def __init__(
        self, directory: str, *, brokers: int, port: int, lease_seconds: float, restart_seconds: float | None
    ) -> None:
        self.directory = directory
        self.on_event: Callable[[str], None] = lambda _: None
        self._lease_seconds, self._restart_seconds = lease_seconds, restart_seconds
        binary = find_etcd()
        self._lock = _locked(directory)  # before the ports: a cluster that runs there already has them too
        try:
            ports = broker_ports(port, brokers)
        except InvalidSettings:
            os.close(self._lock)
            raise
        self.etcd = Etcd(directory, self._lock, binary)
        self.brokers = [
            BrokerChild(f"b{number}", directory, self._lock, port) for number, port in enumerate(ports, start=1)
        ]
        self._is_new = not os.path.exists(os.path.join(directory, "objects"))
        self._watching: list[asyncio.Task[None]] = []

    @property
    def membership(self) -> SharedSettings:
        """Return the settings of brokers that start now; etcd has another port in each run."""
        objects = f"file://{quote(os.path.join(self.directory, 'objects'))}"
        return SharedSettings(metadata=self.etcd.url, objects=objects, lease_seconds=self._lease_seconds)

    async def start(self) -> None:
        """Start etcd and the brokers, and wait until all answer and know each other.

        Raises:
            NotServing: one of them did not start, or does not hear of the others.
        """
        os.makedirs(os.path.join(self.directory, "objects"), exist_ok=True)
        await self.etcd.start()
        waiting = list(self.brokers)
        if self._is_new:
            await waiting.pop(0).start(self.membership)  # alone: it may have kernels to compile, once for all
        await asyncio.gather(*(broker.start(self.membership) for broker in waiting))
        names = {broker.name for broker in self.brokers}
        await asyncio.gather(*(broker.wait_known(names) for broker in self.brokers))
        self._note_processes()
        self._watching = [
            asyncio.create_task(self._look_after(child), name=f"look after {child.name}")
            for child in (self.etcd, *self.brokers)
        ]

    async def stop(self) -> None:
        """Stop the brokers, all at once so that none takes partitions of another, then etcd."""
        for task in self._watching:
            task.cancel()
        if self._watching:
            await asyncio.wait(self._watching)
        await asyncio.gather(*(broker.stop() for broker in self.brokers))
        await self.etcd.stop()
        os.close(self._lock)

    async def kill(self) -> None:
        """Kill all processes."""
        await asyncio.gather(*(child.kill() for child in (*self.brokers, self.etcd)))

    async def _look_after(self, child: Child) -> None:
        while True:
            await child.wait_died()
            self.on_event(f"{child.name} has died: {child.ended}")
            if self._restart_seconds is None:
                return
            await asyncio.sleep(self._restart_seconds)
            try:
                if isinstance(child, BrokerChild):
                    await child.start(self.membership)
                else:
                    await self.etcd.start()
            except NotServing as error:
                self.on_event(str(error))
                return
            self._note_processes()
            self.on_event(f"{child.name} was restarted as process {child.pid}")

    def _note_processes(self) -> None:
        """Write the process IDs into the lock file, for the error of a second start."""
        text = ", ".join(f"{child.name} {child.pid}" for child in (self.etcd, *self.brokers))
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"process {os.getpid()}, {text}".encode(), 0)


def find_etcd() -> str:
    """Return the path of etcd: SULINA_ETCD, the one in PATH, or the one that `make etcd` put beside this Python.

    Raises:
        InvalidSettings: there is no etcd, or SULINA_ETCD is not a program.
    """
    given = os.environ.get("SULINA_ETCD")
    if given:
        if not os.access(given, os.X_OK):
            raise InvalidSettings(f"SULINA_ETCD={given} is not an executable file")
        return given
    beside = os.path.dirname(sys.executable)
    found = shutil.which("etcd") or shutil.which("etcd", path=beside)
    if found is None:
        error = InvalidSettings("a cluster needs etcd, and etcd is not installed on this machine")
        error.add_note(
            "install etcd 3.4 or newer (Debian, Ubuntu: apt-get install etcd-server), run `make etcd` in a checkout of "
            "Sulina, or set SULINA_ETCD to its path"
        )
        raise error
    return found


def free_ports(count: int) -> list[int]:
    """Return free ports below the range of outgoing connections, which could take one while its server is down."""
    chance = random.SystemRandom()
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(ports) < count:
            port = chance.randrange(16_384, 32_768)
            bound = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                bound.bind((HOST, port))
                ports.append(port)
    return ports


def broker_ports(first: int, count: int) -> list[int]:
    """Return a port for each broker, the first one as given.

    Raises:
        InvalidSettings: the first port is in use.
    """
    if first == 0:
        return free_ports(count)
    if not _is_free(first):
        error = InvalidSettings(f"--port {first}: {HOST}:{first} is in use by another process")
        error.add_note("stop that process, or choose another port (0 picks free ports)")
        raise error
    others = [port if port < 65536 and _is_free(port) else free_ports(1)[0] for port in range(first + 1, first + count)]
    return [first, *others]


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
    return True


def _locked(directory: str) -> int:
    """Lock a directory, created if it does not exist, and return the file descriptor of the lock.

    Raises:
        InvalidSettings: a cluster runs in the directory, or it cannot be written.
    """
    try:
        os.makedirs(directory, exist_ok=True)
        lock = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InvalidSettings(f"--data {directory}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holders = os.pread(lock, WORDS_BYTES, 0).decode(errors="replace")
        os.close(lock)
        taken = InvalidSettings(f"--data {directory}: a cluster runs there already ({holders or 'it is starting'})")
        taken.add_note("stop it, or choose another directory")
        raise taken from None
    return lock


def fetched(url: str, timeout_seconds: float) -> bytes:
    """Return the body of the answer to a GET request; OSError if it is not answered."""
    with urllib.request.urlopen(url, timeout=timeout_seconds) as answer:
        body: bytes = answer.read()
        return body

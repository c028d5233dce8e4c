"""A cluster on this machine, to try things out: an etcd and brokers, each a real process that can be killed for real.

Whoever starts it holds a lock on its directory, and so do its processes: a second cluster never runs on the same data,
also not beside what a killed one has left behind.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from sulina.errors import InvalidSettings, NotServing

HOST = "127.0.0.1"
READY_SECONDS_MAX = 120.0  # the first time, kernels are compiled
ETCD_READY_SECONDS_MAX = 30.0
ETCD_ATTEMPTS_MAX = 3  # a port that was free may be taken before etcd has it
STOP_SECONDS_MAX = 60.0
ASK_SECONDS = 0.05
WORDS_BYTES = 4096  # of a log, to find the last words
# It is alone, so it need not wait for others; and leases may be short.
ETCD_FLAGS = ("--heartbeat-interval=20", "--election-timeout=200", "--logger=zap", "--log-level=warn")


class Child:
    """A process with a name and a log, started again and again."""

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
        """None while it is not running."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def launch(self, command: Sequence[str], environment: Mapping[str, str]) -> asyncio.subprocess.Process:
        """Start the process; what it says goes to its log."""
        begins_anew = os.O_TRUNC if self._process is None else os.O_APPEND
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | begins_anew, 0o644)
        self.ended, self._is_ending = None, False
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the terminal is for whoever started the cluster
                env=dict(environment),
                cwd=self._directory,  # away from a sulina.toml of the reader's own
                pass_fds=[self._lock],
            )
        finally:
            os.close(log)
        return self._process

    async def wait_died(self) -> None:
        """Return when the process has ended without being told to; else never."""
        assert self._process is not None
        code = await self._process.wait()
        if self._is_ending:
            await asyncio.Event().wait()
        self.is_ready = False
        self.ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"

    async def stop(self) -> None:
        """As an operator would; by force if that takes too long."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """kill -9."""
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
        """The last line of its log."""
        with contextlib.suppress(OSError), open(self.log, "rb") as log:
            log.seek(max(0, os.path.getsize(self.log) - WORDS_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
            if lines:
                return lines[-1]
        return f"it said nothing; its log is {self.log}"


class Etcd(Child):
    """The one member of an etcd."""

    def __init__(self, directory: str, lock: int, binary: str) -> None:
        super().__init__("etcd", directory, lock)
        self._binary = binary
        self._ports: list[int] = []  # that it has had

    async def start(self) -> None:
        """Return when it answers; from the second time on at the same port. NotServing."""
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
    """What all brokers of a cluster are told."""

    metadata: str
    objects: str
    lease_seconds: float


class BrokerChild(Child):
    """`sulina serve`, as a broker of the cluster."""

    def __init__(self, name: str, directory: str, lock: int, port: int) -> None:
        super().__init__(name, directory, lock)
        self._http = f"{HOST}:{port}"

    async def start(self, membership: SharedSettings) -> None:
        """Return when it answers; from the second time on at the same port. NotServing."""
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


class LocalCluster:
    """`start` it; `stop` it. Processes that die are told to `on_event`, and started again if that is wanted."""

    def __init__(
        self, directory: str, *, brokers: int, port: int, lease_seconds: float, restart_seconds: float | None
    ) -> None:
        self.directory = directory
        self.on_event: Callable[[str], None] = lambda _: None
        self._lease_seconds, self._restart_seconds = lease_seconds, restart_seconds
        binary = find_etcd()
        self._lock = _locked(directory)  # first: of a cluster that runs there already, the ports are taken too
        try:
            ports = _ports(port, brokers)
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
        """As brokers are told now; etcd has another port each time."""
        objects = f"file://{quote(os.path.join(self.directory, 'objects'))}"
        return SharedSettings(metadata=self.etcd.url, objects=objects, lease_seconds=self._lease_seconds)

    async def start(self) -> None:
        """Return when all answer. NotServing."""
        os.makedirs(os.path.join(self.directory, "objects"), exist_ok=True)
        await self.etcd.start()
        waiting = list(self.brokers)
        if self._is_new:
            await waiting.pop(0).start(self.membership)  # alone: it may have kernels to compile, once for all
        await asyncio.gather(*(broker.start(self.membership) for broker in waiting))
        self._note_processes()
        self._watching = [
            asyncio.create_task(self._look_after(child), name=f"look after {child.name}")
            for child in (self.etcd, *self.brokers)
        ]

    async def stop(self) -> None:
        """Brokers first, all at once, so that none takes over what another lets go; then etcd."""
        for task in self._watching:
            task.cancel()
        if self._watching:
            await asyncio.wait(self._watching)
        await asyncio.gather(*(broker.stop() for broker in self.brokers))
        await self.etcd.stop()
        os.close(self._lock)

    async def kill(self) -> None:
        """At once."""
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
            self.on_event(f"{child.name} was started again, as process {child.pid}")

    def _note_processes(self) -> None:
        """In the lock, for whoever finds it held."""
        text = ", ".join(f"{child.name} {child.pid}" for child in (self.etcd, *self.brokers))
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"process {os.getpid()}, {text}".encode(), 0)


def find_etcd() -> str:
    """SULINA_ETCD, the one of the PATH, or the one that `make etcd` put beside this Python. InvalidSettings."""
    given = os.environ.get("SULINA_ETCD")
    if given:
        if not os.access(given, os.X_OK):
            raise InvalidSettings(f"environment SULINA_ETCD: {given} is no program")
        return given
    beside = os.path.dirname(sys.executable)
    found = shutil.which("etcd") or shutil.which("etcd", path=beside)
    if found is None:
        error = InvalidSettings("a cluster needs etcd, and there is none on this machine")
        error.add_note(
            "install etcd 3.4 or newer (Debian, Ubuntu: apt-get install etcd-server), run `make etcd` in a checkout of "
            "Sulina, or set SULINA_ETCD to its path"
        )
        raise error
    return found


def free_ports(count: int) -> list[int]:
    """Ports below those of outgoing connections: none of these takes one while its server is down."""
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


def _ports(first: int, count: int) -> list[int]:
    """One for each broker, the first as it was asked for. InvalidSettings when that one is taken."""
    if first == 0:
        return free_ports(count)
    if not _is_free(first):
        error = InvalidSettings(f"--port {first}: {HOST}:{first} is in use by another process")
        error.add_note("end it, or choose another; port 0 takes any that are free")
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
    """The lock of a directory, made if there is none. InvalidSettings when somebody has it."""
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
        taken.add_note("end it, or choose another directory")
        raise taken from None
    return lock


def fetched(url: str, timeout_seconds: float) -> bytes:
    """What a URL answers. OSError."""
    with urllib.request.urlopen(url, timeout=timeout_seconds) as answer:
        body: bytes = answer.read()
        return body

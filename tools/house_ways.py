"""Hops and modules on five ways through Sulina, counted by tracing real processes.

A hop is a named function or method of `src/sulina` that is entered or resumed; it counts once. Left out: module level
and class bodies, lambdas, comprehensions, constructors, properties, generated and compiled code, and what runs without
the way too. A way is run several times; a function counts if it is entered in every run, and in none of the phases
without the way. A crossing is a hop that is entered from another module, or by the event loop: what a reader has to
look for elsewhere.
"""

import ast
import contextlib
import http.client
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tools.house_rules import Function, is_property

TRACE = Path(__file__).parent / "trace"
CONSTRUCTORS = {"__init__", "__post_init__", "__new__", "__init_subclass__"}
RUNS = 5
IDLE_SECONDS = 12.0  # longer than what brokers do from time to time
SETTLE_SECONDS = 0.8  # what follows an answer: cursors, reports, clean-up
QUIET_SECONDS = 2.0
WAIT_SECONDS = 90.0
BROKERS = ("b1", "b2", "b3")
PIPELINE = """
name = "house"
url = "{url}"
tables = "{tables}"

[[bronze]]
table = "raw"
topic = "/default/house"
"""


@dataclass(frozen=True, slots=True, order=True)
class Hop:
    """A function that was entered, and in what kind of process."""

    role: str
    file: str
    name: str


@dataclass(frozen=True, slots=True)
class Way:
    """What was found about one of the five."""

    name: str
    hops: tuple[Hop, ...]
    crossings: frozenset[Hop]

    @property
    def figures(self) -> dict[str, int]:
        """How many there are of each; a function that two kinds of processes enter is one."""
        return {
            "hops": len({(hop.file, hop.name) for hop in self.hops}),
            "crossings": len({(hop.file, hop.name) for hop in self.crossings}),
            "modules": len({hop.file for hop in self.hops}),
        }

    @property
    def lines(self) -> list[str]:
        """The hops; `>` marks the crossings."""
        return [f"{'> '[hop not in self.crossings]} {hop.role:<10} {hop.file}  {hop.name}" for hop in self.hops]


@dataclass(slots=True)
class Child:
    """A process that tells what it does in lines."""

    process: subprocess.Popen[str]

    def line(self) -> str:
        """Return its next line.

        Raises:
            TimeoutError: it said nothing in time.
        """
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(WAIT_SECONDS):
                raise TimeoutError(f"{self.process.args!r} says nothing")
        return self.process.stdout.readline().strip()

    def expect(self, word: str) -> None:
        """Wait for a line that is this word."""
        line = self.line()
        assert line == word, f"{self.process.args!r} said {line!r} instead of {word!r}"

    def tell(self, word: str) -> None:
        """Give it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def processor_seconds(self) -> float:
        """Return how much of a processor it has used; 0 where the system does not say."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(slots=True)
class Tracer:
    """Starts processes whose functions are recorded, and says in which phase they are."""

    tree: Path
    folder: Path
    _phases: int = 0
    _ways: list[int] = field(default_factory=list)
    _others: list[int] = field(default_factory=list)
    _children: list[Child] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "phase").write_bytes(b"\0")
        (self.folder / "seen").touch()

    @property
    def python(self) -> str:
        """The Python of the tree, where it has one."""
        own = self.tree / ".venv" / "bin" / "python"
        return str(own) if own.exists() else sys.executable

    def environment(self, role: str) -> dict[str, str]:
        """Return variables with which a Python process is traced; without a role it is not."""
        path = [str(TRACE), str(self.tree / "src")]
        found = {name: value for name, value in os.environ.items() if not name.startswith(("SULINA_", "HOUSE_"))}
        found |= {"PYTHONPATH": os.pathsep.join(path), "COLUMNS": "100"}
        if role:
            package = str(self.tree / "src" / "sulina") + os.sep
            found |= {"HOUSE_TRACE": str(self.folder), "HOUSE_PACKAGE": package, "HOUSE_ROLE": role}
        return found

    def start(self, role: str, *words: str) -> Child:
        """Start a Python process."""
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [self.python, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environment(role),
                cwd=self.folder,
            )
        child = Child(process)
        self._children.append(child)
        return child

    def run(self, role: str, *words: str) -> None:
        """Run a command of the CLI to its end."""
        command = [self.python, "-m", "sulina.cli", *words]
        done = subprocess.run(
            command, env=self.environment(role), cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"

    @contextlib.contextmanager
    def way(self) -> Iterator[None]:
        """Trace one run of the way, and what follows it at once."""
        with self._phase(self._ways):
            yield
            time.sleep(SETTLE_SECONDS)

    @contextlib.contextmanager
    def without_way(self) -> Iterator[None]:
        """Trace what runs without the way too, once every process has finished what it does at its start."""
        _wait(self._is_quiet, "processes are at rest")
        with self._phase(self._others):
            yield
            time.sleep(IDLE_SECONDS)

    def _is_quiet(self) -> bool:
        before = [child.processor_seconds() for child in self._children]
        time.sleep(QUIET_SECONDS)
        after = [child.processor_seconds() for child in self._children]
        return all(new - old < QUIET_SECONDS / 10 for old, new in zip(before, after, strict=True))

    @contextlib.contextmanager
    def _phase(self, kind: list[int]) -> Iterator[None]:
        self._phases += 1
        kind.append(self._phases)
        self._set(self._phases)
        try:
            yield
        finally:
            self._set(0)

    def _set(self, phase: int) -> None:
        with (self.folder / "phase").open("r+b") as file:
            file.write(bytes([phase]))

    def found(self, name: str) -> Way:
        """Return the hops of the way that was traced."""
        seen: dict[int, set[Hop]] = {phase: set() for phase in range(self._phases + 1)}
        crossed: dict[int, set[Hop]] = {phase: set() for phase in range(self._phases + 1)}
        counted = set(_functions(self.tree / "src" / "sulina"))
        for line in (self.folder / "seen").read_text().splitlines():
            phase, role, file, number, qualname, is_crossing = line.split("\t")
            if (file, int(number)) not in counted or "_pb2" in file:
                continue
            short = os.path.relpath(file, self.tree / "src" / "sulina")
            hop = Hop(role, short, qualname.replace("<locals>.", ""))
            seen[int(phase)].add(hop)
            if is_crossing == "1":
                crossed[int(phase)].add(hop)
        also_without = set[Hop]().union(*(seen[phase] for phase in self._others))
        hops = set.intersection(*(seen[phase] for phase in self._ways)) - also_without
        crossings = set.intersection(*(crossed[phase] for phase in self._ways)) - also_without
        return Way(name, tuple(sorted(hops)), frozenset(crossings))


def _functions(package: Path) -> Iterator[tuple[str, int]]:
    """Yield where each function begins that can be a hop; a class body runs as code too, and does not count."""
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, Function) and not is_property(node) and node.name not in CONSTRUCTORS:
                yield str(path), min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


# Nodes and requests


@contextlib.contextmanager
def node(tracer: Tracer, role: str, *words: str, name: str = "node") -> Iterator[str]:
    """Run a node; its URL."""
    data = tracer.folder / name
    child = tracer.start(
        role, "-m", "sulina.cli", "serve", "--json", "--data", str(data), "--http", "127.0.0.1:0", *words
    )
    try:
        yield json.loads(child.line())["url"]
    finally:
        child.stop()


@contextlib.contextmanager
def cluster(tracer: Tracer) -> Iterator[dict[str, str]]:
    """Run etcd and three brokers; their URLs by name."""
    program = shutil.which("etcd") or shutil.which("etcd", path=os.path.dirname(tracer.python))
    program = program or shutil.which("etcd", path=os.path.dirname(sys.executable))
    if program is None:
        raise FileNotFoundError("etcd: run `make etcd` first")
    clients, peers = (f"http://127.0.0.1:{port}" for port in _free_ports(2))
    words = [program, "--data-dir", str(tracer.folder / "etcd"), "--name", "etcd", "--log-level", "error"]
    words += ["--listen-client-urls", clients, "--advertise-client-urls", clients, "--listen-peer-urls", peers]
    words += ["--initial-advertise-peer-urls", peers, "--initial-cluster", f"etcd={peers}"]
    etcd = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (tracer.folder / "objects").mkdir()
    common = ["--metadata", f"etcd://{clients.removeprefix('http://')}/house"]
    common += ["--objects", f"file://{tracer.folder / 'objects'}"]
    try:
        _wait(lambda: _answers(clients), "etcd answers")
        with contextlib.ExitStack() as stack:
            nodes = {
                name: stack.enter_context(node(tracer, "broker", *common, "--broker-id", name, name=name))
                for name in BROKERS
            }
            yield nodes
    finally:
        etcd.terminate()
        etcd.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in taken]


def _answers(url: str) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), 1):
        return True
    return False


def _wait(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in time: {what}")
        time.sleep(0.05)


class Http:
    """One connection to a node, kept open, so that a request is a request and nothing else."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_SECONDS)

    def request(self, method: str, path: str, body: object = None) -> int:
        """Return the status of the answer."""
        try:
            return self._request(method, path, body)
        except ConnectionError:  # the node closed a connection that was idle for long
            self._connection.close()
            return self._request(method, path, body)

    def _request(self, method: str, path: str, body: object) -> int:
        content = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, content, {"Content-Type": "application/json"} if content else {})
        answer = self._connection.getresponse()
        answer.read()
        return answer.status

    def create(self, topic: str) -> None:
        """Create a topic with one partition."""
        status = self.request("PUT", f"/v1/topics/default/{topic}", {})
        assert status < 300, f"creating {topic} was answered with {status}"

    def publish(self, topic: str) -> bool:
        """Publish one record; False where another broker owns the topic, or nobody serves it yet."""
        path = f"/v1/topics/default/{topic}/records"
        return self.request("POST", path, {"records": [{"key": "k", "value": "v"}]}) < 300

    def read(self, topic: str) -> bool:
        """Read the first records; False where another broker owns the topic, or nobody serves it yet."""
        return self.request("GET", f"/v1/topics/default/{topic}/partitions/0/records") < 300


# The five ways


def http_publish(tracer: Tracer) -> None:
    """Trace a record over HTTP until its ack."""
    with node(tracer, "node") as url:
        client = Http(url)
        client.create("house")
        for _ in range(3):
            assert client.publish("house")
        with tracer.without_way():
            pass
        for _ in range(RUNS):
            with tracer.way():
                assert client.publish("house")


def durable_subscription(tracer: Tracer) -> None:
    """Trace a record from the log to a consumer, its ack and the cursor. Publishing it is not part of the way."""
    with node(tracer, "node") as url:
        client = Http(url)
        client.create("house")
        client.create("nobody")
        consumer = tracer.start("client", str(TRACE / "client.py"), "consume", url, "/default/house")
        try:
            consumer.expect("ready")
            for _ in range(3):
                assert client.publish("house")
                assert client.publish("nobody")
                consumer.expect("done")
            with tracer.without_way():
                for _ in range(RUNS):
                    assert client.publish("nobody")
                    time.sleep(SETTLE_SECONDS)
            for _ in range(RUNS):
                with tracer.way():
                    assert client.publish("house")
                    consumer.expect("done")
        finally:
            consumer.stop()


def message_to_another_node(tracer: Tracer) -> None:
    """Trace a message from a Python client through its owner to a subscriber at another node, and the report back."""
    with cluster(tracer) as urls, contextlib.ExitStack() as stack:
        https = {name: Http(url) for name, url in urls.items()}
        https["b1"].create("house")
        owner = _owner(https, "house")
        home, third = (name for name in BROKERS if name != owner)
        subscriber = tracer.start("subscriber", str(TRACE / "client.py"), "subscribe", urls[home], "/default/house")
        stack.callback(subscriber.stop)
        publisher = tracer.start("publisher", str(TRACE / "client.py"), "publish", urls[third], "/default/house")
        stack.callback(publisher.stop)
        subscriber.expect("ready")
        publisher.expect("ready")

        def send() -> None:
            publisher.tell("message")
            publisher.expect("done")
            subscriber.expect("done")

        for _ in range(3):
            send()
        with tracer.without_way():
            pass
        for _ in range(RUNS):
            with tracer.way():
                send()


def move(tracer: Tracer) -> None:
    """Trace a move from the command to the first read at the new owner.

    A record is published just before, within the trace: a move uploads what is not in the archive yet, and whether
    there is anything must not depend on chance.
    """
    with cluster(tracer) as urls:
        https = {name: Http(url) for name, url in urls.items()}
        https["b1"].create("house")
        first = _owner(https, "house")
        second = next(name for name in BROKERS if name != first)
        asked = next(name for name in BROKERS if name not in (first, second))

        def go(here: str, there: str) -> None:
            assert https[here].publish("house")
            tracer.run("cli", "topic", "move", "/default/house", "--to", there, "--url", urls[asked])
            _wait(lambda: https[there].read("house"), f"{there} serves")

        go(first, second)
        go(second, first)
        with tracer.without_way():
            tracer.run("cli", "topic", "--help")
            for _ in range(RUNS):
                assert https[first].read("house")
        here, there = first, second
        for _ in range(RUNS - 1):
            with tracer.way():
                go(here, there)
            here, there = there, here


def bronze_table(tracer: Tracer) -> None:
    """Trace a pipeline with one bronze table, from the command to the commit, in the driver and in Python workers."""
    with node(tracer, "") as url:
        client = Http(url)
        client.create("house")
        definition = tracer.folder / "pipeline.toml"
        definition.write_text(PIPELINE.format(url=url, tables=tracer.folder / "tables"))

        def go() -> None:
            assert client.publish("house")
            tracer.run("spark", "pipeline", "run", str(definition), "--once", "--master", "local[1]")

        go()
        with tracer.without_way():
            tracer.run("spark", "pipeline", "--help")
        for _ in range(2):
            with tracer.way():
                go()


def _owner(https: dict[str, Http], topic: str) -> str:
    """Return the broker that takes a record itself: the others answer with a redirect."""
    found: list[str] = []

    def is_found() -> bool:
        found[:] = [name for name, client in https.items() if client.publish(topic)]
        return bool(found)

    _wait(is_found, f"a broker serves {topic}")
    return found[0]


WAYS: dict[str, tuple[str, Callable[[Tracer], None]]] = {
    "publish": ("HTTP publish to ack", http_publish),
    "consume": ("record to a durable subscription, ack, cursor", durable_subscription),
    "fan-out": ("message to a subscriber on another node", message_to_another_node),
    "move": ("move, from the request to served again", move),
    "bronze": ("topic to bronze table", bronze_table),
}


def trace(tree: Path, names: Sequence[str]) -> list[Way]:
    """Run the named ways, or all, with the source of a tree."""
    found = []
    for name in names or WAYS:
        title, drive = WAYS[name]
        with tempfile.TemporaryDirectory(prefix="house-", ignore_cleanup_errors=True) as folder:
            tracer = Tracer(tree, Path(folder))
            try:
                drive(tracer)
            except BaseException:
                print((tracer.folder / "log").read_text()[-4000:], file=sys.stderr)
                raise
            found.append(tracer.found(title))
    return found

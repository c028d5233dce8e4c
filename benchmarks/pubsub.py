"""Publish/subscribe: what many subscribers cost, on one node and on three, next to NATS and Redis from Python.

Real processes: nodes, one process that publishes and two with the subscribers (`serving/fan_out.py`), the same for
everybody. Each subscriber has a connection of its own, as applications have, unless a line says otherwise. Messages are
of 100 B. A delivery is one message that one subscriber has been handed. Reliable topics are acked after fsync, and what
their subscribers do not ack they get again; the peers keep nothing. Each claim is one function; what it compares with
is in its docstring.
"""

import sys

if __name__ == "__main__":
    sys.path.append(f"{sys.path.pop(0)}/..")  # not this directory: its http.py is not what others mean by http

import asyncio
import os
import re
import signal
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks.measure import Result, Setup, at_least, at_most, interleaved, main, percentile, ratio
from benchmarks.serving.fan_out import COUNT, SLOTS
from benchmarks.serving.processes import Load, load, sulina_server
from benchmarks.serving.pubsub_peers import Missing, nats_servers, redis_server
from tests.support.cluster_world import cluster
from tests.support.etcd import ALONE, EtcdServer

BROKERS = ("a", "b", "c")
CROWDS = (1, 10, 100, 1000)
BATCHES = (1, 100)
WINDOW = {1: 64, 100: 8}  # batches under way
AHEAD = {1: 256, 100: 64}  # batches that a publisher may be ahead of the subscribers
LATENCY_RATES = {1: 200.0, 100: 10.0}  # messages a second, by subscribers
DEAD_RATE = 10.0  # little enough that nobody waits for the machine
NATS_GOAL = 1.0
DEAD_GOAL = 1.2
PROBES_MAX = 100
PROBE_SECONDS = 0.2
BATCHES_SENT = re.compile(r'^sulina_pubsub_batches_sent_total\{node="([^"]*)"\} (\S+)$', re.MULTILINE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Contender:
    """Who is measured, and where it is."""

    name: str
    system: str
    urls: list[str]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def is_reliable(self) -> bool:
        """Whether it must lose nothing."""
        return self.name == "reliable"

    @property
    def can_share(self) -> bool:
        """Whether subscribers of one topic can share a connection."""
        return self.system != "redis"


class Clients:
    """The processes that publish and subscribe, and the file by which they know how far they are."""

    def __init__(self, publisher: Load, subscribers: list[Load], progress: str) -> None:
        self.publisher = publisher
        self.subscribers = subscribers
        self._progress = progress
        self._topics = iter(range(1 << 30))

    def split(self, subscribers: int) -> list[tuple[Load, int]]:
        """Fairly, over the processes."""
        many = len(self.subscribers)
        return [(each, (subscribers + many - 1 - number) // many) for number, each in enumerate(self.subscribers)]

    @contextmanager
    def attached(
        self,
        contender: Contender,
        crowd: Sequence[tuple[Load, int]],
        *,
        is_shared: bool = False,
        is_timed: bool = False,
    ) -> Iterator[str]:
        """A new topic with these subscribers, each of whom has had something."""
        topic = f"/default/fan-out-{next(self._topics)}"
        everybody = [self.publisher, *(each for each, _ in crowd)]
        for slot, each in enumerate(everybody):
            each("open", system=contender.system, urls=contender.urls, settings=contender.settings,
                 progress=self._progress, slot=slot)  # fmt: skip
        self.publisher("create", topic=topic)
        for each, count in crowd:
            connections = len(contender.urls) if is_shared else max(count, 1)
            each.begin("subscribe", topic=topic, subscribers=count, connections=connections, is_timed=is_timed)
        for each, _ in crowd:
            each.finish()
        for _ in range(PROBES_MAX):
            self.publisher("probe", topic=topic)
            if all(each("probed", seconds=PROBE_SECONDS) for each, _ in crowd):
                break
        else:
            raise TimeoutError(f"{contender.name}: not every subscriber of {topic} gets something")
        yield topic  # after an error the processes end, and nothing is to be closed
        for each in everybody:
            each("close")

    def run(self, crowd: Sequence[tuple[Load, int]], expected: int, name: str, /, **arguments: Any) -> "Run":
        """Have something published, and wait until everybody has so many messages."""
        self.publisher.begin(name, **arguments)
        for each, _ in crowd:
            each.begin("wait", messages=expected)
        taken = [each.finish() for each, _ in crowd]
        return Run(self.publisher.finish(), taken)


@dataclass(frozen=True, slots=True)
class Run:
    """What publishers and subscribers say of one measurement."""

    published: dict[str, Any]
    taken: list[dict[str, Any]]

    @property
    def missing(self) -> int:
        """Deliveries that did not come."""
        return sum(each["missing"] for each in self.taken)

    @property
    def rate(self) -> float:
        """Deliveries a second, from the first publish to the last delivery."""
        ended_at = max(each["last_at"] for each in self.taken)
        return float(sum(each["deliveries"] for each in self.taken) / (ended_at - self.published["started_at"]))

    def milliseconds(self, percent: float) -> float:
        """From publish to delivery."""
        return percentile([seconds for each in self.taken for seconds in each["seconds"]], percent) * 1e3


def benchmark(setup: Setup) -> Iterator[Result]:
    """Every claim about publish/subscribe."""
    progress = os.path.join(setup.directory, "progress")
    with open(progress, "wb") as file:
        file.write(bytes(SLOTS * COUNT.size))
    with load("fan_out") as publisher, load("fan_out") as one, load("fan_out") as other:
        clients = Clients(publisher, [one, other], progress)
        yield from alone(setup, clients)
        yield from together(setup, clients)


def alone(setup: Setup, clients: Clients) -> Iterator[Result]:
    """One node, and the peers beside it."""
    with sulina_server(f"{setup.directory}/node") as node, peers(1) as others:
        ours = sulinas([node.url])
        contenders = [*ours, *others]
        warm_up(setup, clients, contenders)
        for crowd in CROWDS:
            for batch in BATCHES:
                yield from throughput(setup, clients, contenders, crowd, batch)
        yield from throughput(setup, clients, [each for each in contenders if each.can_share], 100, 100, is_shared=True)
        yield from batching_gain(setup, clients, ours[0])
        for crowd, rate in LATENCY_RATES.items():
            yield from latency(setup, clients, contenders, crowd, rate)
        yield from dead_subscriber(setup, clients, ours[0])


def together(setup: Setup, clients: Clients) -> Iterator[Result]:
    """Three nodes, with an etcd; and three servers of NATS."""
    folder = Path(setup.directory).resolve()
    try:
        etcd = EtcdServer(folder / "etcd", arguments=ALONE)
    except pytest.skip.Exception as missing:
        print(f"{missing}; clusters are not measured", file=sys.stderr)
        return
    (folder / "cluster").mkdir()
    with etcd, peers(len(BROKERS)) as others:

        async def measured() -> list[Result]:
            async with cluster(folder / "cluster", etcd, *BROKERS) as world:
                urls = [broker.url for broker in world.brokers.values()]
                return await asyncio.to_thread(lambda: list(on_nodes(setup, clients, urls, others)))

        yield from asyncio.run(measured())


def on_nodes(setup: Setup, clients: Clients, urls: list[str], others: list[Contender]) -> Iterator[Result]:
    """The claims about several nodes."""
    ours = sulinas(urls)
    contenders = [*ours, *others]
    warm_up(setup, clients, contenders)
    for crowd in CROWDS[1 if setup.quick else 0 :]:
        for batch in BATCHES[1 if setup.quick else 0 :]:
            yield from throughput(setup, clients, contenders, crowd, batch)
    for crowd in (30,) if setup.quick else (30, 300):
        yield from frames(setup, clients, ours[0], crowd)


def sulinas(urls: list[str]) -> list[Contender]:
    """Ours: the first keeps everything, the second nothing."""
    return [
        Contender("reliable", "sulina", urls),
        Contender("not reliable", "sulina", urls, {"delivery": "non_reliable"}),
    ]


@contextmanager
def peers(nodes: int) -> Iterator[list[Contender]]:
    """Those that are on this machine. Redis has no cluster in which a publish goes only where somebody listens."""
    found: list[Contender] = []
    with ExitStack() as stack:
        try:
            found.append(Contender("nats-py", "nats", stack.enter_context(nats_servers(nodes))))
        except Missing as missing:
            print(f"{missing}; NATS is not measured", file=sys.stderr)
        if nodes == 1:
            try:
                found.append(Contender("redis-py", "redis", [stack.enter_context(redis_server())]))
            except Missing as missing:
                print(f"{missing}; Redis is not measured", file=sys.stderr)
        yield found


def warm_up(setup: Setup, clients: Clients, contenders: Sequence[Contender]) -> None:
    """Nodes and clients that have just started load their kernels while they work."""
    for contender in contenders:
        deliver(clients, contender, 8, 100, setup.choose(2_000, 10_000))


def deliver(
    clients: Clients, contender: Contender, subscribers: int, batch: int, messages: int, *, is_shared: bool = False
) -> Run:
    """So many messages to so many subscribers, as fast as all of them can."""
    crowd = clients.split(subscribers)
    with clients.attached(contender, crowd, is_shared=is_shared) as topic:
        run = clients.run(
            crowd, messages, "publish", topic=topic, batch=batch, batches=messages // batch, window=WINDOW[batch],
            ahead=AHEAD[batch], subscribers=subscribers,
        )  # fmt: skip
    check(contender, run)
    return run


def check(contender: Contender, run: Run) -> None:
    """A figure of a run that broke a promise is no figure."""
    if run.missing and contender.is_reliable:
        raise AssertionError(f"{run.missing} deliveries of a reliable topic did not come")


# Throughput


def throughput(
    setup: Setup,
    clients: Clients,
    contenders: Sequence[Contender],
    subscribers: int,
    batch: int,
    *,
    is_shared: bool = False,
) -> Iterator[Result]:
    """Deliveries a second, in turns. With batches of 100 a reliable topic is to be as quick as NATS from Python, which
    keeps nothing and takes the same messages one by one, with one flush for each 100."""
    deliveries = setup.choose(20_000, 200_000)
    least, most = setup.choose(5, 10) * batch, setup.choose(1_000, 10_000) * min(batch, 10)
    messages = max(min(deliveries // subscribers, most) // batch * batch, least)
    missing = dict.fromkeys((each.name for each in contenders), 0)

    def rate(contender: Contender) -> float:
        run = deliver(clients, contender, subscribers, batch, messages, is_shared=is_shared)
        missing[contender.name] += run.missing
        return run.rate

    measured = interleaved(setup.choose(1, 3), *(partial(rate, each) for each in contenders))
    rates = dict(zip((each.name for each in contenders), measured, strict=True))
    how = f" that share {len(clients.subscribers) * len(contenders[0].urls)} connections" if is_shared else ""
    name = f"{nodes_of(contenders)}, {counted(subscribers)}{how}, batches of {batch}"
    for contender in contenders:
        yield Result(f"{name}: {contender.name}", median(rates[contender.name]), "deliveries/s")
        if missing[contender.name]:
            yield Result(f"{name}: {contender.name}, lost", missing[contender.name], "deliveries")
    for peer in (each.name for each in contenders if each.system != "sulina"):
        line, share = f"{name}: reliable / {peer}", ratio(rates["reliable"], rates[peer])
        has_goal = peer == "nats-py" and batch == 100
        yield at_least(line, share, "ratio", NATS_GOAL) if has_goal else Result(line, share, "ratio")


def nodes_of(contenders: Sequence[Contender]) -> str:
    """How many there are, for people."""
    count = len(contenders[0].urls)
    return f"{count} nodes" if count > 1 else "1 node"


def counted(subscribers: int) -> str:
    """How many there are, for people."""
    return f"{subscribers:,} subscribers" if subscribers > 1 else "1 subscriber"


def batching_gain(setup: Setup, clients: Clients, contender: Contender) -> Iterator[Result]:
    """Messages that an application produces one by one, through a batching producer with its own defaults: batches of
    100 against batches of 1."""
    subscribers = 10
    crowd = clients.split(subscribers)

    def rate(batch: int, messages: int) -> float:
        with clients.attached(contender, crowd) as topic:
            run = clients.run(
                crowd, messages, "produce", topic=topic, messages=messages, batch=batch, ahead=AHEAD[batch],
                subscribers=subscribers,
            )  # fmt: skip
        check(contender, run)
        return run.rate

    works: list[Callable[[], float]] = [
        partial(rate, 1, setup.choose(500, 5_000)),
        partial(rate, 100, setup.choose(5_000, 50_000)),
    ]
    single, together = interleaved(setup.choose(1, 3), *works)
    name = f"batching producer, {counted(subscribers)}"
    yield Result(f"{name}: batches of 1", median(single), "deliveries/s")
    yield Result(f"{name}: batches of 100", median(together), "deliveries/s")
    yield Result(f"{name}: gain of batching", ratio(together, single), "times")


# Latency


def latency(
    setup: Setup, clients: Clients, contenders: Sequence[Contender], subscribers: int, rate: float
) -> Iterator[Result]:
    """From the call that publishes one message to the handler of each subscriber, at a pace that leaves everybody time.
    A reliable topic delivers what is on disk, so one fsync round is in it."""
    crowd = clients.split(subscribers)
    runs: dict[str, list[Run]] = {each.name: [] for each in contenders}

    def paced(contender: Contender) -> float:
        seconds = setup.choose(1, 5)
        with clients.attached(contender, crowd, is_timed=True) as topic:
            run = clients.run(crowd, int(rate * seconds), "pace", topic=topic, rate=rate, seconds=seconds)
        check(contender, run)
        runs[contender.name].append(run)
        return run.milliseconds(50)

    interleaved(setup.choose(1, 3), *(partial(paced, each) for each in contenders))
    name = f"latency at {rate:g} messages/s to {counted(subscribers)}"
    for contender in contenders:
        for percent in (50, 99):
            value = median(run.milliseconds(percent) for run in runs[contender.name])
            yield Result(f"{name}: {contender.name}, p{percent}", value, "ms")


def dead_subscriber(setup: Setup, clients: Clients, contender: Contender) -> Iterator[Result]:
    """100 subscribers of a reliable topic, one of them in a process of its own that is stopped (SIGSTOP): its
    connection stands, and nobody reads it. How long the other 99 wait, against when it is well."""
    watched = clients.split(99)
    seconds = setup.choose(2, 10)
    messages = int(DEAD_RATE * seconds)

    def wait(*, is_dead: bool) -> float:
        with load("fan_out") as victim:
            with clients.attached(contender, [*watched, (victim, 1)], is_timed=True) as topic:
                if is_dead:
                    os.kill(victim.pid, signal.SIGSTOP)
                try:
                    run = clients.run(watched, messages, "pace", topic=topic, rate=DEAD_RATE, seconds=seconds)
                finally:
                    os.kill(victim.pid, signal.SIGCONT)
            check(contender, run)
            return run.milliseconds(99)

    well, dead = interleaved(setup.choose(1, 5), partial(wait, is_dead=False), partial(wait, is_dead=True))
    name = f"one of 100 subscribers is dead, {DEAD_RATE:g} messages/s"
    yield Result(f"{name}: p99 of the others without it", median(well), "ms")
    yield Result(f"{name}: p99 of the others", median(dead), "ms")
    yield at_most(f"{name}: p99 with it / without it", ratio(dead, well), "ratio", DEAD_GOAL)


# Messages on the wire


def frames(setup: Setup, clients: Clients, contender: Contender, subscribers: int) -> Iterator[Result]:
    """Deliveries that cross from node to node for each publish, with subscribers on all nodes: one for each other node,
    whatever number of subscribers it has. Each publish waits until everybody has the one before."""
    messages = setup.choose(20, 100)
    crowd = clients.split(subscribers)
    with clients.attached(contender, crowd) as topic:
        before = batches_sent(contender.urls)
        clients.run(crowd, messages, "one_by_one", topic=topic, messages=messages, subscribers=subscribers)
        after = batches_sent(contender.urls)
    name = f"{len(contender.urls)} nodes, {counted(subscribers)}: batches between nodes for each publish"
    yield at_most(name, (after - before) / messages, "batches", len(contender.urls) - 1)


def batches_sent(urls: list[str]) -> float:
    """So far, by all of them to others: what an owner has for its own node does not leave it."""
    count = 0.0
    for broker, url in zip(BROKERS, urls, strict=True):
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            found = BATCHES_SENT.findall(answer.read().decode())
        count += sum(float(number) for node, number in found if node != broker)
    return count


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # what was started must be ended
    main(__doc__.splitlines()[0], benchmark)

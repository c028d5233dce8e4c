"""What a node does with publishes, deliveries and crowds, as its clients see it: HTTP and WebSocket, real processes.

A node on a directory of the disk under test, acks after fsync. Records have values of 100 characters from a fixed
seed, no keys. The load is one process with prebuilt requests (`serving/load.py`): the lines that end in "cores" say how
much of the machine it and the server took. Each claim is one function; what it compares with is in its docstring.
"""

import sys

if __name__ == "__main__":
    sys.path.append(f"{sys.path.pop(0)}/..")  # not this directory: others mean another http

import json
import os
import signal
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.measure import (
    Result,
    Setup,
    at_least,
    at_most,
    commit_raw,
    interleaved,
    main,
    number,
    percentile,
    ratio,
    seconds_of,
)
from benchmarks.serving.processes import Load, Server, bare_server, client, load, put_topic, sulina_server

CONNECTIONS = 64
GOALS = {1: 0.5, 100: 0.7}  # of the bare route's requests
DELIVERY_GOAL = 200_000.0
LATENCY_ROUNDS = 3.0  # of one fsync round
LATENCY_RATE = 1000
COMMIT_BYTES = 400


def benchmark(setup: Setup) -> Iterator[Result]:
    """Every claim about serving."""
    with sulina_server(f"{setup.directory}/node") as ours, load() as loading:
        warm_up(setup, loading, ours)
        with bare_server() as bare:
            for batch in (1, 10, 100, 1000):
                yield from publish_speed(setup, loading, ours, bare, batch)
        for batch, window in ((1, 256), (100, 32)):
            yield from websocket_publish_speed(setup, loading, ours, batch, window)
        yield from delivery_speed(setup, loading, ours)
        yield from live_speed(setup, loading, ours)
        yield from latency(setup, loading, ours)
    yield from crowd(setup)


def warm_up(setup: Setup, loading: Load, ours: Server) -> None:
    """A node that has just started loads its kernels while it serves."""
    path = f"/v1/topics{put_topic(ours, 'warm')}/records"
    loading("http", port=ours.port, path=path, batch=100, connections=4, seconds=setup.choose(3, 6))


# Publishing


def publish_speed(setup: Setup, loading: Load, ours: Server, bare: Server, batch: int) -> Iterator[Result]:
    """POST of JSON by 64 connections, each with one request under way, against a Starlette route that only parses the
    same JSON (`serving/bare.py`), in turns."""
    topic = put_topic(ours, f"http-{batch}").removeprefix("/")
    measured: dict[int, list[dict[str, Any]]] = {ours.port: [], bare.port: []}

    def rate(server: Server, seconds: float) -> float:
        cpu, started = server.cpu_seconds(), time.perf_counter()
        path = f"/v1/topics/{topic}/records"
        result = loading("http", port=server.port, path=path, batch=batch, connections=CONNECTIONS, seconds=seconds)
        result["server_cores"] = (server.cpu_seconds() - cpu) / (time.perf_counter() - started)
        measured[server.port].append(result)
        return float(result["rate"])

    seconds = 0.5 if setup.quick else 2.5
    for server in (ours, bare):
        rate(server, 0.3)
    for results in measured.values():
        results.clear()
    mine, limit = interleaved(setup.choose(3, 7), lambda: rate(ours, seconds), lambda: rate(bare, seconds))
    name = f"HTTP publish, batches of {number(batch)}"
    yield Result(f"{name}: ours", median(mine), "requests/s")
    yield Result(f"{name}: ours", median(mine) * batch, "records/s")
    yield Result(f"{name}: bare route", median(limit), "requests/s")
    goal = GOALS.get(batch)
    share = ratio(mine, limit)
    line = f"{name}: ours / bare route"
    yield at_least(line, share, "ratio", goal) if goal else Result(line, share, "ratio")
    for server, whose in ((ours, "ours"), (bare, "bare route")):
        results = measured[server.port]
        for key in ("p50_ms", "p99_ms"):
            yield Result(f"{name}: {whose}, {key[:3]} of a request", median(r[key] for r in results), "ms")
        yield Result(f"{name}: {whose}, server", median(r["server_cores"] for r in results), "cores")
        yield Result(f"{name}: {whose}, load", median(r["cores"] for r in results), "cores")


def websocket_publish_speed(setup: Setup, loading: Load, ours: Server, batch: int, window: int) -> Iterator[Result]:
    """Encoded batches by four WebSockets, so many under way on each, acked after fsync."""
    topic = put_topic(ours, f"websocket-{batch}")
    results = [
        loading("publish", port=ours.port, topic=topic, batch=batch, connections=4, window=window, seconds=seconds)
        for seconds in [0.3] + [0.5 if setup.quick else 2.5] * setup.choose(3, 5)
    ][1:]
    name = f"WebSocket publish, batches of {batch}, 4 × {window} under way"
    yield Result(name, median(result["rate"] for result in results), "records/s")
    yield Result(f"{name}: load", median(result["cores"] for result in results), "cores")


# Delivery


def delivery_speed(setup: Setup, loading: Load, ours: Server) -> Iterator[Result]:
    """A topic that was filled before by batches of 100, from its beginning: to a raw reader that only counts and acks
    (the limit of the server), and to the Python client, which hands every record to the application; of this the second
    half counts, as the client loads its kernels meanwhile."""
    records = setup.choose(400_000, 1_600_000)
    name = "delivery of stored records, batches of 100"
    raw: list[dict[str, Any]] = []
    taken: list[dict[str, Any]] = []
    for attempt in range(setup.choose(1, 3)):
        topic = put_topic(ours, f"filled-{attempt}")
        loading("fill", port=ours.port, topic=topic, batch=100, records=records)
        raw.append(loading("count", port=ours.port, topic=topic, records=records))
        with client(ours.url, topic, "earliest", records // 2, str(records // 2)) as out:
            taken.append(json.loads(out.readline()))
    yield at_least(f"{name}: raw reader", median(result["rate"] for result in raw), "records/s", DELIVERY_GOAL)
    yield Result(f"{name}: raw reader, load", median(result["cores"] for result in raw), "cores")
    yield at_least(f"{name}: Python client", median(result["rate"] for result in taken), "records/s", DELIVERY_GOAL)
    yield Result(f"{name}: Python client, load", median(result["cores"] for result in taken), "cores")
    cold = median(result["cold_rate"] for result in taken)
    yield Result(f"{name}: Python client, its first {records // 2:,} records", cold, "records/s")


def live_speed(setup: Setup, loading: Load, ours: Server) -> Iterator[Result]:
    """Delivered while being published as fast as the node takes it, 64 batches of 100 under way: publisher, node and
    consumer share the cores."""
    seconds = setup.choose(2, 5)
    name = "delivery while publishing, batches of 100"
    topic = put_topic(ours, "live")
    result = loading("live", port=ours.port, topic=topic, batch=100, window=64, seconds=seconds)
    yield at_least(f"{name}: raw reader", result["rate"], "records/s", DELIVERY_GOAL)
    yield Result(f"{name}: raw reader, published meanwhile", result["publish_rate"], "records/s")
    yield Result(f"{name}: raw reader, load", result["cores"], "cores")
    with client(ours.url, topic, "latest", setup.choose(200_000, 500_000), f"{seconds}s") as out:
        loading.begin("publish", port=ours.port, topic=topic, batch=100, connections=1, window=64, seconds=seconds + 3)
        result = json.loads(out.readline())
        published = loading.finish()
    yield Result(f"{name}: Python client", result["rate"], "records/s")
    yield Result(f"{name}: Python client, published meanwhile", published["rate"], "records/s")


# Latency


def latency(setup: Setup, loading: Load, ours: Server) -> Iterator[Result]:
    """From publish to receipt on another connection, one record of 100 B at a time, 1,000 a second; against one round
    of what a commit asks of the disk: 4 KiB appended and synced, a commit file made and synced, its directory synced.
    """
    directory = f"{setup.directory}/rounds"
    os.mkdir(directory)
    file = os.open(f"{directory}/data", os.O_RDWR | os.O_CREAT, 0o644)
    topic = put_topic(ours, "latency")
    versions = iter(range(1 << 30))

    def one_round() -> None:
        version = next(versions)
        os.pwrite(file, bytes(4096), version * 4096)
        os.fdatasync(file)
        commit_raw(directory, version, bytes(COMMIT_BYTES))

    rounds: list[float] = []
    results: list[dict[str, Any]] = []
    for _ in range(setup.choose(3, 5)):
        rounds += [seconds_of(one_round) * 1e3 for _ in range(setup.choose(60, 200))]
        results.append(
            loading("latency", port=ours.port, topic=topic, rate=LATENCY_RATE, seconds=1 if setup.quick else 4)
        )
    os.close(file)
    name = f"latency at {LATENCY_RATE:,} records/s"
    limit = percentile(rounds, 50)
    yield Result("one fsync round, p50", limit, "ms")
    yield Result("one fsync round, p99", percentile(rounds, 99), "ms")
    middle = median(result["p50_ms"] for result in results)
    yield Result(f"{name}: acked, p50", median(result["ack_p50_ms"] for result in results), "ms")
    yield at_most(f"{name}: received, p50", middle, "ms", LATENCY_ROUNDS * limit)
    yield Result(f"{name}: received, p99", median(result["p99_ms"] for result in results), "ms")
    yield Result(f"{name}: received, p50 / fsync round", middle / limit, "ratio")


# Crowds


def crowd(setup: Setup) -> Iterator[Result]:
    """Topics that nobody uses, subscribers that get nothing, each of a topic of its own, and what they cost. The node
    has been used before, so that its kernels are in its memory already."""
    count = setup.choose(200, 1000)
    data = f"{setup.directory}/crowd"
    with sulina_server(data) as server, load() as loading:
        warm_up(setup, loading, server)
        empty_mib = server.memory_mib()
        creating = seconds_of(lambda: [put_topic(server, f"topic-{index}") for index in range(count)])
        topics_mib = server.memory_mib()
    yield Result("a node without topics, memory", empty_mib, "MiB")
    yield Result(f"{count:,} topics: created in", creating, "s")
    yield Result(f"{count:,} topics: memory more", topics_mib - empty_mib, "MiB")
    starts = interleaved(
        setup.choose(1, 5),
        lambda: start_seconds(f"{setup.directory}/empty"),
        lambda: start_seconds(data),
    )
    yield Result("start to ready, no topics", median(starts[0]), "s")
    yield Result(f"start to ready, {count:,} topics", median(starts[1]), "s")
    with sulina_server(data) as server, load() as loading:
        warm_up(setup, loading, server)
        before_mib = server.memory_mib()
        topics = [f"/default/topic-{index}" for index in range(count)]
        attached = loading("idle", port=server.port, topics=topics)
        yield Result(f"{count:,} idle subscribers: attached in", attached["seconds"], "s")
        yield Result(f"{count:,} idle subscribers: memory more", server.memory_mib() - before_mib, "MiB")
        cpu = server.cpu_seconds()
        time.sleep(2)
        yield Result(f"{count:,} idle subscribers: server", (server.cpu_seconds() - cpu) / 2, "cores")


def start_seconds(data: str) -> float:
    """From the start of the process until it says that it is ready."""
    with sulina_server(data) as server:
        return server.start_seconds


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # what was started must be ended
    main(__doc__.splitlines()[0], benchmark)

"""The claims of docs/benchmarks.md: which figures of which benchmark are compared in one picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.chart import Bar, Group
from benchmarks.measure import Result


@dataclass(frozen=True, slots=True)
class Line:
    """One bar of each group: the name of its result is the group's, with this after it."""

    label: str
    suffix: str
    kind: str = "ours"  # or other, a peer; or limit


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence that figures show or refute. `groups` maps the names of results to what the picture calls them."""

    slug: str
    script: str
    title: str
    text: str
    unit: str
    lines: tuple[Line, ...]
    groups: Mapping[str, str]
    goals: tuple[str, ...] = ()  # the beginnings of names of results that have a goal
    bound: float | None = None  # the goal as a value of the picture's unit, where it is one

    def pictured(self, results: Sequence[Result]) -> list[Group]:
        """Return the groups of bars that have figures: a quick run has fewer."""
        values = {result.name: result.value for result in results if result.unit == self.unit}
        groups = []
        for name, label in self.groups.items():
            found = [
                Bar(line.label, values[name + line.suffix], line.kind)
                for line in self.lines
                if name + line.suffix in values
            ]
            if found:
                groups.append(Group(label, tuple(found), self.bound))
        return groups

    def judged(self, results: Sequence[Result]) -> list[Result]:
        """Return the results with a goal that belong to this claim."""
        return [result for result in results if result.goal is not None and result.name.startswith(self.goals)]


def _appends(segment: str) -> dict[str, str]:
    sizes = (("64 KiB", "64 KiB"), ("1 MiB", "64 KiB"), ("4 MiB", "64 KiB"), ("1 MiB", "1 MiB"), ("4 MiB", "1 MiB"))
    return {
        f"append, {group} groups of {batch} batches, {segment} segment": f"groups of {group}, batches of {batch}"
        for group, batch in sizes
    }


def _subscribers(nodes: str, counts: Sequence[str]) -> dict[str, str]:
    plural = {count: "subscriber" if count == "1" else "subscribers" for count in counts}
    return {f"{nodes}, {count} {word}, batches of 100": f"{count} {word}" for count, word in plural.items()}


OURS_RAW = (Line("Sulina", ": ours"), Line("bare system calls", ": raw limit", "limit"))
FAN_OUT = (
    Line("Sulina, reliable", ": reliable"),
    Line("Sulina, best effort", ": not reliable"),
    Line("NATS (nats-py)", ": nats-py", "other"),
    Line("Redis (redis-py)", ": redis-py", "other"),
)

CLAIMS = (
    Claim(
        "append-fresh",
        "log.py",
        "Appending to a fresh segment reaches 80 % of the bare disk",
        "The limit is a loop of the same system calls (write, sync, link, sync of the directory) and nothing else.",
        "MB/s",
        OURS_RAW,
        _appends("fresh"),
        tuple(_appends("fresh")),
    ),
    Claim(
        "append-recycled",
        "log.py",
        "Appending to a recycled segment reaches 80 % of the bare disk",
        "Overwriting allocated blocks syncs much faster, so the time in Python weighs more. "
        "[ADR 0007](adr/0007-what-appending-costs.md) says where the time goes.",
        "MB/s",
        OURS_RAW,
        _appends("recycled"),
        tuple(_appends("recycled")),
    ),
    Claim(
        "read",
        "log.py",
        "Reading a log reaches 80 % of pread",
        "Every batch that is read is checked by its CRC32C ([ADR 0004](adr/0004-every-read-is-checked.md)); "
        "`pread` alone, from the page cache, checks nothing.",
        "MB/s",
        (
            Line("DirectoryLog", ": DirectoryLog.read"),
            Line("PartitionLog", ": PartitionLog.read"),
            Line("pread alone", ": pread alone", "limit"),
            Line("CRC32C alone", ": CRC alone", "limit"),
        ),
        {"read, 1 MiB chunks": "chunks of 1 MiB", "read, 4 MiB chunks": "chunks of 4 MiB"},
        ("read, ",),
    ),
    Claim(
        "open",
        "log.py",
        "Opening a log takes milliseconds, however long it is",
        "A checkpoint is read, not the history. Without the newest checkpoint and the index they are rebuilt once.",
        "ms",
        (Line("opened", ""), Line("rebuilt", ", index and newest checkpoint missing")),
        {f"open after {count} commits": f"after {count} commits" for count in ("1,000", "100,000", "1,000,000")},
        ("open after",),
    ),
    Claim(
        "http-publish",
        "http.py",
        "Publishing over HTTP reaches half of a bare route, and 70 % with batches",
        "The bare route is the same server answering without storing anything; Sulina answers after the sync. "
        "[ADR 0013](adr/0013-what-a-publish-over-http-costs.md) says where the time goes.",
        "requests/s",
        (Line("Sulina", ": ours"), Line("bare route", ": bare route", "limit")),
        {
            f"HTTP publish, batches of {count}": f"{count} {'record' if count == '1' else 'records'} in a request"
            for count in ("1", "10", "100", "1,000")
        },
        ("HTTP publish",),
    ),
    Claim(
        "delivery",
        "http.py",
        "A consumer gets 200,000 records a second",
        "The raw reader counts bytes of the WebSocket; the Python client makes a message of each record.",
        "records/s",
        (Line("raw reader", ": raw reader"), Line("Python client", ": Python client")),
        {
            "delivery of stored records, batches of 100": "records that are stored",
            "delivery while publishing, batches of 100": "while they are published",
        },
        ("delivery ",),
        200_000,
    ),
    Claim(
        "latency",
        "http.py",
        "A durable record arrives within three syncs of the disk",
        "1,000 records a second, one at a time, over WebSocket, on one node; the limit is one sync of file and commit.",
        "ms",
        (
            Line("acked, p50", "latency at 1,000 records/s: acked, p50"),
            Line("received, p50", "latency at 1,000 records/s: received, p50"),
            Line("received, p99", "latency at 1,000 records/s: received, p99"),
            Line("one sync, p50", "one fsync round, p50", "limit"),
            Line("one sync, p99", "one fsync round, p99", "limit"),
        ),
        {"": ""},
        ("latency at",),
    ),
    Claim(
        "fan-out",
        "pubsub.py",
        "Fan-out on one node is as fast as NATS",
        "Batches of 100 small messages, Python clients on all sides. Reliable messages are durable before they are "
        "delivered; NATS and Redis do not write to disk here.",
        "deliveries/s",
        FAN_OUT,
        _subscribers("1 node", ("1", "10", "100", "1,000")),
        ("1 node",),
    ),
    Claim(
        "fan-out-three-nodes",
        "pubsub.py",
        "Fan-out over three nodes is as fast as NATS",
        "A batch crosses to another node once, for all of its subscribers there.",
        "deliveries/s",
        FAN_OUT,
        _subscribers("3 nodes", ("10", "100", "1,000")),
        ("3 nodes",),
    ),
    Claim(
        "fan-out-latency",
        "pubsub.py",
        "One message at a time reaches its subscribers in milliseconds",
        "Reliable messages are synced to disk first. A dead subscriber must not slow down the others.",
        "ms",
        (
            Line("reliable, p50", ": reliable, p50"),
            Line("reliable, p99", ": reliable, p99"),
            Line("best effort, p50", ": not reliable, p50"),
            Line("best effort, p99", ": not reliable, p99"),
            Line("NATS, p50", ": nats-py, p50", "other"),
            Line("NATS, p99", ": nats-py, p99", "other"),
            Line("Redis, p50", ": redis-py, p50", "other"),
            Line("Redis, p99", ": redis-py, p99", "other"),
        ),
        {
            "latency at 200 messages/s to 1 subscriber": "200 messages a second to 1 subscriber",
            "latency at 10 messages/s to 100 subscribers": "10 messages a second to 100 subscribers",
        },
        ("one of 100 subscribers",),
    ),
    Claim(
        "move",
        "cluster.py",
        "A move under load pauses its applications for less than a second",
        "The longest time between two acks of one producer, over many moves of a topic between brokers.",
        "s",
        (
            Line("p50", ": pause of its applications, p50"),
            Line("p99", ": pause of its applications, p99"),
        ),
        {
            "live move under load, ack local": "acks are local",
            "live move under load, ack archived": "acks are archived",
        },
        ("live move",),
        1.0,
    ),
    Claim(
        "failover",
        "cluster.py",
        "A topic whose broker dies is served again within five seconds",
        "From the kill to the first ack of another broker; the lease of 3 seconds is part of it.",
        "s",
        (Line("p50", ": first ack p50"), Line("p99", ": first ack p99")),
        {"failover, lease 3 s": "lease of 3 s"},
        ("failover", "growth from"),
        5.0,
    ),
    Claim(
        "archived",
        "cluster.py",
        "Acks from the object store come at more than half the speed of raw puts",
        "`archived` acks wait until batches and commits are in the object store.",
        "MiB/s",
        (
            Line("Sulina, ack local", "publish, ack local"),
            Line("Sulina, ack archived", "publish, ack archived"),
            Line("raw puts of 100 kB", "object store, raw puts of 100 kB", "limit"),
        ),
        {"": ""},
    ),
    Claim(
        "spark-read",
        "spark.py",
        "Spark reads a topic at 75 % of the speed of Parquet",
        "Rows come through Python; ready-made rows from Python reach 0.58 of Parquet. "
        "[ADR 0018](adr/0018-what-spark-takes-from-python.md) says where the time goes.",
        "rows/s",
        (
            Line("topic, archive", "read a topic, archive"),
            Line("topic, hot tail", "read a topic, hot tail"),
            Line("table", "read a table"),
            Line("files of the table", "read the files of a table, Spark's own", "limit"),
            Line("Parquet", "read Parquet, Spark's own", "limit"),
        ),
        {"": ""},
        ("read a t", "memory of"),
    ),
    Claim(
        "spark-write",
        "spark.py",
        "Spark writes tables at 60 % of the speed of Parquet",
        "A table is written exactly once, with a commit for each batch; Parquet files are only written.",
        "rows/s",
        (
            Line("table", "write a table"),
            Line("table from a topic", "write a table from a topic"),
            Line("Parquet", "write Parquet, Spark's own", "limit"),
        ),
        {"": ""},
        ("write a table",),
    ),
    Claim(
        "spark-fresh",
        "spark.py",
        "A record is a row of a table within a second",
        "From the publish to the row that a query sees, with a pipeline's own trigger.",
        "s",
        (
            Line("p50", "from publish to a row in a table, p50"),
            Line("p99", "from publish to a row in a table, p99"),
        ),
        {"": ""},
        ("from publish", "a trigger"),
        1.0,
    ),
)

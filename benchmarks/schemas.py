"""What it costs that a topic with a schema checks every value: publishes with and without, side by side.

A node on a directory of the disk under test; the load is one process with prebuilt batches on four WebSockets. Values
are orders (`serving/typed_values.py`). The peer is the same publish to a topic whose policy says `validate = false`,
measured in turns.
"""

import sys

if __name__ == "__main__":
    sys.path.append(f"{sys.path.pop(0)}/..")  # not this directory: others mean another http

import time
from collections.abc import Iterator
from statistics import median

from benchmarks.measure import Result, Setup, interleaved, main, number, ratio
from benchmarks.serving.processes import Load, Server, load, put_topic, sulina_server
from benchmarks.serving.typed_values import SCHEMAS, typed_values

CONNECTIONS = 4
WINDOWS = {1: 256, 100: 32, 1000: 8}  # batches under way on each connection
MIB = 1 << 20


def benchmark(setup: Setup) -> Iterator[Result]:
    """The claim about schemas."""
    with sulina_server(f"{setup.directory}/node") as node, load() as loading:
        warm = put_topic(node, "warm")
        loading("publish", port=node.port, topic=warm, batch=100, connections=2, window=8, seconds=setup.choose(2, 5))
        for kind in SCHEMAS:
            for batch in WINDOWS:
                yield from checked_publish(setup, loading, node, kind, batch)


def checked_publish(setup: Setup, loading: Load, node: Server, kind: str, batch: int) -> Iterator[Result]:
    """Records a second to a topic that checks its values, and to one that does not; and what each record takes of the
    node's processors more."""
    bounded = {"retention_bytes": 256 * MIB, "segment_bytes": 64 * MIB}
    topics = {
        validate: put_topic(
            node,
            f"{kind}-{batch}-{'checked' if validate else 'unchecked'}",
            {"schema": SCHEMAS[kind], "policy": {"validate": validate, **bounded}},
        )
        for validate in (True, False)
    }
    used: dict[bool, list[float]] = {True: [], False: []}

    def rate(validate: bool, seconds: float) -> float:
        cpu, started = node.cpu_seconds(), time.perf_counter()
        done = loading(
            "publish",
            port=node.port,
            topic=topics[validate],
            batch=batch,
            connections=CONNECTIONS,
            window=WINDOWS[batch],
            seconds=seconds,
            kind=kind,
        )
        records = max(1.0, float(done["rate"]) * (time.perf_counter() - started))
        used[validate].append((node.cpu_seconds() - cpu) / records * 1e6)
        return float(done["rate"])

    seconds = 0.5 if setup.quick else 2.0
    for validate in topics:
        rate(validate, 0.3)
    for values in used.values():
        values.clear()
    checked, unchecked = interleaved(setup.choose(3, 7), lambda: rate(True, seconds), lambda: rate(False, seconds))
    name = f"publish of {kind}, batches of {number(batch)}"
    yield Result(f"{name}: checked", median(checked), "records/s")
    yield Result(f"{name}: not checked", median(unchecked), "records/s")
    yield Result(f"{name}: checked / not checked", ratio(checked, unchecked), "ratio")
    more = median(mine - theirs for mine, theirs in zip(used[True], used[False], strict=True))
    yield Result(f"{name}: what the check adds, {len(typed_values(kind, 1)[0])} bytes a value", more, "µs of the node")


if __name__ == "__main__":
    main(__doc__.splitlines()[0], benchmark)

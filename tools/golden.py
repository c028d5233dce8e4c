"""Makes `tests/golden/{version}`: files of this release, written by the real system, which later releases must open.

```
make golden             # of the version in pyproject.toml; replaces what is there
```
Run it once for each release, from the tree that is released. Tests open copies.
"""

import asyncio
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import sulina
from sulina.client import SyncClient
from sulina.metadata.etcd import EtcdMetadata
from sulina.spark.delta_native import read_delta
from sulina.spark.pipeline.definition import Pipeline, parse
from sulina.spark.pipeline.runner import run_pipeline
from sulina.spark.session import session
from tests.support import serving
from tests.support.cluster_world import World, cluster, until
from tests.support.etcd import EtcdServer

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden"
ORDERS, EVENTS = "/default/orders", "/default/events"
COMMITS_MAX = 1000
SLICES = 70  # more than those after which an archive gets a state, and merges small slices
RETRIED = 12  # publishes whose answers are remembered
POLICY = {
    "segment_seconds": 0.2,  # several small segments
    "txn_ids_max": 64,  # a few of them fill a run
    "validate": False,  # some values do not fit the schema: a pipeline sets them aside
}
SCHEMA = {
    "kind": "json",
    "definition": {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "amount": {"type": "number"}},
        "required": ["id", "amount"],
        "additionalProperties": False,
    },
}
README = """# Files of Sulina {version}

Made by `make golden` from the tree of this release, with real nodes, a real etcd and a real Spark. They are
never edited, and never made again once the release is out. Tests open copies of them with the code of today.

- `node/`: the data directory of `sulina serve`. A topic with two partitions: segments, indexes, checkpoints, runs of
  txn_ids, a subscription with a cursor; the SQLite file.
- `objects/`: the archive of a cluster of two brokers. Slices, merged slices, states, claims of two epochs, and what
  brokers remember.
- `brokers/`: the data directories of the two brokers.
- `etcd.json`: the keys and values of that cluster in etcd, without those that have a lease.
- `tables/`: what `sulina pipeline run --once` has made of the topic in `node/`: a bronze table, a silver table and its
  quarantine table, Spark's checkpoints, and the `_sulina` files beside the tables.
- `index.json`: what is in all of them. Records, versions, cursors, answers to txn_ids, rows.
- `sulina-{version}-py3-none-any.whl`: the release itself, for tests of upgrades.
"""


def main() -> None:
    """Make the files of this version."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    target = GOLDEN / version
    with tempfile.TemporaryDirectory(prefix="sulina-golden-") as made:
        folder = Path(made)
        wheel(folder)
        index = {"node": node_and_tables(folder), "cluster": asyncio.run(a_cluster(folder))}
        (folder / "index.json").write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")
        (folder / "README.md").write_text(README.format(version=version))
        tidy(folder)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder, target)
    for path in sorted(target.iterdir()):
        print(f"{path.name:40} {size(path):9,} bytes")


def wheel(folder: Path) -> None:
    """Build the release."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT], check=True, env=environment)
    (folder / ".gitignore").unlink(missing_ok=True)


# A node and its tables


def node_and_tables(folder: Path) -> dict[str, Any]:
    """Fill a node, and make tables of its topic. Return what is there."""
    with serving.serving(folder / "node", is_forked=False) as node, sulina.connect_sync(node.url) as client:
        fill(client)
        tables = make_tables(node.url, folder / "tables")
        return {**contents_of(client, ORDERS, 2), "tables": tables}


def fill(client: SyncClient) -> None:
    """Publish so that there are several segments, checkpoints and runs of txn_ids; consume some of it."""
    client.admin.create_topic(ORDERS, 2, policy=POLICY, schema=SCHEMA)
    client.admin.create_subscription(ORDERS, "billing", start="earliest")
    for number in range(60):
        value = json.dumps({"id": number, "amount": float(number)}) if number % 20 != 13 else "not an order"
        client.publish(ORDERS, value, partition=number % 2, key=f"k{number}", txn_id=f"txn-{number}").raise_for_status()
    taken = 0
    with client.consumer(ORDERS, "billing") as messages:
        for message in messages:
            messages.ack(message)
            taken += 1
            if taken == 25:
                break


def definition(url: str, folder: Path) -> Pipeline:
    """Return the pipeline of the golden tables."""
    silver = {"table": "orders", "from": "raw", "expect": [{"name": "known", "that": "id != 40"}]}
    return parse(
        {
            "format": 1,
            "name": "golden",
            "url": url,
            "tables": str(folder),
            "bronze": [{"table": "raw", "topic": ORDERS}],
            "silver": [silver],
        }
    )


def make_tables(url: str, folder: Path) -> dict[str, list[str]]:
    """Run a pipeline twice, compact a table, and read one as a stream with a name. Return the rows of each table."""
    spark = session("golden", master="local[2]", settings={"spark.sql.shuffle.partitions": "1"})
    try:
        pipeline = definition(url, folder)
        run_pipeline(pipeline, spark)
        with sulina.connect_sync(url) as client:
            client.publish(ORDERS, json.dumps({"id": 100, "amount": 1.5}), partition=0).raise_for_status()
        run_pipeline(pipeline, spark)
        stream = spark.readStream.format("sulina-delta").option("reader", "watcher").load(pipeline.table_uri("orders"))
        writing = stream.writeStream.format("sulina-delta").trigger(availableNow=True)
        copying = writing.option("checkpointLocation", str(folder / "_checkpoints/copy")).start(str(folder / "copy"))
        copying.awaitTermination()
        subprocess.run([sys.executable, "-m", "sulina.cli", "table", "optimize", str(folder / "raw")], check=True)
        return {name: rows(read_delta(spark, str(folder / name))) for name in (*pipeline.names, "copy")}
    finally:
        spark.stop()


def rows(frame: Any) -> list[str]:
    """Return the rows of a table as text, in an order that does not depend on its files."""
    return sorted(repr(row) for row in frame.collect())


# A cluster


async def a_cluster(folder: Path) -> dict[str, Any]:
    """Fill a cluster of two brokers and move a topic, so that its archive has all that archives have."""
    etcd = EtcdServer(folder / "etcd")
    await asyncio.to_thread(etcd.start)
    home = folder / "home"
    home.mkdir()
    try:
        async with cluster(home, etcd, "a", "b") as world:
            contents = await asyncio.to_thread(fill_archive, world, asyncio.get_running_loop())
            for name in ("a", "b"):
                await world.brokers[name].stop()
            metadata = await EtcdMetadata.open(etcd.endpoints, prefix=world.prefix)
            try:
                listing = await metadata.list("/")
            finally:
                await metadata.close()
    finally:
        await asyncio.to_thread(etcd.close)
    dump = {entry.key: entry.value.decode() for entry in listing.entries}
    (folder / "etcd.json").write_text(json.dumps({"revision": listing.revision, "entries": dump}, indent=1) + "\n")
    shutil.copytree(home / "objects", folder / "objects")
    for name in ("a", "b"):
        shutil.copytree(home / name, folder / "brokers" / name)
    shutil.rmtree(home)
    shutil.rmtree(folder / "etcd")
    return contents


def fill_archive(world: World, loop: asyncio.AbstractEventLoop) -> dict[str, Any]:
    """Publish many slices at one broker, a few at the other. Return what is in the topic."""

    def wait(call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call, loop).result()

    def has(what: str) -> bool:
        commits = world.folder.glob("objects/topic=*/*/_delta_log/*.json")
        return any(f'"type":"{what}"' in path.read_text() for path in commits)

    async def merged() -> bool:
        return has("merge")

    with sulina.connect_sync(",".join(broker.url for broker in world.brokers.values())) as client:
        client.admin.create_topic(EVENTS, policy={"ack": "archived", "txn_ids_max": 96})
        client.admin.create_subscription(EVENTS, "mail", start="earliest")
        first = wait(world.owner_of(EVENTS))
        for number in range(SLICES):
            client.publish(EVENTS, f"event {number}", key=f"k{number}", txn_id=f"txn-{number}").raise_for_status()
        wait(until("slices are merged", merged))
        with client.consumer(EVENTS, "mail") as messages:
            for number, message in enumerate(messages):
                messages.ack(message)
                if number == 30:
                    break
        wait(world.move(EVENTS, world.other(first)))
        for number in range(SLICES, SLICES + 5):
            client.publish(EVENTS, f"event {number}", key=f"k{number}", txn_id=f"txn-{number}").raise_for_status()
        assert list(world.folder.glob("objects/topic=*/*/*.state")), "the archive has no state"
        return contents_of(client, EVENTS, 1)


# What is there


def contents_of(client: SyncClient, topic: str, partitions: int) -> dict[str, Any]:
    """Return the records, versions and cursors of a topic, and the answers to repeated publishes."""
    found: dict[str, Any] = {"partitions": []}
    messages = list(client.read(topic, start="earliest", follow=False))
    messages.sort(key=lambda message: (message.partition, message.offset))
    for number, of_partition in groupby(messages, key=lambda message: message.partition):
        info = client.admin.partition(topic, number)
        found["partitions"].append(
            {
                "records": [
                    [m.offset, m.key.decode() if m.key else None, (m.value or b"").decode(), m.timestamp_ms]
                    for m in of_partition
                ],
                "version": info.version,
                "next_offset": info.end_offset,
                "commits": [digest(commit) for commit in commits_of(client, topic, number, info.version)],
            }
        )
    assert len(found["partitions"]) == partitions
    found["cursors"] = cursors(client, topic)
    found["answers"] = answers(client, topic, partitions)
    return found


def commits_of(client: SyncClient, topic: str, partition: int, version: int) -> Iterator[Any]:
    """Yield the newest commits of a partition."""
    yield from client.admin.commits(topic, partition, start=max(0, version - COMMITS_MAX), end=version + 1)


def digest(commit: Any) -> list[Any]:
    """Return what says which commit it is."""
    return [commit.version, commit.next_offset, hashlib.sha256(repr(commit).encode()).hexdigest()[:16]]


def cursors(client: SyncClient, topic: str) -> dict[str, list[list[int]]]:
    """Return the next offset of every subscription, by partition."""
    return {
        one.subscription: [[cursor.partition, cursor.offset] for cursor in one.cursors]
        for one in client.admin.subscriptions(topic)
    }


def answers(client: SyncClient, topic: str, partitions: int) -> dict[str, list[int]]:
    """Publish again what was published before, by its txn_ids: return where that is. Nothing is appended."""
    newest = SLICES if partitions == 1 else 59
    found = {}
    for number in range(newest - RETRIED, newest):
        ack = client.publish(topic, "again", partition=number % partitions, txn_id=f"txn-{number}")
        ack.raise_for_status()
        assert ack.offset is not None
        found[f"txn-{number}"] = [number % partitions, ack.offset]
    return found


def tidy(folder: Path) -> None:
    """Remove what is no format (logs of processes, locks), and the names of this machine and its folders."""
    for path in [*folder.rglob("*.log"), *folder.rglob(".lock"), *folder.rglob("*.lock")]:
        if path.parent == folder or path.name.endswith("lock"):
            path.unlink(missing_ok=True)
    for path in [*folder.glob("tables/*/_delta_log/*.json"), *folder.glob("tables/*/_sulina/*/*.json")]:
        text = path.read_text()
        path.write_text(text.replace(str(folder), "/golden").replace(f'"{socket.gethostname()}/', '"host/'))


def size(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    return (
        path.stat().st_size
        if path.is_file()
        else sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    )


if __name__ == "__main__":
    main()

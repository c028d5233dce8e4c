"""What a task of Spark publishes, and what it does not publish again: S2. On a real node, without a session."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StructType

from sulina.client import SyncClient
from sulina.client.sync import publish_encoded
from sulina.core.records.batch import split
from sulina.errors import Disconnected, DuplicateSequence, InvalidSettings
from sulina.spark import sink
from sulina.spark.errors import SinkBehind, SinkDiverged
from sulina.spark.sink import SulinaStreamWriter, SulinaWriter, WriteOptions
from sulina.spark.task_origin import EPOCHS, task_origin
from sulina.wire.messages import Published
from tests.support.serving import Serving

Topic = Callable[..., str]


@contextmanager
def a_task(query: str, batch: int, number: int) -> Iterator[None]:
    """As Spark's worker says it to the writer."""
    properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
    context = SimpleNamespace(partitionId=lambda: number, getLocalProperty=properties.get)
    with patch.object(TaskContext, "get", return_value=context):
        yield


def write(node: Serving, topic: str, values: list[str], *, query: str = "q", batch: int = 0, task: int = 0) -> None:
    options = WriteOptions.of({"url": node.url, "topic": topic}, StructType().add("value", "string"), overwrite=False)
    with a_task(query, batch, task):
        assert SulinaStreamWriter(options).write(rows(values)).rows == len(values)


def rows(values: list[str]) -> Iterator[pa.RecordBatch]:
    """Two batches of Arrow."""
    for half in (values[: len(values) // 2], values[len(values) // 2 :]):
        yield pa.RecordBatch.from_pydict({"value": pa.array(half, pa.string())})


def values(client: SyncClient, topic: str) -> list[str]:
    return [(record.value or b"").decode() for record in client.read(topic, follow=False)]


def test_s2_a_task_that_is_run_again_adds_nothing(client: SyncClient, node: Serving, topic: Topic) -> None:
    name = topic(3)
    for _ in range(3):
        write(node, name, ["a", "b", "c"])
    assert sorted(values(client, name)) == ["a", "b", "c"]


def test_s2_another_task_batch_or_query_is_not_taken_for_one_that_was_there(
    client: SyncClient, node: Serving, topic: Topic
) -> None:
    name = topic()
    write(node, name, ["a", "b"])
    write(node, name, ["c", "d"], task=1)
    write(node, name, ["e", "f"], batch=1)
    write(node, name, ["g", "h"], query="other")
    assert values(client, name) == list("abcdefgh")


def test_s2_what_is_too_much_for_one_publish_is_several_each_once(
    client: SyncClient, node: Serving, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "PUBLISH_BYTES", 1)
    name = topic()
    for _ in range(2):
        write(node, name, ["a", "b", "c"])
        write(node, name, ["d", "e"], batch=1)
    assert values(client, name) == list("abcde")
    assert client.admin.partition(name).version == 4, "four publishes, each a commit"


def test_s2_a_task_that_gives_other_rows_when_it_is_run_again_fails(
    client: SyncClient, node: Serving, topic: Topic
) -> None:
    name = topic()
    write(node, name, ["a", "b", "c"])
    with pytest.raises(SinkDiverged, match="has published 3 records"):
        write(node, name, ["a", "b"])
    assert values(client, name) == ["a", "b", "c"]


# What the log answers to a task that is run again


class Killed(BaseException):
    """The worker is gone."""


class Unlucky:
    """Publishes for a process that is killed, or that loses an answer, at its n-th publish."""

    def __init__(self, kill_before: int | None = None, lose: int | None = None) -> None:
        self._kill_before, self._lose = kill_before, lose
        self.publishes = 0

    def publish(self, client: SyncClient, topic: str, partition: int, data: memoryview, **more: str) -> Published:
        if self.publishes == self._kill_before:
            raise Killed
        published = publish_encoded(client, topic, partition, data, **more)
        self.publishes += 1
        if self.publishes == self._lose:
            raise Disconnected(url="the node", reason="the answer was lost")
        return published


def unlucky(monkeypatch: pytest.MonkeyPatch, **how: int) -> Unlucky:
    """How all tasks publish from now on."""
    made = Unlucky(**how)
    monkeypatch.setattr(sink, "publish_encoded", made.publish)
    return made


PARTS = [f"value {number}" for number in range(9)]


@pytest.fixture
def many_publishes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record of a task is a publish of its own: more than the log remembers one by one."""
    monkeypatch.setattr(sink, "PUBLISH_BYTES", 1)
    monkeypatch.setattr(sink, "BATCH_BYTES", 1)


@pytest.mark.usefixtures("many_publishes")
@pytest.mark.parametrize("publishes", range(len(PARTS)))
def test_s2_a_task_that_is_killed_between_publishes_goes_on_when_it_is_run_again(
    client: SyncClient, node: Serving, topic: Topic, monkeypatch: pytest.MonkeyPatch, publishes: int
) -> None:
    name = topic()
    with monkeypatch.context() as patches:
        unlucky(patches, kill_before=publishes)
        with pytest.raises(Killed):
            write(node, name, PARTS)
    assert values(client, name) == PARTS[:publishes]
    for _ in range(2):
        write(node, name, PARTS)
        assert values(client, name) == PARTS


@pytest.mark.usefixtures("many_publishes")
def test_s2_an_answer_that_is_lost_is_asked_for_again(
    client: SyncClient, node: Serving, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    made = unlucky(monkeypatch, lose=4)
    write(node, name, PARTS)
    assert made.publishes == len(PARTS) + 1
    assert values(client, name) == PARTS


class Forgetful(Unlucky):
    """Publishes to a log that no longer knows a task's first publishes one by one, only how far it has come."""

    def publish(self, client: SyncClient, topic: str, partition: int, data: memoryview, **more: str) -> Published:
        (header,) = split(data)
        if header.base_sequence < len(PARTS) - 5:
            last = len(PARTS) - 1
            raise DuplicateSequence(origin_id=header.producer_id, sequence=header.base_sequence, last=last)
        return super().publish(client, topic, partition, data, **more)


@pytest.mark.usefixtures("many_publishes")
def test_s2_what_the_log_no_longer_knows_one_by_one_is_not_published_again(
    client: SyncClient, node: Serving, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    write(node, name, PARTS)
    monkeypatch.setattr(sink, "publish_encoded", Forgetful().publish)
    write(node, name, PARTS)
    for count in (1, 3):
        with pytest.raises(SinkDiverged, match=f"has published {len(PARTS)} records .* and now has {count}"):
            write(node, name, PARTS[:count])
    assert values(client, name) == PARTS


@pytest.mark.usefixtures("many_publishes")
@pytest.mark.parametrize("count", [1, 3, 4, 8])
def test_s2_a_task_that_gives_fewer_rows_after_many_publishes_fails(
    client: SyncClient, node: Serving, topic: Topic, count: int
) -> None:
    name = topic()
    write(node, name, PARTS)
    with pytest.raises(SinkDiverged, match=f"and now has {count}"):
        write(node, name, PARTS[:count])
    assert values(client, name) == PARTS


def test_s2_a_task_that_gives_more_rows_when_it_is_run_again_fails(
    client: SyncClient, node: Serving, topic: Topic
) -> None:
    name = topic()
    write(node, name, ["a", "b", "c"])
    for more in (["a", "b", "c", "d"], ["a"] * 9):
        with pytest.raises(SinkDiverged):
            write(node, name, more)
    assert values(client, name) == ["a", "b", "c"]


def test_s2_a_batch_from_before_the_newest_adds_nothing_if_its_records_are_there(
    client: SyncClient, node: Serving, topic: Topic
) -> None:
    """A checkpoint that was brought back from a backup: what it replays is compared, not believed."""
    name = topic()
    for batch in range(8):
        write(node, name, [f"{batch}a", f"{batch}b"], batch=batch)
    stored = values(client, name)
    for batch in range(8):
        write(node, name, [f"{batch}a", f"{batch}b"], batch=batch)
    assert values(client, name) == stored
    with pytest.raises(SinkDiverged, match=r"has published 2 records to partition 0 .* and now has 3"):
        write(node, name, ["a", "b", "c"], batch=3)
    write(node, name, ["new"], batch=8)
    assert values(client, name) == [*stored, "new"]


def test_s2_a_batch_that_cannot_be_compared_any_more_is_refused(
    client: SyncClient, node: Serving, topic: Topic
) -> None:
    """It may never have been published: batch 1 had no rows for this partition, or another end."""
    name = topic()
    write(node, name, ["a"], batch=0)
    write(node, name, ["c"], batch=2)
    with pytest.raises(SinkBehind, match="bring back the newer one, or begin with a new checkpoint"):
        write(node, name, ["b"], batch=1)
    assert values(client, name) == ["a", "c"]


def test_s2_a_write_with_a_name_is_written_once_and_so_is_each_of_its_versions(
    client: SyncClient, node: Serving, topic: Topic
) -> None:
    name = topic()

    def put(value: str, **more: str) -> None:
        given = {"url": node.url, "topic": name, **more}
        options = WriteOptions.of(given, StructType().add("value", "string"), overwrite=False)
        with a_task("", 0, 0):
            SulinaWriter(options).write(rows([value]))

    for _ in range(2):
        put("a", txn="job")
        put("b", txn="job", txnVersion="1")
        put("c", txn="other")
        put("d")
    assert values(client, name) == ["a", "b", "c", "d", "d"]
    with pytest.raises(InvalidSettings, match="txnVersion"):
        put("e", txn="job", txnVersion="one")
    with pytest.raises(InvalidSettings, match="txnVersion"):
        put("e", txnVersion="1")


def test_s2_each_writer_task_topic_and_partition_is_a_producer_of_its_own() -> None:
    base = ("query a", 5, 0, "/default/x", 0)
    others = [
        ("query b", 5, 0, "/default/x", 0),
        ("query a", 5, 1, "/default/x", 0),
        ("query a", 5, 0, "/default/y", 0),
    ]
    others += [("query a", 5, 0, "/default/x", 1), ("query a", 5 + EPOCHS, 0, "/default/x", 0)]
    ids = [task_origin(*one).producer_id for one in (base, *others)]
    assert len(set(ids)) == len(ids)
    assert task_origin(*base) == task_origin(*base)
    assert task_origin("query a", 6, 0, "/default/x", 0).producer_id == ids[0]
    assert [task_origin("query a", batch, 0, "/default/x", 0).epoch for batch in (0, 5, EPOCHS - 1, EPOCHS)] == [
        0,
        5,
        EPOCHS - 1,
        0,
    ]
    for producer_id in ids:
        assert 1 << 62 <= producer_id < 1 << 63

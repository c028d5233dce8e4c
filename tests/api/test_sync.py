"""The same, for threads."""

import threading

import pytest

from sulina.client import PublishStatus, Record, RejectReason, SyncClient
from sulina.core.topic import Schema, SchemaKind
from sulina.errors import InvalidSettings, KeysSpanPartitions, SubscriptionBusy, TopicNotFound, VersionConflict


def test_publish_and_consume_p1(sync_client: SyncClient, topic: str) -> None:
    sync_client.admin.create_topic(topic, partitions=2)
    ack = sync_client.publish(topic, {"n": 1}, key="k", headers={"h": "v"}, timestamp_ms=1000)
    assert ack.status == PublishStatus.ACCEPTED
    sync_client.publish_batch(topic, [Record(str(n), key="k", timestamp_ms=1001 + n) for n in range(10)])
    records = list(sync_client.read(topic, follow=False))
    assert [record.offset for record in records] == list(range(11))
    assert (records[0].payload, records[0].key, records[0].headers[1:]) == ({"n": 1}, b"k", (("h", b"v"),))
    partition = [ack.partition]
    for start, first in [("latest", 11), ("offset:4", 4), ("timestamp:1005", 5), (f"version:{ack.version}", 0)]:
        reader = sync_client.read(topic, start=start, partitions=partition, follow=False)
        assert [record.offset for record in reader] == list(range(first, 11))
    assert len(list(sync_client.read(topic, partitions=partition, version=ack.version))) == 1
    with sync_client.read(topic, start="latest") as reader:
        sync_client.publish(topic, b"new")
        assert next(reader).value == b"new"


def test_a_batch_over_partitions_is_refused_or_split_l16(sync_client: SyncClient, topic: str) -> None:
    sync_client.admin.create_topic(topic, partitions=3)
    many = [Record(str(n), key=f"key-{n}") for n in range(20)]
    assert isinstance(sync_client.publish_batch(topic, many).error, KeysSpanPartitions)
    assert not list(sync_client.read(topic, follow=False)), "nothing of it is there"
    ack = sync_client.publish_batch(topic, many, split=True)
    assert ([part.base_offset for part in ack.parts], ack.count) == ([0, 0, 0], 20)
    assert len(list(sync_client.read(topic, follow=False))) == 20


def test_rejects_and_faults_p2(sync_client: SyncClient, topic: str) -> None:
    assert sync_client.publish("/orders", b"").reason == RejectReason.INVALID_TOPIC
    with pytest.raises(TopicNotFound):
        sync_client.publish(topic, b"")
    number = Schema(kind=SchemaKind.JSON, definition={"type": "integer"})
    sync_client.admin.create_topic(topic, schema=number)
    assert sync_client.publish(topic, "text").reason == RejectReason.INVALID_PAYLOAD
    assert sync_client.publish(topic, object()).reason == RejectReason.NOT_SERIALIZABLE
    ack = sync_client.publish(topic, 1, txn_id="one", schema=number)
    assert sync_client.publish(topic, 1, txn_id="one", schema=number) == ack
    assert sync_client.publish(topic, 2, expected_version=ack.version).is_accepted
    with pytest.raises(VersionConflict):
        sync_client.publish(topic, 3, expected_version=ack.version)
    passing = topic + "-passing"
    sync_client.admin.create_topic(passing, delivery="non_reliable")
    assert sync_client.publish(passing, b"").reason == RejectReason.NO_SUBSCRIBERS
    with pytest.raises(InvalidSettings):
        sync_client.read(topic, start="sometime")


@pytest.mark.parametrize("kind", ["exclusive", "shared", "failover", "key_shared"])
def test_subscribe_ack_and_resume_p12(sync_client: SyncClient, topic: str, kind: str) -> None:
    sync_client.admin.create_topic(topic)
    sync_client.publish_batch(topic, [str(n) for n in range(10)])
    with sync_client.consumer(topic, "s", mode=kind, start="earliest", credit=4) as messages:
        for message in messages:
            assert message.attempt == 1
            if message.offset < 5:
                assert messages.ack(message)
            elif message.offset < 8:
                messages.ack_soon(message)
            else:
                break
    with sync_client.consumer(topic, "s", mode=kind) as messages:
        assert [next(messages).text, next(messages).text] == ["8", "9"]
        assert messages.get(timeout_seconds=0.05) is None
    assert sync_client.admin.subscription(topic, "s").lag == 2


def test_batches_nack_and_dead_letters_p12(sync_client: SyncClient, topic: str) -> None:
    sync_client.admin.create_topic(topic, policy={"redelivery_delay_seconds": 0.01, "deliveries_max": 2})
    sync_client.publish_batch(topic, [str(n) for n in range(10)])
    with sync_client.consumer(topic, "s", start="earliest") as messages:
        batch = next(messages.batches())
        assert len(batch) == 10
        assert messages.ack(*batch[1:])
        assert messages.nack(batch[0])
        again = messages.get(timeout_seconds=20)
        assert again is not None
        assert (again.offset, again.attempt) == (0, 2)
        assert messages.nack(again, delay_seconds=0)
        letters = topic + ".dead-letter"
        made = threading.Event()
        for _ in range(1000):
            if letters in {info.topic for info in sync_client.admin.topics()}:
                break
            made.wait(0.01)
        letter = next(sync_client.read(letters))
        assert dict(letter.headers)["sulina-offset"] == b"0"


def test_seek_and_busy_p12(sync_client: SyncClient, topic: str) -> None:
    sync_client.admin.create_topic(topic)
    sync_client.publish_batch(topic, ["a", "b", "c"])
    with sync_client.consumer(topic, "s", start="earliest") as messages:
        assert [next(messages).text for _ in range(2)] == ["a", "b"]
        with pytest.raises(SubscriptionBusy), sync_client.consumer(topic, "s"):
            pass
        sync_client.admin.seek(topic, "s", "earliest")
        assert [next(messages).text for _ in range(3)] == ["a", "b", "c"], "what was read ahead is not shown"


def test_admin_p1(sync_client: SyncClient, topic: str) -> None:
    namespace = topic.rpartition("/")[2]
    sync_client.admin.create_namespace(namespace)
    assert sync_client.admin.namespace(namespace).topics == 0
    assert namespace in {each.namespace for each in sync_client.admin.namespaces()}
    name = f"/{namespace}/t"
    assert sync_client.admin.create_topic(name, 2) == sync_client.admin.topic(name)
    assert [info.topic for info in sync_client.admin.topics(namespace=namespace)] == [name]
    ack = sync_client.publish(name, b"x", partition=1)
    assert sync_client.admin.partition(name, 1).end_offset == 1
    assert sync_client.admin.locate(name, "latest", 1) == 1
    assert sync_client.admin.fetch(name, 1, 0).next_offset == 1
    assert ack.version is not None
    assert len(sync_client.admin.commits(name, 1, start=ack.version, end=ack.version + 1)) == 1
    sync_client.admin.create_subscription(name, "s")
    assert [each.subscription for each in sync_client.admin.subscriptions(name)] == ["s"]
    sync_client.admin.delete_subscription(name, "s")
    sync_client.admin.delete_topic(name)
    sync_client.admin.delete_namespace(namespace)
    assert sync_client.admin.info().is_ready
    assert sync_client.is_connected


def test_many_threads_share_one_client(sync_client: SyncClient, topic: str) -> None:
    sync_client.admin.create_topic(topic)
    failures: list[BaseException] = []

    def publish(name: int) -> None:
        try:
            for number in range(20):
                assert sync_client.publish(topic, f"{name}-{number}").is_accepted
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=publish, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    found = [record.text for record in sync_client.read(topic, follow=False)]
    assert len(found) == len(set(found)) == 160


def test_closing_ends_those_who_wait(sync_client: SyncClient, topic: str) -> None:
    sync_client.admin.create_topic(topic)
    with sync_client.consumer(topic, "s") as messages:
        ended = []
        waiting = threading.Thread(target=lambda: ended.append(list(messages)))
        waiting.start()
        messages.close()
        waiting.join(20)
        assert ended == [[]]

"""Acks of publishes: a reject that nobody looks at is told."""

import gc
import warnings
from collections.abc import Callable

import pytest

from sulina.client import Client, PublishAck, PublishPart, RejectedPublishWarning, RejectReason
from sulina.errors import NotSerializable, PubSubError, QueueFull, TopicNotFound
from tests.client.fake_node import TOPIC, FakeNode

FULL = QueueFull(waiting_bytes=2, limit_bytes=1)


def told(ack: PublishAck, look: Callable[[PublishAck], object] | None) -> list[str]:
    """What is said when an ack is thrown away."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if look is not None:
            look(ack)
        del ack
        gc.collect()
    assert all(issubclass(warning.category, RejectedPublishWarning) for warning in caught)
    return [str(warning.message) for warning in caught]


def refused(look: Callable[[], object]) -> None:
    with pytest.raises(QueueFull):
        look()


def test_p2_a_reject_that_nobody_looks_at_warns() -> None:
    [text] = told(PublishAck.rejected(FULL, TOPIC), None)
    assert f"A publish to {TOPIC} was rejected, QueueFull: {FULL}." in text
    assert "raise_for_status" in text
    assert told(PublishAck((PublishPart(partition=0, count=1, base_offset=7),)), None) == []


@pytest.mark.parametrize(
    "look",
    [
        lambda ack: ack.status, lambda ack: ack.is_accepted, lambda ack: ack.reason, lambda ack: ack.error,
        lambda ack: ack.message, lambda ack: ack.parts, lambda ack: ack.count, repr, hash, lambda ack: ack == ack,
        lambda ack: refused(ack.raise_for_status), lambda ack: refused(lambda: ack.offset),
        lambda ack: refused(lambda: ack.version), lambda ack: refused(lambda: ack.partition),
    ],
    ids=range(14),
)  # fmt: skip
def test_p2_a_reject_that_is_looked_at_does_not(look: Callable[[PublishAck], object]) -> None:
    assert told(PublishAck.rejected(FULL), look) == []


async def test_p2_the_client_does_not_look_at_what_it_returns(client: Client, node: FakeNode) -> None:
    for publish in (client.publish(TOPIC, object()), client.publish_batch(TOPIC, [b"x", object()])):
        [text] = told(await publish, None)
        assert "NotSerializable" in text
    async with client.producer(TOPIC) as producer:
        producer.produce(object())  # its report counts it
    assert producer.report().rejected == 1


def test_what_an_ack_says() -> None:
    part = PublishPart(partition=3, count=2, base_offset=7, version=1)
    accepted = PublishAck((part,))
    assert (accepted.is_accepted, accepted.offset, accepted.version, accepted.count) == (True, 7, 1, 2)
    assert accepted.raise_for_status() is accepted
    rejected = PublishAck.rejected(NotSerializable("no"))
    assert (rejected.reason, rejected.message, rejected.parts) == (RejectReason.NOT_SERIALIZABLE, "no", ())
    assert rejected != accepted
    assert "NotSerializable" in repr(rejected)
    assert repr(part) in repr(accepted)
    with pytest.raises(TopicNotFound):
        PublishAck.rejected(TopicNotFound(topic=TOPIC))
    assert issubclass(TopicNotFound, PubSubError)

"""What several brokers have to agree on: dead letters that end, consumers that are one, cursors of all partitions."""

from pathlib import Path

import pytest

from sulina.broker.consumer import ConsumerConnection
from sulina.core.cluster import keys
from sulina.core.delivery.cursor import Cursor
from sulina.core.delivery.holder import Admission, Holder, admit
from sulina.core.topic import Policy, TopicSettings
from sulina.errors import InvalidSettings, NotServing
from sulina.types import TopicName
from sulina.wire.messages import SubscriptionSettings
from tests.support.brokers import brokers

ONE, TWO = TopicName.parse("/default/one"), TopicName.parse("/default/two")


async def test_p12_of_two_brokers_that_make_the_halves_of_a_circle_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        a, b = world.running["a"], world.running["b"]
        for name in (ONE, TWO):
            await a.put_topic(name, TopicSettings())
            await b.registry.fetch(name)
        change = a.registry.catalogue.change_topic

        async def after_the_other(*arguments: object) -> None:
            """What was checked is not so any more when it is written."""
            monkeypatch.undo()
            await b.put_topic(TWO, TopicSettings(policy=Policy(dead_letter=str(ONE))))
            await change(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(a.registry.catalogue, "change_topic", after_the_other)
        with pytest.raises(InvalidSettings, match="circle"):
            await a.put_topic(ONE, TopicSettings(policy=Policy(dead_letter=str(TWO))))


async def test_p12_the_cursor_of_a_former_holder_is_not_written(tmp_path: Path) -> None:
    """The entry has changed, and the owner has not heard of it yet."""
    async with brokers(tmp_path, "a") as world:
        a = world.running["a"]
        await a.put_topic(ONE, TopicSettings())
        await world.publish(ONE, b"0")
        consumer = ConsumerConnection(name="one", id="1", credit=1)
        await a.attach(ONE, "s", SubscriptionSettings(start="earliest"), consumer)
        subscription = a.registry.topics[ONE].subscriptions["s"]
        fences = subscription.fences(0)
        await a.all_owners.claim(a.registry.topics[ONE], subscription, ConsumerConnection(name="one", id="2"))
        cursor = Cursor(1)
        with pytest.raises(NotServing):
            await a.cursor_writer.durable(keys.cursor(ONE, "s", 0), cursor.stored, fences)
        await a.cursor_writer.durable(keys.cursor(ONE, "s", 0), cursor.stored, subscription.fences(0))


@pytest.mark.parametrize(
    ("holder", "attached", "verdict"),
    [
        (None, None, Admission.MAY_TAKE),
        (Holder(consumer="me", id="1"), None, Admission.HOLDS),
        (Holder(consumer="me", id="0"), None, Admission.MAY_TAKE),
        (Holder(consumer="you", id="2"), None, Admission.MUST_ASK),
        (Holder(consumer="you", id="2"), {"2", "3"}, Admission.REFUSED),
        (Holder(consumer="you", id="2"), {"3"}, Admission.MAY_TAKE),
    ],
)
def test_p12_who_may_hold_a_subscription(holder: Holder | None, attached: set[str] | None, verdict: Admission) -> None:
    assert admit(holder, Holder(consumer="me", id="1"), attached) is verdict

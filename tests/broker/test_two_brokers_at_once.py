"""Two brokers change the same thing at once: what one decides by and what it compares with are of one moment."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sulina.core import keys
from sulina.core.members import SubscriptionKind
from sulina.core.topic import Policy, Schema, SchemaKind, TopicSettings
from sulina.errors import SchemaConflict
from sulina.ports import Compare, Entry, MetadataStore, Put, TxnResult
from sulina.wire.frames import Detached
from sulina.wire.messages import SubscriptionSettings
from tests.broker.test_broker import ORDERS
from tests.broker.test_sessions import ATTACHED, connected, is_quiet, subscribe
from tests.support.brokers import brokers, until

JSON = Schema(kind=SchemaKind.JSON, definition={"type": "object"})
STEPS = 200  # of the loop: more than a watch takes to bring a change


class SlowStore:
    """A broker's way to the store. After one answer, something else happens before the broker goes on."""

    def __init__(self, store: MetadataStore, key: str, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._key = key
        self._meanwhile: Callable[[], Awaitable[object]] | None = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, key: str) -> Entry | None:
        entry = await self._store.get(key)
        await self._answered([key])
        return entry

    async def txn(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TxnResult:
        done = await self._store.txn(compares=compares, puts=puts, deletes=deletes)
        await self._answered(deletes)
        return done

    async def _answered(self, asked: Sequence[str]) -> None:
        meanwhile = self._meanwhile
        if meanwhile is not None and self._key in asked:
            self._meanwhile = None
            await meanwhile()
            for _ in range(STEPS):
                await asyncio.sleep(0)


async def test_p12_a_subscription_that_two_brokers_make_at_once_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        a, b = world.running["a"], world.running["b"]
        await a.put_topic(ORDERS, TopicSettings(partitions=2))
        one, other = await world.owner(ORDERS, 0), await world.owner(ORDERS, 1)
        assert {one, other} == {a, b}
        async with connected(one) as quick, connected(other) as slow:

            async def attach_elsewhere() -> None:
                assert await subscribe(quick, kind=SubscriptionKind.SHARED) == ATTACHED

            store = SlowStore(world.metadata, keys.cursor(ORDERS, "s", 0), attach_elsewhere)
            monkeypatch.setattr(other._catalogue, "_metadata", store)
            assert await subscribe(slow, kind=SubscriptionKind.SHARED) == ATTACHED
            assert await is_quiet(quick), "the first consumer was told that its subscription has gone"


async def test_u11_a_schema_is_not_changed_by_a_broker_that_has_just_heard_of_the_first_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, TopicSettings())
        owner = await world.owner(ORDERS)
        other = next(broker for broker in world.running.values() if broker is not owner)
        await until(lambda: ORDERS in other._topics)
        store = SlowStore(world.metadata, keys.policy(ORDERS), lambda: world.publish(ORDERS, b"not json"))
        monkeypatch.setattr(other._catalogue, "_metadata", store)
        with pytest.raises(SchemaConflict):
            await other.put_topic(ORDERS, TopicSettings(value_schema=JSON, policy=Policy(dead_letter="/default/dead")))


async def test_r10_consumers_of_a_subscription_that_a_recovery_stored_again_are_told_to_come_back(
    tmp_path: Path,
) -> None:
    async with brokers(tmp_path, "a") as world:
        broker = world.running["a"]
        await broker.put_topic(ORDERS, TopicSettings())
        await world.owner(ORDERS)
        await broker.put_subscription(ORDERS, "s", SubscriptionSettings(kind=SubscriptionKind.SHARED))
        async with connected(broker) as connection:
            assert await subscribe(connection, kind=SubscriptionKind.SHARED) == ATTACHED
            entry = await world.metadata.get(keys.subscription(ORDERS, "s"))
            assert entry is not None
            await world.metadata.txn(puts=[Put(entry.key, entry.value)])
            told = await connection.receive()
            assert isinstance(told, Detached)
            assert told.code == "not_serving"
            assert await subscribe(connection, 2, kind=SubscriptionKind.SHARED) == ATTACHED

"""Two brokers change the same thing at once: what one decides by and what it compares with are of one moment."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from sulina.broker.catalogue import Outdated
from sulina.broker.topic import Topic
from sulina.core.cluster import keys
from sulina.core.delivery.members import SubscriptionKind
from sulina.core.records.record import StoredRecord
from sulina.core.topic import Policy, Schema, SchemaKind, TopicSettings
from sulina.errors import InvalidRecord, SchemaConflict, SulinaError
from sulina.ports import Change, Compare, Entry, MetadataStore, Put, TxnResult
from sulina.types import TopicName
from sulina.wire.frames import Detached
from sulina.wire.messages import SubscriptionSettings
from tests.broker.test_broker import ORDERS
from tests.broker.test_sessions import ATTACHED, connected, is_quiet, subscribe
from tests.support.brokers import brokers, until

JSON = Schema(kind=SchemaKind.JSON, definition={"type": "object"})
STEPS = 200  # of the loop: more than a watch takes to bring a change


class SlowStore:
    """A broker's way to the store. After one answer, something else happens before the broker goes on."""

    def __init__(
        self, store: MetadataStore, key: str, meanwhile: Callable[[], Awaitable[object]], *, is_put: bool = False
    ) -> None:
        self._store = store
        self._is_put = is_put  # the key, else read or deleted
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
        await self._answered([put.key for put in puts] if self._is_put else deletes)
        return done

    async def _answered(self, asked: Sequence[str]) -> None:
        meanwhile = self._meanwhile
        if meanwhile is not None and self._key in asked:
            self._meanwhile = None
            await meanwhile()
            await steps()


async def steps() -> None:
    """Let everybody go on for a while."""
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
            monkeypatch.setattr(other.registry.catalogue, "metadata", store)
            assert await subscribe(slow, kind=SubscriptionKind.SHARED) == ATTACHED
            assert await is_quiet(quick), "the first consumer was told that its subscription has gone"


async def test_u11_a_schema_is_not_changed_by_a_broker_that_has_just_heard_of_the_first_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, TopicSettings())
        owner = await world.owner(ORDERS)
        other = next(broker for broker in world.running.values() if broker is not owner)
        await until(lambda: ORDERS in other.registry.topics)
        store = SlowStore(world.metadata, keys.policy(ORDERS), lambda: world.publish(ORDERS, b"not json"))
        monkeypatch.setattr(other.registry.catalogue, "metadata", store)
        with pytest.raises(SchemaConflict):
            await other.put_topic(ORDERS, TopicSettings(value_schema=JSON, policy=Policy(dead_letter="/default/dead")))


async def test_r10_consumers_of_a_subscription_that_a_recovery_stored_again_are_told_to_come_back(
    tmp_path: Path,
) -> None:
    async with brokers(tmp_path, "a") as world:
        broker = world.running["a"]
        await broker.put_topic(ORDERS, TopicSettings())
        await world.owner(ORDERS)
        await broker.put_subscription(ORDERS, "s", SubscriptionSettings(mode=SubscriptionKind.SHARED))
        async with connected(broker) as connection:
            assert await subscribe(connection, kind=SubscriptionKind.SHARED) == ATTACHED
            entry = await world.metadata.get(keys.subscription(ORDERS, "s"))
            assert entry is not None
            await world.metadata.txn(puts=[Put(entry.key, entry.value)])
            told = await connection.receive()
            assert isinstance(told, Detached)
            assert told.code == "not_serving"
            assert await subscribe(connection, 2, kind=SubscriptionKind.SHARED) == ATTACHED


async def test_l6_a_topic_that_a_publisher_finds_deleted_is_closed_also_if_the_publisher_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a") as world:
        owner = world.running["a"]
        await owner.put_topic(ORDERS, TopicSettings())
        await world.owner(ORDERS)
        topic = owner.registry.topics[ORDERS]
        async with topic.partitions[0].using():
            pass
        is_closing, go_on = asyncio.Event(), asyncio.Event()

        async def find_deleted(_: object) -> None:
            marked = replace(topic.stored, is_deleting=True)
            with monkeypatch.context() as patched:
                patched.setattr(owner.registry.catalogue, "apply", lambda _: (set(), set()))  # the watch is late
                await world.metadata.txn(puts=[Put(keys.delivery(ORDERS), msgspec.json.encode(marked))])
                await steps()
            raise Outdated("somebody else has marked it")

        async def close_slowly(error: SulinaError) -> None:
            is_closing.set()
            await go_on.wait()
            await Topic.close(topic, error)

        monkeypatch.setattr(owner.registry.catalogue, "fix_schema", find_deleted)
        monkeypatch.setattr(topic, "close", close_slowly)
        publisher = asyncio.ensure_future(owner.publish_records(ORDERS, [StoredRecord(value=b"1")]))
        await is_closing.wait()
        publisher.cancel()
        await asyncio.wait([publisher])
        go_on.set()
        await until(lambda: topic.partitions[0].log_if_open is None)


async def test_f3_a_late_answer_to_a_delete_does_not_hide_the_next_topic_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        a, b = world.running["a"], world.running["b"]
        await a.put_topic(ORDERS, TopicSettings())
        await until(lambda: ORDERS in b.registry.topics)

        async def make_it_again() -> None:
            await until(lambda: ORDERS not in b.registry.topics and ORDERS not in b.registry.deleting)
            await b.put_topic(ORDERS, TopicSettings())
            await until(lambda: ORDERS in a.registry.topics)

        store = SlowStore(world.metadata, keys.delivery(ORDERS), make_it_again)
        monkeypatch.setattr(a.registry.catalogue, "metadata", store)
        await a.delete_topic(ORDERS)
        known = a.registry.catalogue.topic(ORDERS)
        assert known is not None
        assert known.stored == b.registry.topics[ORDERS].stored


async def test_u11_a_late_answer_is_older_than_what_was_loaded_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a") as world:
        broker = world.running["a"]
        await broker.put_topic(ORDERS, TopicSettings())
        await world.owner(ORDERS)

        async def delete_and_load() -> None:
            entries = (await world.metadata.list(keys.topic_prefix(ORDERS))).entries
            await world.metadata.txn(deletes=[entry.key for entry in entries])
            await broker.registry.catalogue.load()

        monkeypatch.setattr(
            broker.registry.catalogue, "apply", lambda _: (set(), set())
        )  # the watch goes on after the load
        store = SlowStore(world.metadata, keys.schema_fixed(ORDERS), delete_and_load, is_put=True)
        monkeypatch.setattr(broker.registry.catalogue, "metadata", store)
        await broker.registry.catalogue.fix_schema(ORDERS)
        assert keys.schema_fixed(ORDERS) not in broker.registry.catalogue.entries()


async def test_u11_a_first_record_is_checked_by_the_schema_that_a_broker_has_just_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, TopicSettings())
        owner = await world.owner(ORDERS)
        other = next(broker for broker in world.running.values() if broker is not owner)
        await until(lambda: ORDERS in other.registry.topics)
        with monkeypatch.context() as patched:
            patched.setattr(owner.registry.catalogue, "apply", lambda _: (set(), set()))  # it has missed the changes
            await other.put_topic(ORDERS, TopicSettings(value_schema=JSON))
            await steps()
        is_syncing, go_on = asyncio.Event(), asyncio.Event()

        async def sync_slowly(*_: object) -> None:
            is_syncing.set()
            await go_on.wait()

        monkeypatch.setattr(owner.registry, "sync", sync_slowly)  # other topics come first
        catching_up = asyncio.ensure_future(owner.registry.catch_up())
        await is_syncing.wait()
        with pytest.raises(InvalidRecord):
            await owner.publish_records(ORDERS, [StoredRecord(value=b"not json")])
        go_on.set()
        await catching_up


async def test_f2_cursors_of_others_do_not_wait_for_changes_of_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2: there may be thousands a second, and a watch that does not take them in time has to list everything."""
    async with brokers(tmp_path, "a") as world:
        broker = world.running["a"]
        await broker.put_topic(ORDERS, TopicSettings())
        await world.owner(ORDERS)
        taken: list[str] = []
        apply = broker.registry.catalogue.apply

        def note(changes: Sequence[Change]) -> tuple[set[str], set[TopicName]]:
            taken.extend(change.key for change in changes)
            return apply(changes)

        monkeypatch.setattr(broker.registry.catalogue, "apply", note)
        key = keys.cursor(ORDERS, "s", 0)
        async with broker.registry.lock:
            await world.metadata.txn(puts=[Put(key, b"{}")])
            await until(lambda: key in taken)

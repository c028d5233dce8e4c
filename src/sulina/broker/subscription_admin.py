"""How durable subscriptions are created, moved and deleted, and how consumers attach to them.

A subscription is created with its cursors, or gets them from the owners of the partitions; no consumer is sent anything
before its cursor is stored. One that starts at the latest record starts where the topic ended when it was asked for.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from sulina.broker.all_owners import AllOwners
from sulina.broker.catalogue import Outdated
from sulina.broker.consumer import ConsumerAttachment, ConsumerConnection
from sulina.broker.events import EventStream
from sulina.broker.metrics import Metrics
from sulina.broker.options import BrokerOptions, NodeCounts
from sulina.broker.run_to_completion import run_to_completion
from sulina.broker.serving_state import ServingState
from sulina.broker.subscription import Subscription
from sulina.broker.topic import Topic, refuse_consumers
from sulina.broker.topic_registry import TopicRegistry
from sulina.core.delivery.cursor import Cursor
from sulina.core.log.position import LATEST, Position
from sulina.errors import AlreadyExists, LimitReached, NotReliable, TopicNotFound
from sulina.types import TopicName, checked_subscription
from sulina.wire.messages import SubscriptionInfo, SubscriptionSettings

CURSORS_LOOKS, CURSORS_SECONDS = 100, 0.02  # whether others have made theirs, and between two looks


class SubscriptionAdmin:
    """Creates, moves, deletes and lists subscriptions, and attaches consumers."""

    def __init__(
        self,
        registry: TopicRegistry,
        *,
        owners: AllOwners,
        serving: ServingState,
        counts: NodeCounts,
        options: BrokerOptions,
        metrics: Metrics,
        events: EventStream,
    ) -> None:
        self.changes: set[asyncio.Task[Any]] = registry.changes
        self._registry = registry
        self._catalogue = registry.catalogue
        self._owners = owners
        self._serving = serving
        self._counts = counts
        self._options = options
        self._metrics = metrics
        self._events = events

    async def put_subscription(
        self, name: TopicName, subscription: str, settings: SubscriptionSettings
    ) -> tuple[SubscriptionInfo, bool]:
        """Create a subscription with its cursors where `start` says; return it, and whether it is new.

        Raises:
            AlreadyExists: it exists, and is of another kind.
            NotReliable: the topic is a best-effort topic.
            LimitReached: there are too many subscriptions or cursors.
            OwnersNotReached: where some partitions end is not known.
        """
        topic = self._registry.topic(name)
        topic.check_served()
        made, is_new = await self._subscription(topic, checked_subscription(subscription), settings)
        if is_new:
            await self._cursors_made(topic, subscription)
        if made.settings.mode != settings.mode:
            raise AlreadyExists(
                kind="subscription", name=subscription, difference=f"it is {made.settings.mode}, not {settings.mode}"
            )
        return await made.info(), is_new

    @run_to_completion
    async def _subscription(
        self, topic: Topic, subscription: str, settings: SubscriptionSettings
    ) -> tuple[Subscription, bool]:
        """Return the subscription, and whether it was created by this call."""
        if not topic.is_reliable:
            raise NotReliable(topic=str(topic.name))
        known = topic.subscriptions.get(subscription)
        is_new = False
        if known is None:
            # What is new from now on is decided now, not when an owner hears of it.
            is_latest = Position.parse(settings.start) == LATEST
            ends = await self._owners.end_offsets(topic) if is_latest else {}
            async with self._registry.changing():
                make = partial(
                    self._create_subscription, topic.stored.topic_id, topic.name, subscription, settings, ends
                )
                is_new = await self._registry.agreed(topic.name, make)
                await self._registry.sync_topic(topic.name)
                topic, known = self._registry.topic(topic.name), self._registry.subscription(topic.name, subscription)
        await self._registry.make_cursors(topic)
        if is_new:
            self._events.emit("subscription_added", topic.name, subscription=subscription, mode=str(settings.mode))
        return known, is_new

    async def _create_subscription(
        self,
        topic_id: str,
        name: TopicName,
        subscription: str,
        settings: SubscriptionSettings,
        starts: Mapping[int, int],
    ) -> bool:
        topic = self._registry.topic(name)
        if topic.stored.topic_id != topic_id:
            raise TopicNotFound(topic=str(name))
        if subscription in topic.subscriptions:
            return False
        if self._counts.subscriptions >= self._options.limits.subscriptions_max:
            raise LimitReached(kind="subscriptions", limit=self._options.limits.subscriptions_max)
        if self._counts.cursors + len(topic.partitions) > self._options.limits.cursors_max:
            raise LimitReached(kind="cursors", limit=self._options.limits.cursors_max)
        cursors = {number: Cursor(offset) for number, offset in starts.items()}
        await self._catalogue.create_subscription(name, subscription, settings, topic.stored.partitions, cursors)
        return True

    async def subscription(self, name: TopicName, subscription: str) -> SubscriptionInfo:
        """Return a subscription, as far as its partitions are served here.

        Raises:
            SubscriptionNotFound, NotOwner: it does not exist, or no partition is served here.
        """
        self._registry.topic(name).check_served()
        return await self._registry.subscription(name, subscription).info()

    async def subscriptions(self, name: TopicName) -> list[SubscriptionInfo]:
        """Return all subscriptions of a topic, by name."""
        self._registry.topic(name).check_served()
        known = sorted(self._registry.topic(name).subscriptions.items())
        return [await subscription.info() for _, subscription in known]

    @run_to_completion
    async def delete_subscription(self, name: TopicName, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription with its cursors.

        Raises:
            SubscriptionBusy: consumers are attached at a broker, and it was not forced.
            OwnersNotReached: a broker that may have consumers does not answer.
        """
        self._registry.subscription(name, subscription)
        self._registry.topic(name).check_served()
        if not force:
            await self._owners.check_idle(name, subscription)
        async with self._registry.changing():
            topic = self._registry.topic(name)
            if not force:
                refuse_consumers(name, topic.consumers(), subscription)  # one may have come while others were asked
            await self._registry.agreed(name, partial(self._delete_subscription, name, subscription))
            await self._registry.sync_topic(name)
            with contextlib.suppress(Outdated):
                await self._catalogue.delete_cursors(name, subscription, topic.stored.partitions)
        self._events.emit("subscription_removed", name, subscription=subscription)

    async def _delete_subscription(self, name: TopicName, subscription: str) -> None:
        self._registry.subscription(name, subscription)
        await self._catalogue.delete_subscription(name, subscription)

    @run_to_completion
    async def seek(
        self, name: TopicName, subscription: str, position: Position, *, partition: int | None = None
    ) -> SubscriptionInfo:
        """Move a subscription, in one partition or in all; its consumers are detached and attach again."""
        self._serving.check()
        self._registry.topic(name).check_served()
        known = self._registry.subscription(name, subscription)
        await known.seek(position, partition)
        self._events.emit("subscription_moved", name, subscription=subscription, position=str(position))
        return await known.info()

    async def seek_everywhere(self, name: TopicName, subscription: str, position: Position) -> SubscriptionInfo:
        """Move a subscription in all partitions, also those that other brokers serve.

        Raises:
            OwnersNotReached: it names the partitions in which it was not moved.
        """
        topic = self._registry.topic(name)
        info = await self.seek(name, subscription, position)
        here = [cursor.partition for cursor in info.cursors]
        infos = await self._owners.seek_elsewhere(topic, here, subscription, position)
        moved = [cursor for number, each in infos.items() for cursor in each.cursors if cursor.partition == number]
        cursors = sorted([*info.cursors, *moved], key=lambda cursor: cursor.partition)
        return replace(info, cursors=cursors, lag=sum(cursor.lag for cursor in cursors))

    async def consumers(self, name: TopicName, partition: int) -> dict[str, list[str]]:
        """Return the ids of consumers that are attached here, by subscription.

        Raises:
            NotOwner: the partition is served elsewhere.
        """
        topic = self._registry.topic(name)
        topic.check_number(partition)
        topic.ownerships[partition].check()
        return topic.consumers()

    async def attach(
        self, name: TopicName, subscription: str, settings: SubscriptionSettings, consumer: ConsumerConnection
    ) -> ConsumerAttachment:
        """Attach a consumer to a subscription, which is created if it does not exist.

        Raises:
            LimitReached: this node has too many consumers.
            SubscriptionBusy: another consumer has an exclusive subscription.
        """
        self._serving.check()
        topic = self._registry.topic(name)
        topic.check_served()
        checked_subscription(subscription)
        if self._counts.consumers >= self._options.limits.consumers_max:
            raise LimitReached(kind="consumers", limit=self._options.limits.consumers_max)
        if topic.is_reliable:
            known, _ = await self._subscription(topic, subscription, settings)
            await known.attach(consumer, settings)
            attachment = ConsumerAttachment(consumer, known, partial(known.detach, consumer))
        else:
            topic.attach_best_effort(subscription, settings, consumer)
            attachment = ConsumerAttachment(consumer, None, partial(topic.detach_best_effort, subscription, consumer))
        self._counts.consumers += 1
        self._metrics.consumers.set(self._counts.consumers)
        self._events.emit("consumer_attached", name, subscription=subscription, consumer=consumer.name)
        return attachment

    @run_to_completion
    async def detach(self, name: TopicName, attachment: ConsumerAttachment) -> None:
        """Detach a consumer: its connection has ended, or it wants no more."""
        self._counts.consumers -= 1
        self._metrics.consumers.set(self._counts.consumers)
        await attachment.detach()
        self._events.emit("consumer_detached", name, consumer=attachment.consumer.name)

    async def _cursors_made(self, topic: Topic, subscription: str) -> None:
        """Return when the owners of all partitions have made the cursors of a new subscription, if they do soon."""
        for _ in range(CURSORS_LOOKS):
            if len(await self._catalogue.cursors(topic.name, subscription)) == topic.stored.partitions:
                return
            await asyncio.sleep(CURSORS_SECONDS)

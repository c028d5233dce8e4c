"""The subscribers of one client: handlers by topic and name."""

import asyncio
import secrets
from collections.abc import Callable

from sulina.client.batches import BatchCodec
from sulina.client.brokers import Brokers
from sulina.client.checks import TopicLike, checked_text, topic_text
from sulina.client.consumer import Consumer
from sulina.client.handling import Handler
from sulina.client.identity import IdentitySubscriber
from sulina.client.serialization import SerializationRegistry
from sulina.client.subscriber import Subscriber, SubscriberTerms
from sulina.errors import DuplicateSubscriber, InvalidSettings, SubscriberNotFound, SulinaError

OnRemoved = Callable[[SulinaError], object]
AnySubscriber = Subscriber | IdentitySubscriber
Consume = Callable[[str, SubscriberTerms, int], Consumer]  # of an identity, with that much credit


class Subscribers:
    """Adds and removes subscribers; no two of a topic have the same name or handler."""

    def __init__(self, brokers: Brokers, codec: BatchCodec, registry: SerializationRegistry, consume: Consume) -> None:
        self._brokers = brokers
        self._codec = codec
        self._registry = registry
        self._consume = consume
        self._by_name: dict[tuple[str, str], AnySubscriber] = {}  # with those that are joining
        self._by_handler: dict[tuple[str, object], AnySubscriber] = {}

    async def add(
        self,
        topic: str,
        handler: Handler,
        *,
        identity: str | None,
        name: str | None,
        start: str,
        batches: bool,
        on_removed: OnRemoved | None,
    ) -> AnySubscriber:
        """Subscribe a handler, as `Client.subscribe` describes it.

        Raises:
            DuplicateSubscriber: the name, or the handler, is subscribed to the topic already.
            InvalidSettings: the handler cannot be called.
        """
        if not callable(handler):
            raise InvalidSettings(f"a handler is called with messages: {handler!r:.60} cannot be called")
        name = checked_text("name", name or f"subscriber-{secrets.token_hex(4)}")
        terms = SubscriberTerms(topic=topic, name=name, start=start, batches=batches)
        by_name, by_handler = (topic, name), (topic, _handler_id(handler))
        if by_name in self._by_name:
            raise DuplicateSubscriber(f"{name} is subscribed to {topic} already")
        if by_handler in self._by_handler:
            other = self._by_handler[by_handler].name
            raise DuplicateSubscriber(f"{other} is subscribed to {topic} with this handler already")
        subscriber: AnySubscriber
        if identity is None:
            subscriber = Subscriber(
                self._brokers, self._codec, self._registry, terms, handler,
                on_removed=on_removed, on_end=self._ended,
            )  # fmt: skip
        else:
            subscriber = IdentitySubscriber(
                self._brokers, lambda credit: self._consume(identity, terms, credit), identity, terms, handler,
                on_removed=on_removed, on_end=self._ended,
            )  # fmt: skip
        self._by_name[by_name] = self._by_handler[by_handler] = subscriber
        await subscriber.open()
        return subscriber

    async def remove(self, topic: TopicLike, subscriber: AnySubscriber | str) -> None:
        """Unsubscribe a subscriber, or the one of this name.

        Raises:
            SubscriberNotFound: it is not subscribed to the topic by this client.
        """
        name = subscriber if isinstance(subscriber, str) else subscriber.name
        known = self._by_name.get((topic_text(topic), name))
        if known is None or (known is not subscriber and not isinstance(subscriber, str)):
            raise SubscriberNotFound(f"{name} is not subscribed to {topic}")
        await known.unsubscribe()

    def all(self) -> list[AnySubscriber]:
        """Return all subscribers, with those that are joining."""
        return list(self._by_name.values())

    async def close(self, seconds: float) -> None:
        """Unsubscribe all; handlers that take longer than `seconds` are cancelled, or go on alone in their threads."""
        await asyncio.gather(*(subscriber.leave(seconds) for subscriber in self.all()))

    def _ended(self, subscriber: AnySubscriber) -> None:
        del self._by_name[subscriber.topic, subscriber.name]
        del self._by_handler[subscriber.topic, _handler_id(subscriber.handler)]


def _handler_id(handler: Handler) -> object:
    """Return what is equal for the same handler: a bound method is another object each time it is looked up."""
    owner = getattr(handler, "__self__", None)
    return id(handler) if owner is None else (id(owner), getattr(handler, "__name__", ""))

"""From messages to acks: bytes, partitions, batches, requests.

- Records go where their keys say, by the hash that every Kafka client uses. Those without a key go to one partition for
  each call, in turn; or by the txn_id, so that a call that is made again finds its first answer.
- A batch goes to one partition, all or nothing. Where its keys belong to several it is refused; a caller that says
  `split` has it sent as several requests, each all or nothing, and is told what became of each.
- Every publish has a number where the topic remembers it (`client.numbering`), unless its caller gave it a txn_id: so
  it can be repeated when its outcome is not known.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from sulina.client.batches import BatchCodec
from sulina.client.brokers import Brokers
from sulina.client.checks import checked, checked_number, checked_text, topic_of
from sulina.client.message import Record, header_pairs, key_bytes, stamp_ms
from sulina.client.numbering import Attempts
from sulina.client.publish_ack import PublishAck, PublishPart
from sulina.client.send_queues import PendingPublish, SendQueues
from sulina.client.serialization import SerializationRegistry
from sulina.client.topic_cache import KnownTopic, TopicCache
from sulina.core.delivery.pubsub import DeliveryPolicy, PartitionBehavior, PublishOptions
from sulina.core.records.record import Headers
from sulina.core.records.routing import partition_of, partitions_of
from sulina.core.topic import Schema
from sulina.errors import (
    InvalidSettings,
    KeysSpanPartitions,
    NotSerializable,
    PartitionNotFound,
    SulinaError,
    TopicNotFound,
)
from sulina.types import TopicName
from sulina.wire.messages import Published

NO_OPTIONS = PublishOptions()
_ONE = range(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishTerms:
    """What a call says about its records as a whole."""

    partition: int | None = None
    txn_id: str | None = None
    expected_version: int | None = None
    schema: Schema | str | None = None
    timeout_seconds: float | None = None
    is_idempotent: bool = True
    attempts: Attempts | None = None  # of a batch that its caller sends again until it is through
    producer: str | None = None  # as it is listed by its topic; None: it is not
    split: bool = False  # by partition, where the keys belong to several
    options: PublishOptions = NO_OPTIONS  # for subscribers

    def __post_init__(self) -> None:
        for what, number in (("partition", self.partition), ("expected_version", self.expected_version)):
            if number is not None:
                checked_number(what, number)
        for what, text in (("txn_id", self.txn_id), ("schema", self.schema_id)):
            if text is not None:
                checked_text(what, text)
        for given, kind in (
            (self.options.delivery_policy, DeliveryPolicy),
            (self.options.partition_behavior, PartitionBehavior),
        ):
            if given is not None:
                checked(given, kind)

    @property
    def schema_id(self) -> str | None:
        """As the node knows it."""
        return self.schema.fingerprint if isinstance(self.schema, Schema) else self.schema


@dataclass(slots=True)
class Columns:
    """Records, field by field. What no record has is None."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    timestamps_ms: list[int] | int
    headers: list[Headers] | None

    @classmethod
    def of(cls, records: Iterable[object], registry: SerializationRegistry, now_ms: int) -> "Columns":
        """Return records, or values, as they are stored.

        Raises:
            NotSerializable: one of them cannot be written; it says which.
        """
        values: list[bytes | None] = []
        keys: list[bytes | None] = []
        stamps: list[int] = []
        headers: list[Headers] = []
        write = registry.write
        for record in records:
            try:
                if isinstance(record, Record):
                    value, pairs = write(record.value, header_pairs(record.headers))
                    keys.append(key_bytes(record.key))
                    stamps.append(stamp_ms(record.timestamp_ms, now_ms))
                else:
                    value, pairs = write(record)
                    keys.append(None)
                    stamps.append(now_ms)
            except NotSerializable as error:
                raise NotSerializable(f"record {len(values)}: {error}") from None
            values.append(value)
            headers.append(pairs)
        return cls(
            values,
            keys if keys.count(None) < len(keys) else None,
            stamps if stamps.count(now_ms) < len(stamps) else now_ms,
            headers if any(headers) else None,
        )

    def rows(self, numbers: Sequence[int]) -> "Columns":
        """Return some of the records, in this order."""
        keys, stamps, headers = self.keys, self.timestamps_ms, self.headers
        return Columns(
            [self.values[n] for n in numbers],
            None if keys is None else [keys[n] for n in numbers],
            stamps if isinstance(stamps, int) else [stamps[n] for n in numbers],
            None if headers is None else [headers[n] for n in numbers],
        )


def by_partition(keys: Sequence[bytes | None], partitions: int, keyless: int) -> dict[int, Sequence[int]]:
    """Return which records go to which partition, by their indexes; those without a key go to `keyless`."""
    placements: dict[bytes | None, int] = {None: keyless}
    numbers: dict[int, list[int]] = {}
    for number, key in enumerate(keys):
        place = placements.get(key)
        if place is None:
            assert key is not None
            place = placements[key] = partition_of(key, partitions)
        numbers.setdefault(place, []).append(number)
    return {**numbers}


def acks_of(part: PublishPart) -> list[PublishAck | SulinaError]:
    """Return the ack, or the error, of each record of a part."""
    if part.error is not None:
        return [part.error if part.reason is None else PublishAck.of([part])] * part.count
    base = part.base_offset
    return [
        PublishAck((replace(part, base_offset=None if base is None else base + at, count=1, records=_ONE),))
        for at in range(part.count)
    ]


class RecordPublisher:
    """Publishes for one client."""

    def __init__(
        self,
        brokers: Brokers,
        codec: BatchCodec,
        topics: TopicCache,
        queues: SendQueues,
        registry: SerializationRegistry,
        on_reject: Callable[[str, SulinaError], None],
    ) -> None:
        """Make a publisher; `on_reject` gets the topic and the error of what was rejected before it was sent."""
        self._brokers = brokers
        self._codec = codec
        self._topics = topics
        self._queues = queues
        self._registry = registry
        self._on_reject = on_reject

    async def publish(self, topic: object, records: Iterable[object], terms: PublishTerms) -> PublishAck:
        """Publish records, and return when the node has answered for every part.

        Raises:
            SulinaError: a fault of the system; what is wrong with the records is in the ack.
        """
        try:
            name = topic_of(topic)
            columns = Columns.of(records, self._registry, int(time.time() * 1000))
            parts = await self._publish(name, columns, terms)
        except SulinaError as error:
            shown = str(topic) if isinstance(topic, str | TopicName) else ""
            ack = PublishAck.rejected(error, shown)
            self._on_reject(shown, error)
            return ack
        return PublishAck.of(parts, str(name))

    async def publish_each(
        self, topic: str, records: Sequence[object], terms: PublishTerms
    ) -> list[PublishAck | SulinaError]:
        """Publish records that have nothing to do with each other, and return what became of each of them."""
        try:
            name = topic_of(topic)
            columns = Columns.of(records, self._registry, int(time.time() * 1000))
            parts = await self._publish(name, columns, terms)
        except SulinaError as error:
            parts = [PublishPart(partition=0, count=len(records), error=error, records=range(len(records)))]
        found = {number: ack for part in parts for number, ack in zip(part.records, acks_of(part), strict=True)}
        return [found[number] for number in range(len(records))]

    async def _publish(self, name: TopicName, columns: Columns, terms: PublishTerms) -> list[PublishPart]:
        seconds = self._brokers.options.timeout_seconds if terms.timeout_seconds is None else terms.timeout_seconds
        known = await self._topic(name, seconds)
        parts = await self._attempt(known, columns, terms, seconds)
        if all(isinstance(part.error, PartitionNotFound | TopicNotFound) for part in parts):
            # Nothing was written; what is known of the topic may be of its past.
            newer = await self._topic(name, seconds, known)
            if newer.topic_id != known.topic_id:
                parts = await self._attempt(newer, columns, terms, seconds)
        return parts

    async def _topic(self, name: TopicName, seconds: float, known: KnownTopic | None = None) -> KnownTopic:
        """Return what is known of a topic; or, if that was wrong, what it is now."""
        try:
            if known is None:
                return await self._topics.get(name, seconds)
            return await self._topics.refresh(name, known, seconds)
        except TimeoutError:
            raise self._brokers.home.late(seconds) from None

    async def _attempt(
        self, topic: KnownTopic, columns: Columns, terms: PublishTerms, seconds: float
    ) -> list[PublishPart]:
        """Send each part, and return what the node says to it."""
        placements = self._places(topic, columns, terms)
        parts = [columns] if len(placements) == 1 else [columns.rows(numbers) for numbers in placements.values()]
        batches = [self._codec.encode(part.values, part.keys, part.timestamps_ms, part.headers) for part in parts]
        publishes = [
            self._pending(topic, place, memoryview(batch), terms)
            for place, batch in zip(placements, batches, strict=True)
        ]
        try:
            answers = await _answers(publishes, seconds)
        finally:
            if terms.attempts is not None:
                for place, pending in zip(placements, publishes, strict=True):
                    terms.attempts.keep((topic.topic_id, place), pending.origin if pending.is_unknown else None)
        return [_part(*place, answer) for place, answer in zip(placements.items(), answers, strict=True)]

    def _places(self, topic: KnownTopic, columns: Columns, terms: PublishTerms) -> dict[int, Sequence[int]]:
        count = len(columns.values)
        if terms.partition is not None:
            return {terms.partition: range(count)}
        if terms.txn_id is not None:
            keyless = partition_of(terms.txn_id.encode(), topic.partitions)
        elif terms.attempts is not None:
            keyless = terms.attempts.pin % topic.partitions
        else:
            keyless = topic.next_turn()
        if terms.expected_version is not None and topic.partitions > 1 and columns.keys is None:
            raise InvalidSettings("expected_version counts the commits of one partition: name it, or give a key")
        if topic.partitions == 1 or columns.keys is None:
            return {keyless: range(count)}
        named = partitions_of(set(columns.keys), topic.partitions)
        if len(named) <= 1 and terms.attempts is None:  # records without a key go along
            return {named.pop() if named else keyless: range(count)}
        if terms.split and terms.expected_version is None:
            return by_partition(columns.keys, topic.partitions, keyless)
        raise KeysSpanPartitions(topic=topic.name, partitions=", ".join(map(str, sorted(named))))

    def _pending(self, topic: KnownTopic, partition: int, data: memoryview, terms: PublishTerms) -> PendingPublish:
        attempts = terms.attempts
        return PendingPublish(
            self._queues.queue(topic, partition), data, terms.txn_id, terms.expected_version, terms.schema_id,
            terms.options, terms.producer,
            is_numbered=terms.txn_id is None and terms.is_idempotent and topic.remembers,
            origin=None if attempts is None else attempts.numbers.get((topic.topic_id, partition)),
        )  # fmt: skip


async def _answers(publishes: list[PendingPublish], seconds: float) -> list[Published | SulinaError]:
    """Return what the node says to each publish; those of several partitions are sent together."""
    if len(publishes) == 1:
        try:
            return [await publishes[0].queue.publish(publishes[0], seconds)]
        except SulinaError as error:
            return [error]
    for pending in publishes:  # before anybody else is
        pending.queue.enqueue(pending)
    try:
        waiting = (pending.queue.publish(pending, seconds) for pending in publishes)
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    finally:
        for pending in publishes:
            pending.queue.leave(pending)
    for answer in answers:
        if not isinstance(answer, Published | SulinaError):
            raise answer  # our own bug
    return [answer for answer in answers if isinstance(answer, Published | SulinaError)]


def _part(partition: int, records: Sequence[int], answer: Published | SulinaError) -> PublishPart:
    if isinstance(answer, SulinaError):
        return PublishPart(partition=partition, count=len(records), error=answer, records=records)
    return PublishPart(
        partition=answer.partition,
        count=answer.count,
        base_offset=answer.base_offset,
        version=answer.version,
        ack=answer.ack,
        records=records,
    )

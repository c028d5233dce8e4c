"""Everything that Sulina raises on purpose.

```
SulinaError
├── InvalidInput                    the caller's fault; nothing was written
│   ├── InvalidName                 a namespace, topic or partition name outside the rules
│   ├── InvalidBatch                a record batch that is not what its header says
│   │   ├── CorruptBatch            its CRC32C does not hold
│   │   └── UnknownCodec            a compression that the format does not know
│   ├── BatchTooLarge, DecompressedTooLarge   more bytes than the limit, as sent, or once decompressed
│   ├── InvalidSettings             a policy, schema or position outside the rules
│   ├── InvalidRecord               a record that its topic's schema does not allow
│   ├── NotSerializable             a value, key or header that has no form in bytes
│   ├── InvalidEnvelope             a message that cannot be read as what it says it is
│   ├── KeysSpanPartitions          one batch cannot be atomic in several partitions
│   └── NotReliable                 the topic keeps nothing, so there is nothing to read or seek
├── Conflict                        somebody else was first; nothing was written
│   ├── VersionConflict             another commit took the version           (retry)
│   ├── StaleEpoch, StaleOrigin     a newer owner exists; a newer instance of this producer does
│   │   └── EpochTaken              another owner has the same epoch: the metadata store gave it twice
│   ├── SequenceGap                 a producer's earlier batch is missing
│   ├── SequenceSkipped             not written: the log went on without it
│   ├── DuplicateSequence           written long ago; its offsets are no longer known
│   ├── AlreadyExists               with other settings
│   ├── SchemaConflict              another schema than that of the data that exists
│   ├── SubscriptionBusy            others are attached
│   ├── ReaderAhead                 the reader has come further already; force moves it back
│   └── NamespaceNotEmpty           it has topics
├── NotFound                        there is no such thing
│   ├── NamespaceNotFound, TopicNotFound, PartitionNotFound, SubscriptionNotFound, ReaderNotFound
│   ├── ConsumerNotFound            it has been detached
│   └── BrokerNotFound
├── CursorMoved                     a seek moved the subscription: subscribe again (retry)
├── NotAvailable                    the log does not have it
│   ├── NotYet                      the offset or version is not there yet    (retry)
│   ├── OffsetOutOfRange            before the first retained offset, or past the end
│   ├── PositionDiverged            offsets that were read were given up; says where the log goes on
│   └── VersionNotRetained          its commit has been cleaned up
├── QueueFull                       too much is waiting to be committed       (retry)
│   ├── TxnMemoryFull               as many txn_ids are remembered as may be
│   └── ProducerFull                too much is waiting to be published, in a batching producer
├── DelayQueueFull                  too much is waiting for a node that cannot be reached
├── NoSubscribers                   nobody is attached, and the topic keeps nothing
├── PartitionDropped                no node with subscribers can be reached, and the topic keeps nothing
├── PubSubError                     what publish/subscribe asked for failed, and the fault is not a message's
│   ├── NotStarted                  not yet, or no more
│   ├── DuplicateSubscriber, SubscriberNotFound   it is subscribed to the topic already; it is not
│   ├── SubscriberRemoved           it was suspended for too long, by timeouts of its deliveries for example
│   ├── TopicNotFound               above, under NotFound
│   ├── NotServing                  not started, or on its way out            (retry)
│   │   ├── Draining                the topic is moving; names the new owner once known
│   │   ├── NotOwner                another broker serves the partition; names it once known
│   │   ├── Recovering              only a broker that is away has all of it
│   │   ├── LogIncomplete           records that were reported before are missing; nothing is served until they are back
│   │   ├── MetadataWentBack        the metadata store was restored to an older state, or lost: recover the cluster
│   │   ├── OwnersNotReached        what needs every owner of a topic could not ask one of them
│   │   └── LeaseExpired            the broker may no longer acknowledge; the outcome is unknown
│   ├── Disconnected                the connection is gone, the outcome may be unknown (retry)
│   ├── LimitReached                the node has as many of them as it may
│   ├── ProducerStopped             a batching producer takes no more messages
│   ├── ProtocolError               the other side sent what it must not
│   ├── LogClosed, LogLocked        the log was closed; another process is writing this directory
│   ├── LogStopped                  a write failed; reopen after repair
│   ├── MetadataFailed, ArchiveFailed   a store did not do what it was asked  (retry)
│   │   └── MetadataFull            it takes no more writes until there is room (retry)
│   └── Corrupt                     stored bytes are not what was written
│       ├── CorruptSegment, CorruptCommit
│       └── CorruptLog              commits are missing and no checkpoint covers them
├── Compacted                       the watch is too old: list again          (retry)
└── LeaseLost                       it ended before it was kept alive
```
`retryable` says whether the same call can succeed later without a change.
"""

import re
from collections.abc import Collection
from typing import ClassVar

_CODES: dict[str, type["SulinaError"]] = {}


class SulinaError(Exception):
    """The root of the tree. `code` is its stable name on every surface."""

    retryable: ClassVar[bool] = False
    code: ClassVar[str] = "error"

    def __init_subclass__(cls) -> None:
        """Errors are known by the name of their class, in snake case."""
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        _CODES[cls.code] = cls

    def details(self) -> dict[str, object]:
        """The facts, as plain values: what a surface shows beside the message."""
        return {name: value for name, value in vars(self).items() if isinstance(value, str | int | float | None)}


def from_code(code: str, message: str, details: dict[str, object]) -> SulinaError:
    """The error that the other side of a connection raised."""
    kind = _CODES.get(code, PubSubError)  # an unknown one is a fault of the other side, not of what it was sent
    error = kind.__new__(kind, message)
    error.__dict__.update(details)
    return error


class PubSubError(SulinaError):
    """Publish/subscribe could not do as it was asked, and the fault is not a message's.

    `except PubSubError` catches every fault of the system that a client raises, those of storage and connections too.
    """


class InvalidInput(SulinaError):
    """The caller's fault; nothing was written."""


class InvalidName(InvalidInput):
    """A name outside the rules."""

    def __init__(self, *, kind: str, name: str, pattern: str) -> None:
        super().__init__(f"{kind} name {name!r} is not valid: it must match {pattern}")
        self.kind, self.name, self.pattern = kind, name, pattern


class InvalidBatch(InvalidInput):
    """A record batch that is not what its header says."""


class CorruptBatch(InvalidBatch):
    """A record batch whose checksum does not hold."""

    def __init__(self, *, stored: int, computed: int) -> None:
        super().__init__(f"record batch has CRC32C {computed:#010x}, its header says {stored:#010x}")
        self.stored, self.computed = stored, computed


class UnknownCodec(InvalidBatch):
    """A compression that the format does not know."""

    def __init__(self, *, codec: int) -> None:
        super().__init__(f"compression codec {codec} is unknown: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd")
        self.codec = codec


class BatchTooLarge(InvalidInput):
    """More bytes than the limit, as sent."""

    def __init__(self, *, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"record batch of {size_bytes} bytes is over the limit of {limit_bytes}")
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes


class DecompressedTooLarge(InvalidInput):
    """More bytes than the limit, once decompressed. Decompression stopped at the limit."""

    def __init__(self, *, limit_bytes: int) -> None:
        super().__init__(f"record batch decompresses to more than the limit of {limit_bytes} bytes")
        self.limit_bytes = limit_bytes


class InvalidSettings(InvalidInput):
    """A policy, schema or position outside the rules."""


class InvalidRecord(InvalidInput):
    """A record that its topic's schema does not allow; nothing of its batch was written."""

    def __init__(self, *, index: int, reason: str) -> None:
        super().__init__(f"record {index} does not fit the topic's schema: {reason}")
        self.index, self.reason = index, reason


class NotSerializable(InvalidInput):
    """A value, key or header that has no form in bytes; nothing was sent."""


class InvalidEnvelope(InvalidInput):
    """A message that cannot be read as what its headers say that it is."""


class KeysSpanPartitions(InvalidInput):
    """The keys of one batch belong to several partitions, and a batch is all or nothing in one."""

    def __init__(self, *, topic: str, partitions: str) -> None:
        super().__init__(
            f"the keys belong to partitions {partitions} of {topic}: send a batch for each, or name one partition "
            f"(the Python client splits a batch with split=True)"
        )
        self.topic, self.partitions = topic, partitions


class NotReliable(InvalidInput):
    """The topic keeps nothing, so there is nothing to read, seek or count."""

    def __init__(self, *, topic: str) -> None:
        super().__init__(f"{topic} is not reliable: it keeps no records")
        self.topic = topic


class Conflict(SulinaError):
    """Somebody else was first; nothing was written."""


class VersionConflict(Conflict):
    """Another commit took the version. Read again, then retry with the new version."""

    retryable = True

    def __init__(self, *, expected: int, current: int) -> None:
        super().__init__(f"expected version {expected}, but the log is at {current}")
        self.expected, self.current = expected, current


class StaleEpoch(Conflict):
    """A newer owner exists; nothing was written."""

    def __init__(self, *, ours: int, current: int) -> None:
        super().__init__(f"epoch {ours} is fenced by {current}")
        self.ours, self.current = ours, current


class EpochTaken(StaleEpoch):
    """Another broker owns the partition under the same epoch; nothing was written."""

    def __init__(self, *, epoch: int, by: str) -> None:
        Conflict.__init__(self, f"epoch {epoch} was claimed by broker {by} before: the metadata store gave it twice")
        self.ours, self.current, self.by = epoch, epoch, by


class StaleOrigin(Conflict):
    """A newer instance of this producer exists."""

    def __init__(self, *, origin_id: int, ours: int, current: int) -> None:
        super().__init__(f"producer {origin_id} with epoch {ours} is fenced by epoch {current}")
        self.origin_id, self.ours, self.current = origin_id, ours, current


class SequenceGap(Conflict):
    """A producer's earlier batch is missing: accepting this one would reorder its records."""

    def __init__(self, *, origin_id: int, sequence: int, expected: int) -> None:
        super().__init__(f"producer {origin_id} sent sequence {sequence}, expected {expected}")
        self.origin_id, self.sequence, self.expected = origin_id, sequence, expected


class SequenceSkipped(Conflict):
    """Later records of this producer were taken without these: they were not written, and must be numbered again."""

    def __init__(self, *, origin_id: int, sequence: int, last: int) -> None:
        super().__init__(
            f"producer {origin_id} sent sequence {sequence} too late: the log went on without it to {last}"
        )
        self.origin_id, self.sequence, self.last = origin_id, sequence, last


class DuplicateSequence(Conflict):
    """The batch was written long ago, or left out by a producer that may: what became of it is no longer known."""

    def __init__(self, *, origin_id: int, sequence: int, last: int) -> None:
        super().__init__(f"producer {origin_id} repeats sequence {sequence}; the log is at {last}")
        self.origin_id, self.sequence, self.last = origin_id, sequence, last


class AlreadyExists(Conflict):
    """It exists with other settings, which were left as they are."""

    def __init__(self, *, kind: str, name: str, difference: str) -> None:
        super().__init__(f"{kind} {name} exists and differs: {difference}")
        self.kind, self.name, self.difference = kind, name, difference


class SchemaConflict(Conflict):
    """The topic has data of another schema; a schema is for ever once data exists."""

    def __init__(self, *, topic: str, ours: str, current: str) -> None:
        super().__init__(f"{topic} has data of schema {current}, not {ours}")
        self.topic, self.ours, self.current = topic, ours, current


class SubscriptionBusy(Conflict):
    """Consumers are attached that leave no room for this."""

    def __init__(self, *, topic: str, subscription: str, reason: str) -> None:
        super().__init__(f"subscription {subscription} of {topic}: {reason}")
        self.topic, self.subscription, self.reason = topic, subscription, reason


class ReaderAhead(Conflict):
    """The reader has come further already. To read again what it has read, force it."""

    def __init__(self, *, topic: str, reader: str, partition: int, offset: int, current: int) -> None:
        super().__init__(
            f"reader {reader} is at offset {current} in partition {partition} of {topic}, and {offset} lies before it: "
            f"force moves it back"
        )
        self.topic, self.reader, self.partition, self.offset, self.current = topic, reader, partition, offset, current


class NamespaceNotEmpty(Conflict):
    """It has topics; delete them first."""

    def __init__(self, *, namespace: str, topics: int) -> None:
        super().__init__(f"namespace {namespace} has {topics} topics; delete them first")
        self.namespace, self.topics = namespace, topics


class NotFound(SulinaError):
    """There is no such thing."""


class NamespaceNotFound(NotFound):
    """Create it first."""

    def __init__(self, *, namespace: str) -> None:
        super().__init__(f"there is no namespace {namespace}")
        self.namespace = namespace


class TopicNotFound(NotFound, PubSubError):
    """Create it first."""

    def __init__(self, *, topic: str) -> None:
        super().__init__(f"there is no topic {topic}")
        self.topic = topic


class PartitionNotFound(NotFound):
    """The topic has fewer partitions."""

    def __init__(self, *, topic: str, partition: int, partitions: int) -> None:
        super().__init__(f"{topic} has partitions 0 to {partitions - 1}, not {partition}")
        self.topic, self.partition, self.partitions = topic, partition, partitions


class SubscriptionNotFound(NotFound):
    """Create it, or subscribe."""

    def __init__(self, *, topic: str, subscription: str) -> None:
        super().__init__(f"{topic} has no subscription {subscription}")
        self.topic, self.subscription = topic, subscription


class ReaderNotFound(NotFound):
    """It never registered, was deleted, or was forgotten because nothing was heard of it."""

    def __init__(self, *, topic: str, reader: str) -> None:
        super().__init__(f"{topic} has no registered reader {reader}")
        self.topic, self.reader = topic, reader


class ConsumerNotFound(NotFound):
    """It has been detached, or never was attached to this connection."""

    def __init__(self, *, consumer: int) -> None:
        super().__init__(f"there is no consumer {consumer} on this connection")
        self.consumer = consumer


class BrokerNotFound(NotFound):
    """The cluster has others."""

    def __init__(self, *, broker: str, brokers: str) -> None:
        super().__init__(f"there is no broker {broker}; there are {brokers}")
        self.broker, self.brokers = broker, brokers


class CursorMoved(SulinaError):
    """A seek moved the subscription, and let its consumers go: subscribe again."""

    retryable = True

    def __init__(self, *, topic: str, subscription: str) -> None:
        super().__init__(f"subscription {subscription} of {topic} was moved by a seek; subscribe again")
        self.topic, self.subscription = topic, subscription


class NotAvailable(SulinaError):
    """The log does not have it."""


class NotYet(NotAvailable):
    """The offset or version is not there yet."""

    retryable = True


class OffsetOutOfRange(NotAvailable):
    """Before the first retained offset, or past the end."""

    def __init__(self, *, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is outside [{start}, {end})")
        self.offset, self.start, self.end = offset, start, end


class PositionDiverged(NotAvailable):
    """Records that were read were given up since, and their offsets used again: read on at `continues_at`."""

    def __init__(self, *, topic: str, partition: int, offset: int, epoch: int, continues_at: int) -> None:
        super().__init__(
            f"offsets {continues_at} to {offset - 1} of {topic}, partition {partition}, were given up after they were "
            f"read in epoch {epoch}; the log goes on at {continues_at}"
        )
        self.topic, self.partition, self.offset, self.epoch = topic, partition, offset, epoch
        self.continues_at = continues_at


class VersionNotRetained(NotAvailable):
    """The commit of this version has been cleaned up, or never was."""

    def __init__(self, *, version: int, oldest: int, current: int) -> None:
        if version > current:
            super().__init__(f"version {version} does not exist yet; the newest is {current}")
        else:
            super().__init__(f"version {version} is not retained; versions {oldest} to {current} are")
        self.version, self.oldest, self.current = version, oldest, current


class QueueFull(SulinaError):
    """Too much is waiting to be committed."""

    retryable = True

    def __init__(self, *, waiting_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"{waiting_bytes} bytes wait to be committed, the limit is {limit_bytes}")
        self.waiting_bytes, self.limit_bytes = waiting_bytes, limit_bytes


class TxnMemoryFull(QueueFull):
    """A partition remembers as many txn_ids as it may: a new one has to wait until older ones have had their time."""

    def __init__(self, *, remembered: int, limit: int, seconds: float) -> None:
        SulinaError.__init__(
            self,
            f"{remembered} txn_ids are remembered, the limit is {limit}: try again, as each is forgotten {seconds:g} s "
            "after its commit; or raise txn_ids_max of the topic's policy",
        )
        self.remembered, self.limit, self.seconds = remembered, limit, seconds


class ProducerFull(QueueFull):
    """A batching producer has no room: wait for it, or produce less."""

    def __init__(self, *, waiting: int, limit: int, waiting_bytes: int, limit_bytes: int) -> None:
        SulinaError.__init__(
            self,
            f"{waiting} messages with {waiting_bytes} bytes wait to be published; "
            f"the limits are {limit} and {limit_bytes}",
        )
        self.waiting, self.limit, self.waiting_bytes, self.limit_bytes = waiting, limit, waiting_bytes, limit_bytes


class DelayQueueFull(SulinaError):
    """Too much waits for a node that cannot be reached. Nobody was sent anything."""

    def __init__(self, *, node: str, waiting_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"{waiting_bytes} bytes wait for node {node}, the limit is {limit_bytes}")
        self.node, self.waiting_bytes, self.limit_bytes = node, waiting_bytes, limit_bytes


class LimitReached(PubSubError):
    """There are as many of them as there may be."""

    def __init__(self, *, kind: str, limit: int) -> None:
        super().__init__(f"there may be {limit} {kind}, and there are")
        self.kind, self.limit = kind, limit


class NoSubscribers(SulinaError):
    """Nobody is attached, and the topic keeps nothing: nobody would ever see the records."""

    def __init__(self, *, topic: str) -> None:
        super().__init__(f"nobody is subscribed to {topic}, which keeps no records")
        self.topic = topic


class PartitionDropped(SulinaError):
    """No node with subscribers can be reached, and nothing is kept for them. Nobody was sent anything."""


class NotServing(PubSubError):
    """The node is starting, or on its way out."""

    retryable = True

    def __init__(self, *, reason: str) -> None:
        super().__init__(f"the node is not serving: {reason}")
        self.reason = reason


class Draining(NotServing):
    """The topic takes no more records here. Nothing was written; ask the owner, once it is known."""

    def __init__(self, *, topic: str, owner: str | None = None) -> None:
        super().__init__(reason=f"{topic} is moving" + (f" to {owner}" if owner else ""))
        self.topic, self.owner = topic, owner


class NotOwner(NotServing):
    """Another broker serves the partition, or none does at this moment. Nothing was written."""

    def __init__(self, *, topic: str, partition: int, owner: str | None = None, url: str | None = None) -> None:
        where = f"is served by broker {owner} at {url}" if owner else "has no owner at this moment"
        super().__init__(reason=f"partition {partition} of {topic} {where}")
        self.topic, self.partition, self.owner, self.url = topic, partition, owner, url


class Recovering(NotServing):
    """Its owner died, and only that broker has everything it acknowledged: it must return, or be given up."""

    def __init__(self, *, topic: str, partition: int, broker: str, only_there: tuple[int, int] | None = None) -> None:
        what = "what is not in the archive"
        if only_there is not None:
            start, end = only_there
            what = f"everything from offset {start} on" + (f", as far as it said up to {end}" if end > start else "")
        super().__init__(
            reason=f"partition {partition} of {topic} waits for broker {broker}, which alone has {what}; "
            f"start that broker again, or give up what only it has: sulina topic move {topic} --to BROKER --force"
        )
        self.topic, self.partition, self.broker, self.only_there = topic, partition, broker, only_there


class LogIncomplete(NotServing):
    """A log ends before what was reported of it. It stays closed, so that no offset is used twice."""

    retryable = False  # an operator brings back what is missing, or gives it up

    def __init__(self, *, partition: str, where: str, start: int, end: int, source: str) -> None:
        self.partition, self.where, self.start, self.end, self.source = partition, where, start, end, source
        super().__init__(
            reason=f"{partition} is closed: {self.lacks}. Bring back the "
            f"disk or the archive that has them, or give them up: sulina topic unload {partition.rpartition('/')[0]} "
            f"--partition {partition.rpartition('/')[2]} --give-up"
        )

    @property
    def lacks(self) -> str:
        """Return what is missing and who says so, without what to do about it."""
        missing = f"records [{self.start}, {self.end}) are missing"
        if self.start >= self.end:
            missing = "records of its last owner may be missing"
        return f"{self.where} ends at offset {self.start}, but {self.source}; {missing}"


class MetadataWentBack(NotServing):
    """The metadata store does not have what it once had. Nothing is acknowledged until the cluster was recovered."""

    def __init__(self, *, evidence: str) -> None:
        super().__init__(
            reason=f"the metadata store was restored to an older state, or lost: {evidence}. Nothing is acknowledged "
            "until an operator runs: sulina cluster recover"
        )
        self.evidence = evidence


class OwnersNotReached(NotServing):
    """What needs the owners of all partitions of a topic could not ask some of them. `partitions` says where."""

    def __init__(self, *, topic: str, partitions: Collection[int], what: str, reason: str) -> None:
        self.topic, self.what = topic, what
        self.partitions = ", ".join(map(str, sorted(partitions)))
        super().__init__(
            reason=f"{what}: the owners of partitions {self.partitions} of {topic} did not answer: {reason}"
        )


class LeaseExpired(NotServing):
    """The broker could not renew its lease, so another may own the partition. The outcome is unknown: retry it."""

    def __init__(self, *, broker: str) -> None:
        super().__init__(reason=f"broker {broker} has lost touch with the metadata store")
        self.broker = broker


class NotStarted(PubSubError):
    """It was not started yet, or has been stopped."""


class DuplicateSubscriber(PubSubError):
    """This name, or this handler, is subscribed to the topic already."""


class SubscriberNotFound(PubSubError):
    """It is not subscribed to the topic."""


class SubscriberRemoved(PubSubError):
    """The topic has removed a subscriber; it may subscribe again.

    `status` is what its last delivery came to: Timeout, SubscriberUnreachable or OtherError.
    """

    def __init__(self, *, topic: str, reason: str, status: str) -> None:
        super().__init__(f"a subscriber of {topic} was removed: {reason}")
        self.topic, self.reason, self.status = topic, reason, status


class ProducerStopped(PubSubError):
    """A batching producer takes no more messages."""

    def __init__(self, *, topic: str, reason: str) -> None:
        super().__init__(f"the producer for {topic} has stopped: {reason}")
        self.topic, self.reason = topic, reason


class Disconnected(PubSubError):
    """The connection is gone. What was waiting has an unknown outcome: retry it with the same txn_id."""

    retryable = True

    def __init__(self, *, url: str, reason: str) -> None:
        super().__init__(f"no connection to {url}: {reason}")
        self.url, self.reason = url, reason


class ProtocolError(PubSubError):
    """The other side sent what it must not."""


class Compacted(SulinaError):
    """A watch begins before what the store remembers, or fell too far behind: list again, then watch from there."""

    retryable = True

    def __init__(self, *, after: int, oldest: int) -> None:
        super().__init__(f"changes after revision {after} are gone; the oldest kept is {oldest}")
        self.after, self.oldest = after, oldest


class LeaseLost(SulinaError):
    """The lease ended before it was kept alive; its keys are gone."""

    def __init__(self, *, lease_id: int) -> None:
        super().__init__(f"lease {lease_id} has ended")
        self.lease_id = lease_id


class LogClosed(PubSubError):
    """The log was closed."""

    def __init__(self, *, path: str) -> None:
        super().__init__(f"the log in {path} is closed")
        self.path = path


class LogLocked(PubSubError):
    """Another process is writing this directory."""

    def __init__(self, *, path: str) -> None:
        super().__init__(f"{path} is being written by another process; a partition has one writer")
        self.path = path


class LogStopped(PubSubError):
    """A write failed, so what is on disk is unknown until the log is opened again, which a broker does by itself.

    Nothing acknowledged is affected. What was waiting may be written: retry it as the same txn or origin.
    """

    retryable = True

    def __init__(self, *, path: str, cause: BaseException) -> None:
        is_disk = isinstance(cause, OSError)
        then = "; open it again when the disk takes writes, as a broker does by itself" if is_disk else ""
        super().__init__(f"the log in {path} stopped: {cause}{then}")
        self.path, self.cause = path, cause
        self.__cause__ = cause


class MetadataFailed(PubSubError):
    """The metadata store did not do what it was asked, or whether it did is unknown. It can be asked again."""

    retryable = True

    def __init__(self, *, path: str, cause: BaseException) -> None:
        super().__init__(f"the metadata in {path} cannot be read or written: {cause}")
        self.path, self.cause = path, cause
        self.__cause__ = cause


class MetadataFull(MetadataFailed):
    """The metadata store has no room left: it answers, and takes no more writes. Nothing was written."""

    def __init__(self, *, path: str) -> None:
        self.path = path
        PubSubError.__init__(
            self,
            f"the metadata in {path} is full: nothing is written until its history is compacted or its quota raised",
        )


class ArchiveFailed(PubSubError):
    """The object store did not do what it was asked, and whether it did is unknown. It is tried again."""

    retryable = True

    def __init__(self, *, path: str, cause: BaseException) -> None:
        super().__init__(f"the archive in {path} cannot be reached: {cause}")
        self.path, self.cause = path, cause
        self.__cause__ = cause


class Corrupt(PubSubError):
    """Stored bytes are not what was written. They are never served."""


class CorruptSegment(Corrupt):
    """A stored batch fails its checksum, its offset or its epoch."""

    def __init__(self, *, path: str, position: int, offset: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at byte {position} (offset {offset}): {reason}")
        self.path, self.position, self.offset, self.reason = path, position, offset, reason


class CorruptCommit(Corrupt):
    """A commit or checkpoint file fails its checksum or the rules of the log."""

    def __init__(self, *, name: str, reason: str) -> None:
        super().__init__(f"{name} is damaged: {reason}")
        self.name, self.reason = name, reason


class CorruptLog(Corrupt):
    """Commits are missing and no valid checkpoint covers them. The log does not open: it never restarts at 0."""

    def __init__(self, *, path: str, reason: str) -> None:
        super().__init__(f"the commit log in {path} cannot be rebuilt: {reason}")
        self.path, self.reason = path, reason

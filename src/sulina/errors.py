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
│   ├── NotSerializable             a value, key or header that cannot be encoded as bytes
│   ├── InvalidEnvelope             a message that cannot be decoded as its headers say
│   ├── KeysSpanPartitions          one batch cannot be atomic in several partitions
│   └── NotReliable                 a best-effort topic stores no records, so there is nothing to read or seek
├── Conflict                        another writer or caller was first; nothing was written
│   ├── VersionConflict             another commit took the version           (retry)
│   ├── StaleEpoch, StaleOrigin     a newer owner of the partition exists; a newer instance of this producer does
│   │   └── EpochTaken              another broker has claimed the same epoch: the metadata store assigned it twice
│   ├── SequenceGap                 an earlier batch of this producer is missing
│   ├── SequenceSkipped             the batch was not written: the log has later ones of this producer
│   ├── DuplicateSequence           the batch was written long ago; its offsets are no longer known
│   ├── AlreadyExists               it exists with other settings
│   ├── SchemaConflict              the topic has data of another schema
│   ├── SubscriptionBusy            other consumers are attached
│   ├── ReaderAhead                 the reader is past this offset already; force moves it back
│   └── NamespaceNotEmpty           the namespace has topics
├── NotFound                        the named thing does not exist
│   ├── NamespaceNotFound, TopicNotFound, PartitionNotFound, SubscriptionNotFound, ReaderNotFound
│   ├── ConsumerNotFound            no such consumer is attached to the connection
│   └── BrokerNotFound
├── CursorMoved                     a seek moved the subscription: subscribe again (retry)
├── NotAvailable                    the log does not have the offset or version
│   ├── NotYet                      the log has not reached it yet            (retry)
│   ├── OffsetOutOfRange            before the first retained offset, or past the end
│   ├── PositionDiverged            records that were read have been discarded; says where to read on
│   └── VersionNotRetained          the commit of this version has been removed
├── QueueFull                       too many bytes wait to be committed       (retry)
│   ├── TxnMemoryFull               the partition remembers as many txn_ids as its policy allows
│   └── ProducerFull                too many messages wait in a batching producer
├── DelayQueueFull                  too many bytes wait for a node that cannot be reached
├── NoSubscribers                   nobody is subscribed to a best-effort topic
├── PartitionDropped                no node with subscribers to a best-effort topic can be reached
├── PubSubError                     the system failed, not the message
│   ├── NotStarted                  publish/subscribe was not started, or has been stopped
│   ├── DuplicateSubscriber, SubscriberNotFound   already subscribed to the topic; not subscribed to it
│   ├── SubscriberRemoved           the subscriber was suspended for too long, for example by delivery timeouts
│   ├── TopicNotFound               above, under NotFound
│   ├── NotServing                  the node is starting or stopping          (retry)
│   │   ├── Draining                the topic is moving; names the new owner once known
│   │   ├── NotOwner                another broker serves the partition; names it once known
│   │   ├── Recovering              only a broker that is away has all acknowledged records
│   │   ├── LogIncomplete           records that were reported are missing; the partition stays closed without them
│   │   ├── MetadataWentBack        the metadata store was restored to an older state, or lost: recover the cluster
│   │   ├── OwnersNotReached        an operation that needs every owner of a topic could not reach one of them
│   │   └── LeaseExpired            the broker may no longer acknowledge; the outcome is unknown
│   ├── Disconnected                the connection is lost, the outcome may be unknown (retry)
│   ├── LimitReached                a limit of the node is reached
│   ├── ProducerStopped             a batching producer accepts no more messages
│   ├── ProtocolError               the other side broke the protocol
│   ├── LogClosed, LogLocked        the log was closed; another process is writing this directory
│   ├── LogStopped                  a write failed; open the log again once the disk is repaired (retry)
│   ├── MetadataFailed, ArchiveFailed   a store failed, the outcome may be unknown (retry)
│   │   └── MetadataFull            the store accepts no writes until there is room (retry)
│   ├── NewerFormat                 a newer version of Sulina wrote this: upgrade to read it
│   └── Corrupt                     stored bytes are not what was written
│       ├── CorruptSegment, CorruptCommit
│       └── CorruptLog              commits are missing and no checkpoint covers them
├── Compacted                       the watch is too old: list again          (retry)
└── LeaseLost                       the lease ended before it was renewed
```
`retryable` says whether the same call can succeed later without a change. A message says what happened, to what, and
what to do about it.
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
        """Register the error under its code: the name of its class in snake case."""
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        _CODES[cls.code] = cls

    def details(self) -> dict[str, object]:
        """Return the facts as plain values, which surfaces show beside the message."""
        return {name: value for name, value in vars(self).items() if isinstance(value, str | int | float | None)}


def from_code(code: str, message: str, details: dict[str, object]) -> SulinaError:
    """Rebuild the error that the other side of a connection raised."""
    kind = _CODES.get(code, PubSubError)  # an unknown one is a fault of the other side, not of what it was sent
    error = kind.__new__(kind, message)
    error.__dict__.update(details)
    return error


class PubSubError(SulinaError):
    """A fault of the system, not of a message: `except PubSubError` catches those of storage and connections too."""


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
        super().__init__(
            f"record batch has CRC32C {computed:#010x}, its header says {stored:#010x}: it was damaged on its way, "
            f"send it again"
        )
        self.stored, self.computed = stored, computed


class UnknownCodec(InvalidBatch):
    """A compression that the format does not know."""

    def __init__(self, *, codec: int) -> None:
        super().__init__(f"compression codec {codec} is unknown: use 0 none, 1 gzip, 2 snappy, 3 lz4 or 4 zstd")
        self.codec = codec


class BatchTooLarge(InvalidInput):
    """More bytes than the limit, as sent."""

    def __init__(self, *, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"record batch of {size_bytes} bytes is over the limit of {limit_bytes}: send smaller batches")
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes


class DecompressedTooLarge(InvalidInput):
    """More bytes than the limit, once decompressed. Decompression stopped at the limit."""

    def __init__(self, *, limit_bytes: int) -> None:
        super().__init__(
            f"record batch decompresses to more than the limit of {limit_bytes} bytes: send smaller batches"
        )
        self.limit_bytes = limit_bytes


class InvalidSettings(InvalidInput):
    """A policy, schema or position outside the rules."""


class InvalidRecord(InvalidInput):
    """A record that its topic's schema does not allow; nothing of its batch was written."""

    def __init__(self, *, index: int, reason: str) -> None:
        super().__init__(f"record {index} does not fit the topic's schema: {reason}")
        self.index, self.reason = index, reason


class NotSerializable(InvalidInput):
    """A value, key or header that cannot be encoded as bytes; nothing was sent."""


class InvalidEnvelope(InvalidInput):
    """A message that cannot be decoded as its headers say."""


class KeysSpanPartitions(InvalidInput):
    """The keys of one batch belong to several partitions, and a batch is all or nothing in one."""

    def __init__(self, *, topic: str, partitions: str) -> None:
        super().__init__(
            f"the keys belong to partitions {partitions} of {topic}: send a batch for each, or name one partition "
            f"(the Python client splits a batch with split=True)"
        )
        self.topic, self.partitions = topic, partitions


class NotReliable(InvalidInput):
    """A best-effort topic stores no records, so there is nothing to read, seek or count."""

    def __init__(self, *, topic: str) -> None:
        super().__init__(f"{topic} is a best-effort topic, which stores no records: subscribe to it instead")
        self.topic = topic


class Conflict(SulinaError):
    """Another writer or caller was first; nothing was written."""


class VersionConflict(Conflict):
    """Another commit took the version. Read again, then retry with the new version."""

    retryable = True

    def __init__(self, *, expected: int, current: int) -> None:
        super().__init__(f"expected version {expected}, but the log is at {current}: read it again, then retry")
        self.expected, self.current = expected, current


class StaleEpoch(Conflict):
    """A newer owner exists; nothing was written."""

    def __init__(self, *, ours: int, current: int) -> None:
        super().__init__(f"epoch {ours} is fenced by epoch {current}: another owner has claimed the log")
        self.ours, self.current = ours, current


class EpochTaken(StaleEpoch):
    """Another broker owns the partition under the same epoch; nothing was written."""

    def __init__(self, *, epoch: int, by: str) -> None:
        Conflict.__init__(
            self, f"epoch {epoch} was claimed by broker {by} before: the metadata store assigned it twice"
        )
        self.ours, self.current, self.by = epoch, epoch, by


class StaleOrigin(Conflict):
    """A newer instance of this producer exists."""

    def __init__(self, *, origin_id: int, ours: int, current: int) -> None:
        super().__init__(
            f"producer {origin_id} with epoch {ours} is fenced by epoch {current}: a newer instance of it publishes"
        )
        self.origin_id, self.ours, self.current = origin_id, ours, current


class SequenceGap(Conflict):
    """An earlier batch of this producer is missing: accepting this one would reorder its records."""

    def __init__(self, *, origin_id: int, sequence: int, expected: int) -> None:
        super().__init__(
            f"producer {origin_id} sent sequence {sequence}, expected {expected}: send the batches in between first"
        )
        self.origin_id, self.sequence, self.expected = origin_id, sequence, expected


class SequenceSkipped(Conflict):
    """Later records of this producer were written without these, which were not: number them again."""

    def __init__(self, *, origin_id: int, sequence: int, last: int) -> None:
        super().__init__(
            f"producer {origin_id} sent sequence {sequence} too late: the log went on without it to {last}; "
            f"send it again with a sequence after {last}"
        )
        self.origin_id, self.sequence, self.last = origin_id, sequence, last


class DuplicateSequence(Conflict):
    """The batch was written long ago, or was skipped by a producer that may skip: which of the two is not known."""

    def __init__(self, *, origin_id: int, sequence: int, last: int) -> None:
        super().__init__(
            f"producer {origin_id} repeats sequence {sequence}; the log is at {last}, and no longer knows what became "
            f"of that batch"
        )
        self.origin_id, self.sequence, self.last = origin_id, sequence, last


class AlreadyExists(Conflict):
    """It exists with other settings, which were left as they are."""

    def __init__(self, *, kind: str, name: str, difference: str) -> None:
        super().__init__(f"{kind} {name} exists already with other settings: {difference}")
        self.kind, self.name, self.difference = kind, name, difference


class SchemaConflict(Conflict):
    """The topic has data of another schema; a schema cannot change once data exists."""

    def __init__(self, *, topic: str, ours: str, current: str) -> None:
        super().__init__(f"{topic} has data of schema {current}, not {ours}: a schema cannot change once there is data")
        self.topic, self.ours, self.current = topic, ours, current


class SubscriptionBusy(Conflict):
    """Other consumers are attached, so this one cannot be, or the subscription cannot be changed."""

    def __init__(self, *, topic: str, subscription: str, reason: str) -> None:
        super().__init__(f"subscription {subscription} of {topic}: {reason}")
        self.topic, self.subscription, self.reason = topic, subscription, reason


class ReaderAhead(Conflict):
    """The reader is past this offset already. To read the records again, force it back."""

    def __init__(self, *, topic: str, reader: str, partition: int, offset: int, current: int) -> None:
        super().__init__(
            f"reader {reader} is at offset {current} in partition {partition} of {topic}, which is past {offset}: "
            f"force moves it back"
        )
        self.topic, self.reader, self.partition, self.offset, self.current = topic, reader, partition, offset, current


class NamespaceNotEmpty(Conflict):
    """The namespace has topics; delete them first."""

    def __init__(self, *, namespace: str, topics: int) -> None:
        super().__init__(f"namespace {namespace} has {topics} topics; delete them first")
        self.namespace, self.topics = namespace, topics


class NotFound(SulinaError):
    """The named thing does not exist."""


class NamespaceNotFound(NotFound):
    """There is no namespace of this name."""

    def __init__(self, *, namespace: str) -> None:
        super().__init__(f"there is no namespace {namespace}: create it first")
        self.namespace = namespace


class TopicNotFound(NotFound, PubSubError):
    """There is no topic of this name. Where a name is likely misspelt, the command line suggests others."""

    def __init__(self, *, topic: str) -> None:
        super().__init__(f"there is no topic {topic}")
        self.topic = topic


class PartitionNotFound(NotFound):
    """The topic has fewer partitions."""

    def __init__(self, *, topic: str, partition: int, partitions: int) -> None:
        super().__init__(f"{topic} has no partition {partition}: its partitions are 0 to {partitions - 1}")
        self.topic, self.partition, self.partitions = topic, partition, partitions


class SubscriptionNotFound(NotFound):
    """The topic has no subscription of this name."""

    def __init__(self, *, topic: str, subscription: str) -> None:
        super().__init__(f"{topic} has no subscription {subscription}: create it first")
        self.topic, self.subscription = topic, subscription


class ReaderNotFound(NotFound):
    """The reader never registered, was deleted, or was removed because it has not reported for too long."""

    def __init__(self, *, topic: str, reader: str) -> None:
        super().__init__(f"{topic} has no registered reader {reader}: register it first")
        self.topic, self.reader = topic, reader


class ConsumerNotFound(NotFound):
    """The consumer has been detached, or never was attached to this connection."""

    def __init__(self, *, consumer: int) -> None:
        super().__init__(f"there is no consumer {consumer} on this connection: attach it again")
        self.consumer = consumer


class BrokerNotFound(NotFound):
    """The cluster has no broker of this name."""

    def __init__(self, *, broker: str, brokers: str) -> None:
        super().__init__(f"there is no broker {broker}: choose one of {brokers}")
        self.broker, self.brokers = broker, brokers


class CursorMoved(SulinaError):
    """A seek moved the subscription and detached its consumers: subscribe again."""

    retryable = True

    def __init__(self, *, topic: str, subscription: str) -> None:
        super().__init__(f"subscription {subscription} of {topic} was moved by a seek; subscribe again")
        self.topic, self.subscription = topic, subscription


class NotAvailable(SulinaError):
    """The log does not have the offset or version."""


class NotYet(NotAvailable):
    """The log has not reached the offset or version yet."""

    retryable = True


class OffsetOutOfRange(NotAvailable):
    """The offset is before the first retained one, or past the end."""

    def __init__(self, *, offset: int, start: int, end: int) -> None:
        nearest = f"the first that is retained is {start}" if offset < start else f"the next to come is {end}"
        super().__init__(f"offset {offset} is outside [{start}, {end}): {nearest}")
        self.offset, self.start, self.end = offset, start, end


class PositionDiverged(NotAvailable):
    """Records were discarded after they were read, and their offsets used again: read on at `continues_at`."""

    def __init__(self, *, topic: str, partition: int, offset: int, epoch: int, continues_at: int) -> None:
        super().__init__(
            f"offsets {continues_at} to {offset - 1} of {topic}, partition {partition}, were discarded after they were "
            f"read in epoch {epoch}; read on at offset {continues_at}"
        )
        self.topic, self.partition, self.offset, self.epoch = topic, partition, offset, epoch
        self.continues_at = continues_at


class VersionNotRetained(NotAvailable):
    """The commit of this version has been removed, or does not exist yet."""

    def __init__(self, *, version: int, oldest: int, current: int) -> None:
        if version > current:
            super().__init__(f"version {version} does not exist yet; the newest is {current}")
        else:
            super().__init__(f"version {version} is not retained; versions {oldest} to {current} are")
        self.version, self.oldest, self.current = version, oldest, current


class QueueFull(SulinaError):
    """Too many bytes wait to be committed."""

    retryable = True

    def __init__(self, *, waiting_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"{waiting_bytes} bytes wait to be committed, the limit is {limit_bytes}: retry later")
        self.waiting_bytes, self.limit_bytes = waiting_bytes, limit_bytes


class TxnMemoryFull(QueueFull):
    """A partition remembers as many txn_ids as it may: a new one must wait until older ones have expired."""

    def __init__(self, *, remembered: int, limit: int, seconds: float) -> None:
        SulinaError.__init__(
            self,
            f"no room for another txn_id: the partition remembers {remembered}, others wait, the limit is {limit}: "
            f"retry later, as each expires {seconds:g} s after its commit; or raise txn_ids_max in the topic's policy",
        )
        self.remembered, self.limit, self.seconds = remembered, limit, seconds


class ProducerFull(QueueFull):
    """Too many messages wait in a batching producer."""

    def __init__(self, *, waiting: int, limit: int, waiting_bytes: int, limit_bytes: int) -> None:
        SulinaError.__init__(
            self,
            f"{waiting} messages with {waiting_bytes} bytes wait to be published, the limits are {limit} messages and "
            f"{limit_bytes} bytes: wait for some to be published",
        )
        self.waiting, self.limit, self.waiting_bytes, self.limit_bytes = waiting, limit, waiting_bytes, limit_bytes


class DelayQueueFull(SulinaError):
    """Too many bytes wait for a node that cannot be reached. Nobody was sent anything."""

    def __init__(self, *, node: str, waiting_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"{waiting_bytes} bytes wait for node {node}, the limit is {limit_bytes}: retry once the node is back"
        )
        self.node, self.waiting_bytes, self.limit_bytes = node, waiting_bytes, limit_bytes


class LimitReached(PubSubError):
    """A limit of the node is reached. `allowed_by` names another one that has limits, such as a client."""

    def __init__(self, *, kind: str, limit: int, allowed_by: str = "this node") -> None:
        super().__init__(f"Limit reached: {allowed_by} allows at most {limit} {kind}.")
        self.kind, self.limit = kind, limit


class NoSubscribers(SulinaError):
    """Nobody is subscribed to a best-effort topic: nobody would ever get the records."""

    def __init__(self, *, topic: str) -> None:
        super().__init__(
            f"nobody is subscribed to {topic}, a best-effort topic, which stores no records: subscribe first"
        )
        self.topic = topic


class PartitionDropped(SulinaError):
    """No node with subscribers to a best-effort topic can be reached. Nobody was sent anything."""


class NotServing(PubSubError):
    """The node is starting or stopping. Subclasses: it does not serve this partition now, and `reason` is the text."""

    retryable = True

    def __init__(self, *, reason: str) -> None:
        super().__init__(f"the node is not serving: {reason}" if type(self) is NotServing else reason)
        self.reason = reason


class Draining(NotServing):
    """The topic is moving and accepts no records here. Nothing was written; retry at the owner, once it is known."""

    def __init__(self, *, topic: str, owner: str | None = None) -> None:
        super().__init__(reason=f"{topic} is moving to {f'broker {owner}' if owner else 'another owner'}: retry there")
        self.topic, self.owner = topic, owner


class NotOwner(NotServing):
    """Another broker serves the partition, or it has no owner at this moment. Nothing was written."""

    def __init__(self, *, topic: str, partition: int, owner: str | None = None, url: str | None = None) -> None:
        where = f"is served by broker {owner} at {url}" if owner else "has no owner at this moment: retry later"
        super().__init__(reason=f"partition {partition} of {topic} {where}")
        self.topic, self.partition, self.owner, self.url = topic, partition, owner, url


class Recovering(NotServing):
    """The owner died, and only its disk has every record it acknowledged: start it again, or discard those records."""

    def __init__(self, *, topic: str, partition: int, broker: str, only_there: tuple[int, int] | None = None) -> None:
        what = "what is not in the archive"
        if only_there is not None:
            start, end = only_there
            what = f"everything from offset {start} on" + (f", as far as it said up to {end}" if end > start else "")
        super().__init__(
            reason=f"partition {partition} of {topic} waits for broker {broker}, which alone has {what}; "
            f"start that broker again, or discard what only it has: sulina topic move {topic} --to BROKER --force"
        )
        self.topic, self.partition, self.broker, self.only_there = topic, partition, broker, only_there


class LogIncomplete(NotServing):
    """A log ends before the offset that was reported of it. It stays closed, so that no offset is used twice."""

    retryable = False  # an operator restores the missing records, or discards them

    def __init__(self, *, partition: str, where: str, start: int, end: int, source: str) -> None:
        self.partition, self.where, self.start, self.end, self.source = partition, where, start, end, source
        super().__init__(
            reason=f"{partition} is closed: {self.lacks}. Restore the "
            f"disk or the archive that has them, or discard them: sulina topic unload {partition.rpartition('/')[0]} "
            f"--partition {partition.rpartition('/')[2]} --give-up"
        )

    @property
    def lacks(self) -> str:
        """Return which records are missing and what shows it, without the remedy."""
        missing = f"records [{self.start}, {self.end}) are missing"
        if self.start >= self.end:
            missing = "records of its last owner may be missing"
        return f"{self.where} ends at offset {self.start}, but {self.source}; {missing}"


class MetadataWentBack(NotServing):
    """The metadata store was restored to an older state. Nothing is acknowledged until the cluster is recovered."""

    def __init__(self, *, evidence: str) -> None:
        super().__init__(
            reason=f"the metadata store was restored to an older state, or lost: {evidence}. Nothing is acknowledged "
            "until an operator runs: sulina cluster recover"
        )
        self.evidence = evidence


class OwnersNotReached(NotServing):
    """An operation needs the owners of all partitions of a topic, and those of `partitions` could not be reached."""

    def __init__(self, *, topic: str, partitions: Collection[int], what: str, reason: str) -> None:
        self.topic, self.what = topic, what
        self.partitions = ", ".join(map(str, sorted(partitions)))
        super().__init__(
            reason=f"{what}: the owners of partitions {self.partitions} of {topic} did not answer: {reason}"
        )


class LeaseExpired(NotServing):
    """The broker could not renew its lease, so another may own the partition. The outcome is unknown: retry it."""

    def __init__(self, *, broker: str) -> None:
        super().__init__(
            reason=f"broker {broker} has lost touch with the metadata store; the outcome is unknown, retry it"
        )
        self.broker = broker


class NotStarted(PubSubError):
    """Publish/subscribe was not started, or has been stopped."""


class DuplicateSubscriber(PubSubError):
    """This name or this handler is subscribed to the topic already."""


class SubscriberNotFound(PubSubError):
    """No subscriber of this name is subscribed to the topic."""


class SubscriberRemoved(PubSubError):
    """The topic has removed a subscriber; it may subscribe again.

    `status` is the outcome of its last delivery: Timeout, SubscriberUnreachable or OtherError.
    """

    def __init__(self, *, topic: str, reason: str, status: str) -> None:
        super().__init__(f"a subscriber of {topic} was removed: {reason}; subscribe again")
        self.topic, self.reason, self.status = topic, reason, status


class ProducerStopped(PubSubError):
    """A batching producer accepts no more messages."""

    def __init__(self, *, topic: str, reason: str) -> None:
        super().__init__(f"the producer for {topic} has stopped: {reason}; create another one")
        self.topic, self.reason = topic, reason


class Disconnected(PubSubError):
    """The connection is lost. Requests without an answer have an unknown outcome: retry them with the same txn_id."""

    retryable = True

    def __init__(self, *, url: str, reason: str) -> None:
        super().__init__(f"no connection to {url}: {reason}")
        self.url, self.reason = url, reason


class ProtocolError(PubSubError):
    """The other side of a connection broke the protocol."""


class Compacted(SulinaError):
    """A watch begins before the oldest kept change, or fell too far behind: list again, then watch from there."""

    retryable = True

    def __init__(self, *, after: int, oldest: int) -> None:
        super().__init__(
            f"changes after revision {after} are gone; the oldest kept is {oldest}: list, then watch again"
        )
        self.after, self.oldest = after, oldest


class LeaseLost(SulinaError):
    """The lease ended before it was renewed; its keys are gone."""

    def __init__(self, *, lease_id: int) -> None:
        super().__init__(f"lease {lease_id} has ended, and its keys are gone: acquire another one")
        self.lease_id = lease_id


class LogClosed(PubSubError):
    """The log was closed."""

    def __init__(self, *, path: str) -> None:
        super().__init__(f"the log in {path} is closed: open it again")
        self.path = path


class LogLocked(PubSubError):
    """Another process is writing this directory."""

    def __init__(self, *, path: str) -> None:
        super().__init__(f"{path} is being written by another process; a partition has one writer: stop that process")
        self.path = path


class LogStopped(PubSubError):
    """A write failed, so what is on disk is unknown until the log is opened again, which a broker does by itself.

    No acknowledged record is affected. Records that waited may be written: retry them with the same txn or origin.
    """

    retryable = True

    def __init__(self, *, path: str, cause: BaseException) -> None:
        is_disk = isinstance(cause, OSError)
        then = "; open it again when the disk takes writes, as a broker does by itself" if is_disk else ""
        super().__init__(f"the log in {path} stopped: {cause}{then}")
        self.path, self.cause = path, cause
        self.__cause__ = cause


class MetadataFailed(PubSubError):
    """A call to the metadata store failed, or its outcome is unknown. It can be retried."""

    retryable = True

    def __init__(self, *, path: str, cause: BaseException) -> None:
        super().__init__(f"the metadata in {path} cannot be read or written: {cause}")
        self.path, self.cause = path, cause
        self.__cause__ = cause


class MetadataFull(MetadataFailed):
    """The metadata store has no room left: it answers, but accepts no writes. Nothing was written."""

    def __init__(self, *, path: str) -> None:
        self.path = path
        PubSubError.__init__(
            self,
            f"the metadata in {path} is full: compact its history or raise its quota, nothing is written until then",
        )


class ArchiveFailed(PubSubError):
    """A call to the object store failed, and its outcome is unknown. It is retried."""

    retryable = True

    def __init__(self, *, path: str, cause: BaseException) -> None:
        super().__init__(f"the archive in {path} cannot be reached: {cause}")
        self.path, self.cause = path, cause
        self.__cause__ = cause


class NewerFormat(PubSubError):
    """A newer version of Sulina wrote this, in a format that this version does not know. Nothing was changed."""

    def __init__(
        self,
        *,
        family: str,
        name: str,
        format: int,  # noqa: A002
        newest: int,
        reader: str = "this Sulina",
    ) -> None:
        super().__init__(
            f"{name} has {family} {format}; {reader} knows it up to {newest}. Nothing was changed: upgrade {reader}"
        )
        self.family, self.name, self.format, self.newest = family, name, format, newest


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
    """Commits are missing and no valid checkpoint covers them. The log does not open: it never restarts at offset 0."""

    def __init__(self, *, path: str, reason: str) -> None:
        super().__init__(f"the commit log in {path} cannot be rebuilt: {reason}")
        self.path, self.reason = path, reason

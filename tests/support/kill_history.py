"""What clients saw of a topic while its node was killed again and again, and the rules that all of it must obey.

The clients note every event when it happens to them, in one order; nothing here asks the node. Each rule is
a function that yields what is wrong, so a broken history shows that the rule can fail.

A record says in its value which publish it belongs to, which of its records it is, and how many there are.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from sulina.core.delivery.members import SubscriptionKind
from sulina.core.records.routing import partition_of

Place: TypeAlias = tuple[int, int]  # partition, offset
Content: TypeAlias = tuple[bytes | None, bytes | None]  # key, value

RANGES_SHOWN_MAX = 1000  # of a cursor: what is acked behind them is not shown


# What publishers note


@dataclass(frozen=True, slots=True)
class Answer:
    """Where a publish went, as one answer to it says."""

    at: int  # when it came
    partition: int
    base_offset: int
    count: int
    version: int


@dataclass(slots=True)
class Txn:
    """One publish under one txn_id, however often it was sent."""

    txn_id: str
    publisher: str
    partition: int | None  # that was asked for
    records: tuple[Content, ...]
    sent_at: int  # the first time
    answers: list[Answer] = field(default_factory=list)
    sends: int = 0
    refusals: int = 0  # answers that said: not now. It was sent again, behind what came after it
    unknowns: int = 0  # sends that were never answered

    @classmethod
    def of(cls, txn_id: str, publisher: str, keys: Sequence[bytes | None], *, partition: int | None, at: int) -> "Txn":
        """With values that say where they belong."""
        count = len(keys)
        records = tuple((key, value_of(txn_id, place, count)) for place, key in enumerate(keys))
        return cls(txn_id, publisher, partition, records, at)


def value_of(txn_id: str, place: int, count: int) -> bytes:
    """Of one record. Their sizes differ."""
    return f"{txn_id}|{place}|{count}|".encode() + b"." * (7 * (place + count) % 90)


# What consumers note


@dataclass(frozen=True, slots=True)
class Delivered:
    """A consumer got these."""

    session: str
    partition: int
    attempt: int
    offsets: Sequence[int]


@dataclass(frozen=True, slots=True)
class AckSent:
    """A consumer acks these; number 0: it wants no answer."""

    session: str
    partition: int
    offsets: Sequence[int]
    number: int = 0


@dataclass(frozen=True, slots=True)
class AckAnswered:
    """The cursor is durable, and so is whatever this session acked before in this partition."""

    number: int


@dataclass(frozen=True, slots=True)
class NackSent:
    """A consumer wants these again."""

    session: str
    partition: int
    offsets: Sequence[int]


@dataclass(frozen=True, slots=True)
class Ended:
    """A consumer has left, or has lost its connection: it holds nothing any more."""

    session: str


@dataclass(frozen=True, slots=True)
class Restarted:
    """The node was ended and is about to start again. Every session has ended."""

    is_graceful: bool = False


@dataclass(frozen=True, slots=True)
class CursorAsked:
    """Somebody is about to look at the subscription."""

    number: int


@dataclass(frozen=True, slots=True)
class CursorShown:
    """And saw this, of one partition."""

    number: int
    partition: int
    offset: int
    acked: Sequence[tuple[int, int]]
    end_offset: int
    lag: int


@dataclass(frozen=True, slots=True)
class RangeGivenUp:
    """An operator gave up [start, end) of a partition: the log goes on at `start`."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CursorsRestored:
    """Cursors are as they were before: acks that were sent later than `since` may be lost."""

    since: int


Event = (
    Delivered
    | AckSent
    | AckAnswered
    | NackSent
    | Ended
    | Restarted
    | CursorAsked
    | CursorShown
    | RangeGivenUp
    | CursorsRestored
)


# What the log holds in the end


@dataclass(frozen=True, slots=True)
class Stored:
    """A record that a reader was given."""

    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Added:
    """What the commit feed says of one publish."""

    txn_id: str | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Committed:
    """One entry of the commit feed."""

    version: int
    next_offset: int  # of the log after it
    added: tuple[Added, ...] = ()


Log = Mapping[int, Sequence[Stored]]  # by partition
Feed = Mapping[int, Sequence[Committed]]


@dataclass(slots=True)
class History:
    """Everything that was noted. `faults` are what a client could see on the spot to be wrong."""

    txns: dict[str, Txn] = field(default_factory=dict)
    kinds: dict[str, SubscriptionKind] = field(default_factory=dict)
    events: dict[str, list[Event]] = field(default_factory=dict)  # by subscription
    contents: dict[Place, Content] = field(default_factory=dict)  # that consumers were given
    faults: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def now(self) -> int:
        """The next number: of an event, a session, an ack."""
        return next(self._numbers) + 1

    def saw(self, place: Place, content: Content) -> None:
        """A consumer was given a record: it is the same for everybody, for ever."""
        known = self.contents.setdefault(place, content)
        if known != content:
            self.faults.append(f"{place} was delivered as {known} and as {content}")

    def counts(self) -> dict[str, int]:
        """How much happened, of each thing that a run is for."""
        txns, events = self.txns.values(), [event for events in self.events.values() for event in events]
        deliveries = [event for event in events if isinstance(event, Delivered)]
        acks = [event for event in events if isinstance(event, AckSent)]
        delivered = sum(len(event.offsets) for event in deliveries)
        return {
            "publishes": len(self.txns),
            "records": sum(len(txn.records) for txn in txns),
            "publishes whose outcome was unknown, then answered": sum(bool(t.unknowns and t.answers) for t in txns),
            "publishes that were repeated after an answer": sum(len(txn.answers) > 1 for txn in txns),
            "publishes that were never answered": sum(not txn.answers for txn in txns),
            "records delivered": delivered,
            "records delivered again": delivered - len(self.contents) * len(self.events),
            "acks": len(acks),
            "acks that were answered": sum(isinstance(event, AckAnswered) for event in events),
            "nacks": sum(isinstance(event, NackSent) for event in events),
            "cursors seen": sum(isinstance(event, CursorShown) for event in events),
        }

    def write(self, path: Path) -> None:
        """Everything in a file, for whoever wants to know how it came about."""
        lines = [str(txn) for txn in self.txns.values()]
        lines += [f"{name}: {event}" for name, events in self.events.items() for event in events]
        path.write_text("\n".join(lines))

    def restarted(self, *, is_graceful: bool = False) -> None:
        """For all subscriptions."""
        for events in self.events.values():
            events.append(Restarted(is_graceful))


def violations(history: History, log: Log, feed: Feed) -> list[str]:
    """All rules over a whole run; nothing, if all is well."""
    ends = {partition: len(records) for partition, records in log.items()}
    wrong = list(history.faults)
    wrong += log_violations(history.txns, log)
    wrong += answer_violations(history.txns, log)
    wrong += feed_violations(history.txns, log, feed)
    wrong += order_violations(history.txns, log)
    wrong += content_violations(history.contents, log)
    for subscription, events in history.events.items():
        replay = Replay(subscription, history.kinds[subscription], log)
        wrong += replay.violations(events)
        wrong += replay.end_violations(ends)
    return wrong


# Rules of the log


def log_violations(txns: Mapping[str, Txn], log: Log) -> Iterator[str]:
    """No gap; nothing that nobody sent; each publish once, whole, in one piece, in the partition it belongs to."""
    found: dict[str, Place] = {}
    for partition, records in log.items():
        left: list[bytes | None] = []  # what must come next
        for due, record in enumerate(records):
            place = (partition, record.offset)
            if record.offset != due:
                yield f"partition {partition}: offset {record.offset} where {due} is due"
            txn, number = _sent(txns, record)
            if txn is None:
                yield f"{place}: nobody sent {record.value!r} with key {record.key!r}"
            elif left:
                if record.value != left.pop(0):
                    yield f"{place}: {txn.txn_id} begins before another publish is whole"
                    left = []
            elif number != 0:
                yield f"{place}: begins in the middle of {txn.txn_id}"
            else:
                left = [value for _, value in txn.records[1:]]
                if txn.txn_id in found:
                    yield f"{txn.txn_id} is at {found[txn.txn_id]} and at {place}"
                found[txn.txn_id] = place
                yield from _misplaced(txn, partition, len(log))
        if left:
            yield f"partition {partition} ends in the middle of a publish: {left[0]!r} is missing"


def _sent(txns: Mapping[str, Txn], record: Stored) -> tuple[Txn | None, int]:
    """The publish that a record belongs to, and which of its records it is."""
    try:
        txn_id, place, _ = (record.value or b"").split(b"|", 2)
        txn, number = txns[txn_id.decode()], int(place)
        return (txn, number) if txn.records[number] == (record.key, record.value) else (None, 0)
    except (ValueError, LookupError):
        return None, 0


def _misplaced(txn: Txn, partition: int, partitions: int) -> Iterator[str]:
    key = txn.records[0][0]
    wanted = txn.partition
    if wanted is None and key is not None:
        wanted = partition_of(key, partitions)
    if wanted not in (None, partition):
        yield f"{txn.txn_id} is in partition {partition}, it belongs to {wanted}"


def answer_violations(txns: Mapping[str, Txn], log: Log) -> Iterator[str]:
    """All answers to a txn_id are the same, and its records are where they say."""
    for txn in txns.values():
        said = {(answer.partition, answer.base_offset, answer.count, answer.version) for answer in txn.answers}
        if len(said) > 1:
            yield f"{txn.txn_id} was answered differently: {sorted(said)}"
        for partition, base_offset, count, _ in said:
            if count != len(txn.records):
                yield f"{txn.txn_id} has {len(txn.records)} records, its answer says {count}"
            there = log.get(partition, ())[base_offset : base_offset + len(txn.records)]
            if tuple((record.key, record.value) for record in there) != txn.records:
                yield f"{txn.txn_id} was acknowledged at {(partition, base_offset)} and is not there"


def feed_violations(txns: Mapping[str, Txn], log: Log, feed: Feed) -> Iterator[str]:
    """Versions follow each other from 0; each commit goes on where the last one ended; a publish is in one of them."""
    for partition, records in log.items():
        versions: dict[str, int] = {}
        end = 0
        for due, commit in enumerate(feed.get(partition, ())):
            if commit.version != due:
                yield f"partition {partition}: version {commit.version} where {due} is due"
            for added in commit.added:
                if added.start != end:
                    yield f"partition {partition}: version {commit.version} adds {added.start}, {end} is due"
                end = added.end
                yield from _misnamed(txns, records, partition, added)
                if added.txn_id is not None:
                    if added.txn_id in versions:
                        yield f"{added.txn_id} is in the versions {versions[added.txn_id]} and {commit.version}"
                    versions[added.txn_id] = commit.version
            if commit.next_offset != end:
                yield f"partition {partition}: version {commit.version} says {commit.next_offset}, it adds up to {end}"
        if end != len(records):
            yield f"partition {partition} ends at {len(records)}, its commits at {end}"
        for txn in txns.values():
            for answer in txn.answers:
                if answer.partition == partition and versions.get(txn.txn_id) != answer.version:
                    yield f"{txn.txn_id} was answered version {answer.version}, it is {versions.get(txn.txn_id)}"


def _misnamed(txns: Mapping[str, Txn], records: Sequence[Stored], partition: int, added: Added) -> Iterator[str]:
    """Whether a commit adds the records of the publish that it names, all of them and no other."""
    txn = txns.get(added.txn_id or "")
    there = tuple((record.key, record.value) for record in records[added.start : added.end])
    if txn is None or there != txn.records:
        yield f"partition {partition}: [{added.start}, {added.end}) is not what {added.txn_id} sent"


def order_violations(txns: Mapping[str, Txn], log: Log) -> Iterator[str]:
    """A publisher's records are in the order of its sending; what was answered is before what was sent later."""
    found: dict[str, Place] = {}
    for partition, records in log.items():
        for record in records:
            txn, number = _sent(txns, record)
            if txn is not None and number == 0:
                found.setdefault(txn.txn_id, (partition, record.offset))
    last: dict[tuple[str, int], tuple[int, str]] = {}
    for txn in sorted(txns.values(), key=lambda txn: txn.sent_at):
        if txn.txn_id not in found or txn.refusals:
            continue
        partition, offset = found[txn.txn_id]
        before = last.setdefault((txn.publisher, partition), (-1, ""))
        if offset < before[0]:
            yield f"{txn.txn_id} at {(partition, offset)} was sent after {before[1]} at {before[0]}"
        last[txn.publisher, partition] = (offset, txn.txn_id)
    for partition in log:
        first_answer, holder = 2**63, ""  # over all that lie behind
        here = sorted((place[1], txn_id) for txn_id, place in found.items() if place[0] == partition)
        for offset, txn_id in reversed(here):
            txn = txns[txn_id]
            if txn.sent_at > first_answer:
                yield f"{txn_id} at {(partition, offset)} was sent when {holder}, which is behind it, was answered"
            for answer in txn.answers:
                if answer.at < first_answer:
                    first_answer, holder = answer.at, txn_id


def content_violations(contents: Mapping[Place, Content], log: Log) -> Iterator[str]:
    """Whatever a consumer was ever given is in the log."""
    for (partition, offset), content in contents.items():
        records = log.get(partition, ())
        there = records[offset] if offset < len(records) else None
        if there is None or (there.key, there.value) != content:
            yield f"{(partition, offset)} was delivered as {content}, the log has {there}"


# Rules of a subscription


class Replay:
    """One subscription: its events in their order, and what had to be true at each."""

    def __init__(self, subscription: str, kind: SubscriptionKind, log: Log) -> None:
        self._name = subscription
        self._kind = kind
        self._log = log
        self._seen: set[Place] = set()
        self._highest: dict[tuple[int, bytes | None], int] = {}  # delivered, of what has an order
        self._holders: dict[Place, str] = {}
        self._ended: set[str] = set()
        self._nacks: Counter[Place] = Counter()
        self._acked: set[Place] = set()  # somebody acked it; whether the node has heard of it is another matter
        self._since: dict[tuple[str, int], list[Place]] = {}  # acked, by session and partition, and not durable yet
        self._waiting: dict[int, list[Place]] = {}  # made durable by the answer to this ack
        self._durable: dict[int, list[int]] = {}  # offsets by partition
        self._durable_set: set[Place] = set()
        self._asked: dict[int, dict[int, int]] = {}  # how much was durable
        self._shown: dict[int, CursorShown] = {}  # the last of each partition

    def violations(self, events: Iterable[Event]) -> Iterator[str]:
        """What is wrong, in the order of the events."""
        for event in events:
            match event:
                case Delivered():
                    yield from self._delivered(event)
                case AckSent():
                    self._ack_sent(event)
                case AckAnswered():
                    self._make_durable(self._waiting.pop(event.number))
                case NackSent():
                    for offset in event.offsets:
                        self._nacks[event.partition, offset] += 1
                        self._release(event.session, (event.partition, offset))
                case Ended():
                    self._ended.add(event.session)
                case Restarted():
                    yield from self._restarted(event)
                case CursorAsked():
                    self._asked[event.number] = {p: len(offsets) for p, offsets in self._durable.items()}
                case CursorShown():
                    yield from self._cursor(event)

    def _delivered(self, event: Delivered) -> Iterator[str]:
        for offset in event.offsets:
            place = (event.partition, offset)
            what = f"{self._name}: {place} was delivered to {event.session}"
            if place in self._durable_set:
                yield f"{what} after its ack was durable"
            holder = self._holders.get(place)
            if holder is not None and holder not in self._ended:
                yield f"{what} while {holder} had it"
            if not 1 <= event.attempt <= 1 + self._nacks[place]:
                yield f"{what} as attempt {event.attempt}, after {self._nacks[place]} nacks"
            self._holders[place] = event.session
            if place not in self._seen:
                self._seen.add(place)
                yield from self._out_of_order(place, what)

    def _out_of_order(self, place: Place, what: str) -> Iterator[str]:
        """Of the first deliveries; what is delivered again may come at any time."""
        if self._kind == SubscriptionKind.SHARED:
            return
        partition, offset = place
        records = self._log.get(partition, ())
        by_key = self._kind == SubscriptionKind.KEY_SHARED and offset < len(records)
        group = (partition, records[offset].key if by_key else b"")
        highest = self._highest.get(group, -1)
        if offset < highest:
            yield f"{what} for the first time after {highest}" + (f" of key {group[1]!r}" if by_key else "")
        self._highest[group] = max(highest, offset)

    def _ack_sent(self, event: AckSent) -> None:
        places = [(event.partition, offset) for offset in event.offsets]
        self._acked.update(places)
        for place in places:
            self._release(event.session, place)
        since = self._since.setdefault((event.session, event.partition), [])
        since += places
        if event.number:
            self._waiting[event.number] = since
            self._since[event.session, event.partition] = []

    def _release(self, session: str, place: Place) -> None:
        if self._holders.get(place) == session:
            del self._holders[place]

    def _make_durable(self, places: Iterable[Place]) -> None:
        for place in places:
            if place not in self._durable_set:
                self._durable_set.add(place)
                self._durable.setdefault(place[0], []).append(place[1])

    def _restarted(self, event: Restarted) -> Iterator[str]:
        holders = {session for session in self._holders.values() if session not in self._ended}
        if holders:
            yield f"{self._name}: the node ended, and {sorted(holders)} did not notice"
        self._holders.clear()
        if event.is_graceful:  # what the cursors were last seen to cover is durable
            for shown in self._shown.values():
                self._make_durable((shown.partition, offset) for offset in range(shown.offset))
        else:
            self._shown.clear()

    def _cursor(self, event: CursorShown) -> Iterator[str]:
        partition, what = event.partition, f"{self._name}: the cursor of partition {event.partition}"
        ahead = {offset for start, end in event.acked for offset in range(start, end)}
        known_to = event.acked[-1][1] if len(event.acked) >= RANGES_SHOWN_MAX else event.end_offset
        durable = self._durable.get(partition, [])[: self._asked[event.number].get(partition, 0)]
        lost = [offset for offset in durable if event.offset <= offset < known_to and offset not in ahead]
        if lost:
            yield f"{what} is at {event.offset}, and {lost[:5]} were acked durably"
        before = self._shown.get(partition)
        if before is not None and event.offset < before.offset:
            yield f"{what} went from {before.offset} back to {event.offset}"
        start = before.offset if before is not None else 0
        covered = ahead.union(range(start, event.offset))
        unasked = [offset for offset in covered if (partition, offset) not in self._acked]
        if unasked:
            yield f"{what} covers {sorted(unasked)[:5]}, which nobody acked"
        if event.lag != event.end_offset - event.offset - len(ahead) and known_to == event.end_offset:
            yield f"{what} says lag {event.lag} at {event.offset} with {len(ahead)} of {event.end_offset} ahead"
        self._shown[partition] = event

    def end_violations(self, ends: Mapping[int, int]) -> Iterator[str]:
        """In the end everything was delivered and acked, and the cursors say so."""
        for partition, end in ends.items():
            missing = [offset for offset in range(end) if (partition, offset) not in self._seen]
            if missing:
                yield f"{self._name}: {len(missing)} of partition {partition} were never delivered: {missing[:5]}"
            shown = self._shown.get(partition)
            if shown is None or (shown.offset, shown.lag, shown.end_offset) != (end, 0, end):
                yield f"{self._name}: partition {partition} ends at {end}, the cursor is {shown}"

"""What clients saw of a topic while its partitions moved from broker to broker, and the rules that all of it must obey.

The rules of the log are those of a node (`kill_history`): a cluster is held to no less. What is different is what a
consumer can know: its attachments end and begin by themselves, and another consumer's may have ended long ago.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from sulina.core.delivery.members import SubscriptionKind
from tests.support.kill_history import (
    AckAnswered,
    AckSent,
    Added,
    Committed,
    Content,
    CursorAsked,
    CursorShown,
    CursorsRestored,
    Delivered,
    Ended,
    Event,
    Feed,
    History,
    Log,
    Place,
    RangeGivenUp,
    Txn,
    answer_violations,
    content_violations,
    feed_violations,
    log_violations,
    order_violations,
)


@dataclass(frozen=True, slots=True)
class Before:
    """What was certain of a partition before a broker was asked about it."""

    acked_end: int  # records before it were acknowledged
    epoch: int  # the highest that a broker has served it under
    times_given_up: int


@dataclass(slots=True)
class ClusterHistory(History):
    """With those who read without a subscription: by reader, what it was given of each partition, in order."""

    read: dict[str, dict[int, list[int | RangeGivenUp]]] = field(default_factory=dict)
    cursors: dict[str, dict[int, int]] = field(default_factory=dict)  # by subscription and partition, in the end
    may_close: dict[int, set[str]] = field(default_factory=dict)  # by partition: codes that a fault justifies now
    acked_ends: dict[int, int] = field(default_factory=dict)  # by partition
    epochs: dict[int, int] = field(default_factory=dict)  # by partition: the highest that was seen
    given_up: list[RangeGivenUp] = field(default_factory=list)
    lost_commits: set[int] = field(default_factory=set)  # partitions whose archive was lost, with old commits
    moments: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=1000))  # in seconds, and the number

    def was_read(self, reader: str, place: Place, content: Content) -> None:
        """Note that a reader was given a record."""
        self.saw(place, content)
        self.read.setdefault(reader, {}).setdefault(place[0], []).append(place[1])

    def was_acked(self, partition: int, end: int) -> None:
        """Note that everything before `end` is acknowledged."""
        self.acked_ends[partition] = max(end, self.acked_ends.get(partition, 0))

    def before(self, partition: int) -> Before:
        """Return what a broker that is asked from now on must know."""
        times = sum(gone.partition == partition for gone in self.given_up)
        return Before(self.acked_ends.get(partition, 0), self.epochs.get(partition, -1), times)

    def saw_partition(self, before: Before, broker: str, partition: int, *, epoch: int, start: int, end: int) -> None:
        """Note what a broker answered about a partition that it serves."""
        if self.before(partition).times_given_up != before.times_given_up:
            return  # meanwhile the log went back, as it was told
        what = f"{broker} served partition {partition} under epoch {epoch}"
        if epoch < before.epoch:
            self.faults.append(f"{what} after another owner had epoch {before.epoch}")
        elif end < before.acked_end:
            self.faults.append(f"{what} up to {end}, where {before.acked_end} were acknowledged before")
        if start > 0:
            self.faults.append(f"{what} from {start} on: records have gone before their time")
        self.epochs[partition] = max(epoch, self.epochs.get(partition, -1))

    def saw_closed(self, broker: str, partition: int, code: str, reason: str) -> None:
        """Note that a broker keeps a partition closed, for which there must be a cause."""
        if code not in self.may_close.get(partition, ()):
            self.faults.append(f"{broker} closed partition {partition} without a cause: {code}: {reason}")

    def give_up(self, partition: int, start: int, end: int, *, unreported_after: int | None = None) -> int:
        """Forget what was acknowledged in this range, which an operator gave up; return how many records that were.

        What was acknowledged later than `unreported_after`, beyond `end`, was never reported and is lost with it.
        """
        given_up = 0
        for txn in self.txns.values():
            gone = [
                a
                for a in txn.answers
                if a.partition == partition
                and start <= a.base_offset
                and (a.base_offset < end or (unreported_after is not None and a.at > unreported_after))
            ]
            given_up += sum(answer.count for answer in gone)
            txn.answers = [answer for answer in txn.answers if answer not in gone]
        for place in [place for place in self.contents if place[0] == partition and place[1] >= start]:
            if place[1] < end or unreported_after is not None:
                del self.contents[place]
        told = RangeGivenUp(partition, start, end)
        self.given_up.append(told)
        self.acked_ends[partition] = min(start, self.acked_ends.get(partition, 0))
        for partitions in self.read.values():
            partitions.setdefault(partition, []).append(told)
        for events in self.events.values():
            events.append(told)
        return given_up

    def restore_cursors(self, seconds: float) -> None:
        """Note that cursors may be as they were so long ago, and no older."""
        earliest = time.monotonic() - seconds
        since = max((number for at, number in self.moments if at <= earliest), default=0)
        for events in self.events.values():
            events.append(CursorsRestored(since))

    def read_end(self, reader: str, partition: int) -> int:
        """Return the offset after the last one that a reader was given."""
        due = 0
        for each in reversed(self.read.get(reader, {}).get(partition, [])):
            if isinstance(each, int):
                return each + 1
            due = each.start
        return due


def cluster_violations(history: ClusterHistory, log: Log, feed: Feed) -> list[str]:
    """All rules over a whole run; nothing, if all is well."""
    ends = {partition: len(records) for partition, records in log.items()}
    wrong = list(history.faults)
    wrong += log_violations(history.txns, log)
    wrong += answer_violations(history.txns, log)
    whole = {partition: records for partition, records in log.items() if partition not in history.lost_commits}
    wrong += feed_violations(history.txns, whole, named_feed(history.txns, whole, feed))
    wrong += order_violations(history.txns, log)
    wrong += content_violations(history.contents, log)
    wrong += reader_violations(history.read)
    for subscription, events in history.events.items():
        replay = ClusterReplay(subscription, history.kinds[subscription])
        wrong += replay.violations(events)
        wrong += replay.end_violations(ends, history.cursors.get(subscription, {}))
    return wrong


def named_feed(txns: Mapping[str, Txn], log: Log, feed: Feed) -> dict[int, list[Committed]]:
    """Return the feed with the names of publishes that had no txn_id, as their records tell them."""

    def name_at(partition: int, offset: int) -> str | None:
        records = log.get(partition, ())
        value = records[offset].value if offset < len(records) else None
        name = (value or b"").split(b"|")[0].decode(errors="replace")
        return name if name in txns else None

    def named(partition: int, added: Added) -> Iterator[Added]:
        if added.txn_id is not None:
            yield added
            return
        for name, group in groupby(range(added.start, added.end), key=lambda offset: name_at(partition, offset)):
            offsets = list(group)
            yield Added(name, offsets[0], offsets[-1] + 1)

    return {
        partition: [
            Committed(c.version, c.next_offset, tuple(each for added in c.added for each in named(partition, added)))
            for c in commits
        ]
        for partition, commits in feed.items()
    }


def reader_violations(read: Mapping[str, Mapping[int, Iterable[int | RangeGivenUp]]]) -> Iterator[str]:
    """A reader from the beginning gets every record once, in order, whoever serves it; again what is given up."""
    for reader, partitions in read.items():
        for partition, offsets in partitions.items():
            due = 0
            for offset in offsets:
                if isinstance(offset, RangeGivenUp):
                    due = min(due, offset.start)
                elif offset != due:
                    yield f"{reader} read offset {offset} of partition {partition} where {due} is due"
                    break
                else:
                    due += 1


class ClusterReplay:
    """One subscription from the beginning of its topic: its events in their order, and what had to be true at each.

    A session is one attachment of one consumer. Nobody nacks.
    """

    def __init__(self, subscription: str, kind: SubscriptionKind) -> None:
        self._name = subscription
        self._has_order = kind in (SubscriptionKind.EXCLUSIVE, SubscriptionKind.FAILOVER)
        self._seen: dict[int, set[int]] = {}
        self._due: dict[int, int] = {}  # the first that nobody got yet, where there is an order
        self._last: dict[tuple[str, int], int] = {}  # got by a session
        self._waiting: dict[int, set[Place]] = {}  # acks that are not answered
        self._durable: dict[Place, int] = {}  # with the number of the ack
        self._is_shared_out_again = False  # a consumer ended by itself: what was on its way there goes to others, late
        self._asked: dict[int, dict[int, int]] = {}  # by number and partition: where durable acks ended then
        self._durable_ends: dict[int, int] = {}

    def violations(self, events: Iterable[Event]) -> Iterator[str]:
        """What is wrong, in the order of the events."""
        events = list(events)
        self._is_shared_out_again = not self._has_order and any(isinstance(event, Ended) for event in events)
        for event in events:
            match event:
                case Delivered():
                    yield from self._delivered(event)
                case AckSent():
                    self._waiting[event.number] = {(event.partition, offset) for offset in event.offsets}
                case AckAnswered():
                    self._answered(event)
                case CursorAsked():
                    self._asked[event.number] = dict(self._durable_ends)
                case CursorShown():
                    yield from self._shown(event)
                case RangeGivenUp():
                    self._given_up(event)
                case CursorsRestored():
                    self._restored(event)

    def _answered(self, event: AckAnswered) -> None:
        for partition, offset in self._waiting.pop(event.number, ()):
            self._durable[partition, offset] = event.number
            if self._has_order:
                self._durable_ends[partition] = max(offset + 1, self._durable_ends.get(partition, 0))

    def _shown(self, event: CursorShown) -> Iterator[str]:
        """Where there is an order, acks are too: a cursor is never before one that was durable when it was asked."""
        durable = self._asked[event.number].get(event.partition, 0)
        if event.offset < durable:
            where = f"the cursor of partition {event.partition} is at {event.offset}"
            yield f"{self._name}: {where}, and acks up to {durable} were durable: it went back without a seek"

    def _restored(self, event: CursorsRestored) -> None:
        self._durable = {place: number for place, number in self._durable.items() if number <= event.since}
        self._durable_ends = {}
        for partition, offset in self._durable if self._has_order else ():
            self._durable_ends[partition] = max(offset + 1, self._durable_ends.get(partition, 0))
        self._asked = {number: dict(self._durable_ends) for number in self._asked}

    def _given_up(self, event: RangeGivenUp) -> None:
        """Expect everything from there on again: other records have these offsets now."""
        partition, start = event.partition, event.start
        self._due[partition] = min(start, self._due.get(partition, 0))
        self._durable_ends[partition] = min(start, self._durable_ends.get(partition, 0))
        self._seen[partition] = {offset for offset in self._seen.get(partition, ()) if offset < start}
        self._durable = {
            place: number for place, number in self._durable.items() if place[0] != partition or place[1] < start
        }
        self._last = {key: min(last, start - 1) if key[1] == partition else last for key, last in self._last.items()}
        self._waiting = {
            number: {place for place in places if place[0] != partition or place[1] < start}
            for number, places in self._waiting.items()
        }
        for ends in self._asked.values():
            ends[partition] = min(start, ends.get(partition, 0))

    def _delivered(self, event: Delivered) -> Iterator[str]:
        partition = event.partition
        seen = self._seen.setdefault(partition, set())
        for offset in event.offsets:
            what = f"{self._name}: {(partition, offset)} was delivered to {event.session}"
            if (partition, offset) in self._durable:
                yield f"{what} after its ack was durable"
            last = self._last.get((event.session, partition), -1)
            if offset <= last and (offset in seen or not self._is_shared_out_again):
                yield f"{what} after {last}"
            self._last[event.session, partition] = offset
            due = self._due.get(partition, 0)
            if self._has_order and offset > due:
                yield f"{what} where {due} is due"
            self._due[partition] = max(due, offset + 1)
            seen.add(offset)

    def end_violations(self, ends: Mapping[int, int], cursors: Mapping[int, int]) -> Iterator[str]:
        """In the end everything was delivered, and the cursors say so. An ack without an answer may count."""
        for partition, end in ends.items():
            seen = self._seen.get(partition, set())
            missing = [offset for offset in range(end) if offset not in seen]
            if missing:
                yield f"{self._name}: {len(missing)} of partition {partition} were never delivered: {missing[:5]}"
            if cursors.get(partition) != end:
                yield f"{self._name}: partition {partition} ends at {end}, the cursor is {cursors.get(partition)}"

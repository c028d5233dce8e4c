"""What clients saw of a topic while its partitions moved from broker to broker, and the rules that all of it must obey.

The rules of the log are those of a node (`kill_history`): a cluster is held to no less. What is different is what a
consumer can know: its attachments end and begin by themselves, and another consumer's may have ended long ago.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sulina.core.members import SubscriptionKind
from tests.support.kill_history import (
    AckAnswered,
    AckSent,
    Content,
    Delivered,
    Event,
    Feed,
    History,
    Log,
    Place,
    answer_violations,
    content_violations,
    feed_violations,
    log_violations,
    order_violations,
)


@dataclass(slots=True)
class ClusterHistory(History):
    """With those who read without a subscription: by reader, what it was given of each partition, in order."""

    read: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    cursors: dict[str, dict[int, int]] = field(default_factory=dict)  # by subscription and partition, in the end

    def was_read(self, reader: str, place: Place, content: Content) -> None:
        """A reader was given a record."""
        self.saw(place, content)
        self.read.setdefault(reader, {}).setdefault(place[0], []).append(place[1])

    def give_up(self, partition: int, start: int, end: int) -> int:
        """Forget what was acknowledged in this range, which an operator gave up; how many records that were."""
        given_up = 0
        for txn in self.txns.values():
            gone = [a for a in txn.answers if a.partition == partition and start <= a.base_offset < end]
            given_up += sum(answer.count for answer in gone)
            txn.answers = [answer for answer in txn.answers if answer not in gone]
        for offset in range(start, end):
            self.contents.pop((partition, offset), None)
        return given_up


def cluster_violations(history: ClusterHistory, log: Log, feed: Feed) -> list[str]:
    """All rules over a whole run; nothing, if all is well."""
    ends = {partition: len(records) for partition, records in log.items()}
    wrong = list(history.faults)
    wrong += log_violations(history.txns, log)
    wrong += answer_violations(history.txns, log)
    wrong += feed_violations(history.txns, log, feed)
    wrong += order_violations(history.txns, log)
    wrong += content_violations(history.contents, log)
    wrong += reader_violations(history.read)
    for subscription, events in history.events.items():
        replay = ClusterReplay(subscription, history.kinds[subscription])
        wrong += replay.violations(events)
        wrong += replay.end_violations(ends, history.cursors.get(subscription, {}))
    return wrong


def reader_violations(read: Mapping[str, Mapping[int, Iterable[int]]]) -> Iterator[str]:
    """A reader from the beginning gets every record once, in order, whoever serves it."""
    for reader, partitions in read.items():
        for partition, offsets in partitions.items():
            for due, offset in enumerate(offsets):
                if offset != due:
                    yield f"{reader} read offset {offset} of partition {partition} where {due} is due"
                    break


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
        self._durable: set[Place] = set()

    def violations(self, events: Iterable[Event]) -> Iterator[str]:
        """What is wrong, in the order of the events."""
        for event in events:
            match event:
                case Delivered():
                    yield from self._delivered(event)
                case AckSent():
                    self._waiting[event.number] = {(event.partition, offset) for offset in event.offsets}
                case AckAnswered():
                    self._durable |= self._waiting.pop(event.number)

    def _delivered(self, event: Delivered) -> Iterator[str]:
        partition = event.partition
        seen = self._seen.setdefault(partition, set())
        for offset in event.offsets:
            what = f"{self._name}: {(partition, offset)} was delivered to {event.session}"
            if (partition, offset) in self._durable:
                yield f"{what} after its ack was durable"
            last = self._last.get((event.session, partition), -1)
            if offset <= last:
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

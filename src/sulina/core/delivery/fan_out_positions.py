"""Positions of the subscribers of a reliable topic in its log, and which offset is read next.

- Subscribers of one node at one offset are a group, which moves as one. Groups that meet are merged.
- Offsets take turns, so subscribers that catch up and subscribers at the end do not starve each other.
- A group with many unreported batches waits aside for a report. The node reports which subscribers are slow, and the
  others go on without them, until they meet again.
"""

from collections.abc import Iterable

from sulina.core.delivery.fan_out_node import FanOutSubscriber, Group, SubscriberNode
from sulina.core.delivery.pubsub import PubSubConfig


class FanOutPositions:
    """Positions of the active subscribers of a partition."""

    def __init__(self, config: PubSubConfig) -> None:
        self._config = config
        self._at: dict[int, dict[str, Group]] = {}  # by offset, in the order of their turns; by node
        self._aside: dict[Group, None] = {}

    def add(self, node: SubscriberNode, subscriber: FanOutSubscriber) -> None:
        """Send to a subscriber from its offset on."""
        group = Group(node, subscriber.offset)
        group.add(subscriber)
        self._place(group)

    def discard(self, subscriber: FanOutSubscriber) -> None:
        """Stop sending to a subscriber, if it is sent to; it keeps its offset."""
        group = subscriber.group
        if group is None:
            return
        group.discard(subscriber)
        if not group.members:
            self._take(group)

    def wanted(self, end: int) -> int | None:
        """Return the offset whose turn it is; None: all subscribers are at the end, or cannot be sent to."""
        for offset, groups in self._at.items():
            if offset < end and any(group.node.is_ready for group in groups.values()):
                return offset
        return None

    def send(self, offset: int, end: int, size_bytes: int) -> list[tuple[Group, tuple[int, ...]]]:
        """Move the groups at an offset that can be sent a payload of this size to its end, behind all others in turn.

        Returns them with the handles that the payload is for: a group that has moved may have met another.
        """
        sent = []
        for group in list(self._at.get(offset, {}).values()):
            if not group.node.is_ready:
                continue
            if group.unreported and group.unreported_bytes + size_bytes > self._config.unacked_bytes_max:
                self._take(group)
                self._put_aside(group)
            else:
                sent.append((group, group.handles))
        for group, _ in sent:
            self._take(group)
            group.count(1, size_bytes)
            group.offset = end
            self._place(group)
        return sent

    def reported(self, group: Group, size_bytes: int) -> None:
        """Count a batch of a group as reported."""
        while group.into is not None:
            group = group.into
        group.count(-1, -size_bytes)
        if group.is_aside:
            self._take(group)
            self._place(group)

    def slow(self, node: SubscriberNode, handles: Iterable[int]) -> None:
        """Note which subscribers of a node are far behind the others."""
        node.slow = frozenset(handles)
        for group in [group for group in self._aside if group.node is node]:
            self._split(group)

    def skip_to(self, start: int) -> int:
        """Move subscribers to the start of the log; return how many records they have lost together."""
        groups = [group for groups in self._at.values() for group in groups.values()]
        behind = [group for group in [*groups, *self._aside] if group.offset < start]
        lost = sum((start - group.offset) * len(group.members) for group in behind)
        for group in behind:
            self._take(group)
            group.offset = start
            self._place(group)
        return lost

    def _place(self, group: Group) -> None:
        """Put a group at its offset, or set it aside."""
        if self._is_full(group.unreported, group.unreported_bytes):
            self._put_aside(group)
            return
        groups = self._at.setdefault(group.offset, {})
        other = groups.get(group.node.name)
        if other is None:
            groups[group.node.name] = group
        elif not self._is_full(group.unreported + other.unreported, group.unreported_bytes + other.unreported_bytes):
            groups[group.node.name] = _merged(group, other)
        else:
            # Merged they would have to wait. The one with fewer unreported batches need not.
            quick, late = sorted((other, group), key=lambda one: (one.unreported, one.unreported_bytes))
            groups[group.node.name] = quick
            late.is_aside = True
            self._aside[late] = None

    def _put_aside(self, group: Group) -> None:
        group.is_aside = True
        self._aside[group] = None
        self._split(group)

    def _split(self, group: Group) -> None:
        slow = group.node.slow
        quick = [one for handle, one in group.members.items() if handle not in slow]
        if not quick or len(quick) == len(group.members):
            return
        others = Group(group.node, group.offset)
        for subscriber in quick:
            group.discard(subscriber)
            others.add(subscriber)
        self._place(others)

    def _take(self, group: Group) -> None:
        if group.is_aside:
            group.is_aside = False
            del self._aside[group]
            return
        groups = self._at[group.offset]
        del groups[group.node.name]
        if not groups:
            del self._at[group.offset]

    def _is_full(self, batches: int, size_bytes: int) -> bool:
        """Return whether a third of the limit is unacked: a subscriber may bring as much from another group."""
        return 3 * batches >= self._config.unacked_batches_max or 3 * size_bytes >= self._config.unacked_bytes_max


def _merged(one: Group, other: Group) -> Group:
    """Merge the smaller group into the larger one."""
    small, large = sorted((one, other), key=lambda group: len(group.members))
    for subscriber in small.members.values():
        large.add(subscriber)
    small.members = {}
    small.into = large
    large.count(small.unreported, small.unreported_bytes)
    return large

"""Where the subscribers of a reliable topic are in its log, and who is read for next.

- Subscribers of one node at one offset are a group, which moves as one. Groups that meet are one.
- The offset that was read for longest ago has its turn: who catches up and who is at the end do not starve each other.
- A group of which much is not reported stands aside until there is a report. Who is slow holds up nobody: the node says
  who they are, and the others go on without them, until they meet again.
"""

from collections.abc import Iterable

from sulina.core.delivery.fan_out_node import FanOutSubscriber, Group, SubscriberNode
from sulina.core.delivery.pubsub import PubSubConfig


class FanOutPositions:
    """Of all active subscribers of a partition."""

    def __init__(self, config: PubSubConfig) -> None:
        self._config = config
        self._at: dict[int, dict[str, Group]] = {}  # by offset, in the order of their turns; by node
        self._aside: dict[Group, None] = {}

    def put(self, node: SubscriberNode, subscriber: FanOutSubscriber) -> None:
        """It is sent to from its offset on."""
        group = Group(node, subscriber.offset)
        group.add(subscriber)
        self._place(group)

    def discard(self, subscriber: FanOutSubscriber) -> None:
        """It is not sent to, for now; it stays where it is."""
        group = subscriber.group
        if group is None:
            return
        group.discard(subscriber)
        if not group.members:
            self._take(group)

    def wanted(self, end: int) -> int | None:
        """The offset whose turn it is; None: everybody is at the end, or cannot be sent to."""
        for offset, groups in self._at.items():
            if offset < end and any(group.node.is_ready for group in groups.values()):
                return offset
        return None

    def served(self, offset: int, size_bytes: int) -> list[Group]:
        """The groups there that can be sent a payload of this size."""
        found = []
        for group in list(self._at.get(offset, {}).values()):
            if not group.node.is_ready:
                continue
            if group.unreported and group.unreported_bytes + size_bytes > self._config.unacked_bytes_max:
                self._take(group)
                self._put_aside(group)
            else:
                found.append(group)
        return found

    def move(self, groups: Iterable[Group], end: int) -> None:
        """They have been sent everything before `end`. It is others' turn."""
        for group in groups:
            self._take(group)
            group.offset = end
            self._place(group)

    def reported(self, group: Group, size_bytes: int) -> None:
        """Less of what a group was sent is on its way."""
        while group.into is not None:
            group = group.into
        group.count(-1, -size_bytes)
        if group.is_aside:
            self._take(group)
            self._place(group)

    def slow(self, node: SubscriberNode, handles: Iterable[int]) -> None:
        """These are far behind the others of their node, and nobody else is."""
        node.slow = frozenset(handles)
        for group in [group for group in self._aside if group.node is node]:
            self._split(group)

    def skip_to(self, start: int) -> int:
        """How many offsets its subscribers have lost."""
        groups = [group for groups in self._at.values() for group in groups.values()]
        behind = [group for group in [*groups, *self._aside] if group.offset < start]
        lost = sum((start - group.offset) * len(group.members) for group in behind)
        self.move(behind, start)
        return lost

    def _place(self, group: Group) -> None:
        """Where it is sent to next, or aside."""
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
            # Together they would have to wait. The one of which more is reported need not.
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
        """At a third of what a subscriber may have: who has just left the slow ones may have as much from before."""
        return 3 * batches >= self._config.unacked_batches_max or 3 * size_bytes >= self._config.unacked_bytes_max


def _merged(one: Group, other: Group) -> Group:
    """Both in one; the fewer members move."""
    small, large = sorted((one, other), key=lambda group: len(group.members))
    for subscriber in small.members.values():
        large.add(subscriber)
    small.members = {}
    small.into = large
    large.count(small.unreported, small.unreported_bytes)
    return large

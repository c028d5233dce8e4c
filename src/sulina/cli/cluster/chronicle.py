"""Events of a cluster, found by comparing its state from one moment to the next."""

from collections import deque
from typing import TYPE_CHECKING

from sulina.cli import terminal

if TYPE_CHECKING:
    from sulina.wire.messages import ClusterInfo, UnloadInfo

EVENTS_MAX = 10  # that are shown


class Chronicle:
    """Events in words, the newest last. Time is an argument."""

    def __init__(self) -> None:
        self.events: deque[tuple[float, str]] = deque(maxlen=EVENTS_MAX)
        self.cluster: ClusterInfo | None = None
        self._without_owner_since: float | None = None

    def note(self, text: str, seconds: float) -> str:
        """Add an event, and return its text."""
        self.events.append((seconds, text))
        return text

    def see(self, cluster: "ClusterInfo", seconds: float) -> list[str]:
        """Add what has changed since the last call, and return the texts."""
        before, self.cluster = self.cluster, cluster
        if before is None:
            return []
        texts = [*_of_brokers(before, cluster), *_of_moves(before, cluster), *self._of_owners(before, cluster, seconds)]
        return [self.note(text, seconds) for text in texts]

    def _of_owners(self, before: "ClusterInfo", now: "ClusterInfo", seconds: float) -> list[str]:
        texts = []
        if now.unassigned and self._without_owner_since is None:
            self._without_owner_since = seconds
            texts.append(f"{terminal.counted(now.unassigned, 'partition')} without an owner")
        elif not now.unassigned and self._without_owner_since is not None:
            took = seconds - self._without_owner_since
            self._without_owner_since = None
            texts.append(f"every partition has an owner, after {took:.1f} s")
        if now.recovering > before.recovering:
            count = terminal.counted(now.recovering, "partition")
            texts.append(f"{count} recovering: only the disk of a lost broker has all acknowledged records")
        return texts


def _of_brokers(before: "ClusterInfo", now: "ClusterInfo") -> list[str]:
    was = {info.broker_id: info.state for info in before.brokers}
    texts = []
    for info in now.brokers:
        if info.broker_id not in was:
            texts.append(f"{info.broker_id} has joined")
        elif was[info.broker_id] != info.state:
            texts.append(f"{info.broker_id} is {info.state}")
    here = {info.broker_id for info in now.brokers}
    texts += [f"{broker} has left" for broker in was if broker not in here]
    if now.leader != before.leader:
        texts.append(f"{now.leader} leads" if now.leader else "there is no leader")
    return texts


def _of_moves(before: "ClusterInfo", now: "ClusterInfo") -> list[str]:
    was, are = ({(move.topic, move.partition): move for move in info.unloads} for info in (before, now))
    texts = [f"{_name(are[key])} leaves {are[key].from_broker}{_to(are[key])}" for key in are if key not in was]
    texts += [f"{_name(was[key])} has left {was[key].from_broker}" for key in was if key not in are]
    texts += [
        f"{_name(move)}: {move.error}"
        for key, move in are.items()
        if move.error and (key not in was or was[key].error != move.error)
    ]
    return texts


def _name(move: "UnloadInfo") -> str:
    return f"{move.topic}/{move.partition}"


def _to(move: "UnloadInfo") -> str:
    return f" for {move.to_broker}" if move.to_broker else ""

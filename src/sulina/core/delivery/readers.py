"""Registered readers: queries that read a topic at their own pace, and what of it they still need.

- A reader is a name and a topic. In each partition that it reads it has a position: the next record that it needs.
- Retention keeps everything from the lowest position of the live readers of a partition on.
- A position may name the epoch of the log that was read. Where that was given up since, the reader needs the log from
  where it goes on (`core.log.epochs`), and goes back to there.
- A reader is heard of when any of its positions is written. One that has not been heard of for longer than it asked for
  is expired: it is shown, and holds nothing back. A while later it is swept away.
- A position that cannot be read holds back everything: nobody may guess it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from sulina.core.log.epochs import EpochHistory
from sulina.core.log.log_state import NO_EPOCH
from sulina.errors import CorruptCommit
from sulina.types import Offset, PartitionName, TopicName

EXPIRES_SECONDS = 7 * 24 * 3600.0  # unless a reader asks for another time
EXPIRES_SECONDS_MAX = 365 * 24 * 3600
SHOWN_SECONDS = 24 * 3600  # that an expired reader is still shown
TEXT_LENGTH_MAX = 200

Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
ExpiresSeconds = Annotated[float, Meta(ge=1, le=EXPIRES_SECONDS_MAX)]
Text = Annotated[str, Meta(max_length=TEXT_LENGTH_MAX)]
ReaderKey = tuple[str, TopicName]


class ReaderPosition(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a reader is in one partition, as the metadata store has it."""

    offset: Natural  # of the next record that it needs
    updated_ms: Natural
    expires_seconds: ExpiresSeconds = EXPIRES_SECONDS
    kind: Text = ""
    description: Text = ""
    epoch: int = NO_EPOCH  # in which everything before `offset` was read; NO_EPOCH: it did not say

    def stored(self) -> bytes:
        """What to keep."""
        return msgspec.json.encode(self)

    @classmethod
    def load(cls, key: str, data: bytes) -> "ReaderPosition":
        """As it was stored. CorruptCommit names the key when it cannot have been."""
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptCommit(name=key, reason=str(error)) from None


@dataclass(slots=True)
class RegisteredReader:
    """One reader of one topic, with its positions by partition; never without one."""

    name: str
    topic: TopicName
    positions: dict[int, ReaderPosition] = field(default_factory=dict)

    @property
    def newest(self) -> ReaderPosition:
        """What it said last: that counts for all of it."""
        return max(self.positions.values(), key=lambda position: position.updated_ms)

    def is_expired(self, now_ms: int) -> bool:
        """Whether it has not been heard of for too long to hold anything back."""
        return self._silent_seconds(now_ms) > self.newest.expires_seconds

    def is_forgotten(self, now_ms: int) -> bool:
        """Whether it may be swept away."""
        return self._silent_seconds(now_ms) > self.newest.expires_seconds + SHOWN_SECONDS

    def _silent_seconds(self, now_ms: int) -> float:
        return (now_ms - self.newest.updated_ms) / 1000


def grouped(positions: Iterable[tuple[str, PartitionName, ReaderPosition]]) -> dict[ReaderKey, RegisteredReader]:
    """The readers that have these positions."""
    readers: dict[ReaderKey, RegisteredReader] = {}
    for name, partition, position in positions:
        reader = readers.setdefault((name, partition.topic), RegisteredReader(name, partition.topic))
        reader.positions[partition.partition] = position
    return readers


@dataclass(slots=True)
class NeededOffsets:
    """What readers need of one partition: the lowest offset, by the epoch in which everything before it was read."""

    lowest: dict[int, Offset] = field(default_factory=dict)

    def add(self, offset: int, epoch: int) -> None:
        """One more reader needs it from there on."""
        self.lowest[epoch] = Offset(min(offset, self.lowest.get(epoch, offset)))

    def first_in(self, log: EpochHistory) -> Offset | None:
        """Return the first offset of this log that is needed; None: nobody needs any of it."""
        found = [
            offset if epoch == NO_EPOCH else min(offset, log.end_of(epoch)) for epoch, offset in self.lowest.items()
        ]
        return min(found, default=None)


def needed(
    readers: Iterable[RegisteredReader], now_ms: int, unreadable: Iterable[PartitionName] = ()
) -> dict[PartitionName, NeededOffsets]:
    """What retention must keep of partitions; those that are not named nobody needs."""
    lowest: dict[PartitionName, NeededOffsets] = {}
    for reader in readers:
        if reader.is_expired(now_ms):
            continue
        for number, position in reader.positions.items():
            lowest.setdefault(PartitionName(reader.topic, number), NeededOffsets()).add(position.offset, position.epoch)
    return lowest | {partition: NeededOffsets({NO_EPOCH: Offset(0)}) for partition in unreadable}


def gone_back(
    before: Mapping[int, ReaderPosition], positions: Mapping[int, int], epochs: Mapping[int, int]
) -> int | None:
    """The first partition in which a reader would go back; None: in none.

    A lower offset in a later epoch is none: what it had read may have been given up.
    """
    for number, offset in sorted(positions.items()):
        known = before.get(number)
        if known is not None and offset < known.offset:
            is_later = NO_EPOCH < known.epoch < epochs.get(number, NO_EPOCH)
            if not is_later:
                return number
    return None

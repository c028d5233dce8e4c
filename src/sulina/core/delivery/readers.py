"""Registered readers: queries that read a topic at their own pace, and the records that they still need.

- A reader is a name and a topic. In each partition that it reads it has a position: the next record that it needs.
- Retention keeps everything from the lowest position of the live readers of a partition on.
- A position may name the epoch of the log that was read. If records before it were given up since, the reader goes back
  to where the log continues (`core.log.epochs`).
- A reader expires when none of its positions was written for as long as it asked for. An expired reader is shown, but
  retention ignores it; later it is deleted.
- While a position is unreadable, retention removes nothing of its partition: a guess could lose records.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from sulina.core.formats import METADATA
from sulina.core.log.epochs import EpochHistory
from sulina.core.log.log_state import NO_EPOCH
from sulina.errors import CorruptCommit
from sulina.types import Offset, PartitionName, TopicName

EXPIRES_SECONDS = 7 * 24 * 3600.0  # unless a reader asks for another time
EXPIRES_SECONDS_MAX = 365 * 24 * 3600
SHOWN_SECONDS = 24 * 3600  # how long an expired reader is still shown
TEXT_LENGTH_MAX = 200

Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
ExpiresSeconds = Annotated[float, Meta(ge=1, le=EXPIRES_SECONDS_MAX)]
Text = Annotated[str, Meta(max_length=TEXT_LENGTH_MAX)]
ReaderKey = tuple[str, TopicName]


class ReaderPosition(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The position of a reader in one partition, as the metadata store has it."""

    offset: Natural  # of the next record that it needs
    updated_ms: Natural
    expires_seconds: ExpiresSeconds = EXPIRES_SECONDS
    kind: Text = ""
    description: Text = ""
    epoch: int = NO_EPOCH  # in which everything before `offset` was read; NO_EPOCH: not known

    def stored(self) -> bytes:
        """Return the stored form."""
        return METADATA.encode(self)

    @classmethod
    def load(cls, key: str, data: bytes) -> "ReaderPosition":
        """Read a stored position.

        Raises:
            CorruptCommit: the data is not a position; names the key.
        """
        try:
            return METADATA.decode(data, cls, key)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptCommit(name=key, reason=str(error)) from None


@dataclass(slots=True)
class RegisteredReader:
    """One reader of one topic, with its positions by partition; it has at least one."""

    name: str
    topic: TopicName
    positions: dict[int, ReaderPosition] = field(default_factory=dict)

    @property
    def newest(self) -> ReaderPosition:
        """The position that was written last; its settings hold for all positions."""
        return max(self.positions.values(), key=lambda position: position.updated_ms)

    def is_expired(self, now_ms: int) -> bool:
        """Return whether retention may ignore the reader."""
        return self._silent_seconds(now_ms) > self.newest.expires_seconds

    def is_deletable(self, now_ms: int) -> bool:
        """Return whether the reader has been expired for long enough to be deleted."""
        return self._silent_seconds(now_ms) > self.newest.expires_seconds + SHOWN_SECONDS

    def _silent_seconds(self, now_ms: int) -> float:
        return (now_ms - self.newest.updated_ms) / 1000


def grouped(positions: Iterable[tuple[str, PartitionName, ReaderPosition]]) -> dict[ReaderKey, RegisteredReader]:
    """Group positions by reader."""
    readers: dict[ReaderKey, RegisteredReader] = {}
    for name, partition, position in positions:
        reader = readers.setdefault((name, partition.topic), RegisteredReader(name, partition.topic))
        reader.positions[partition.partition] = position
    return readers


@dataclass(slots=True)
class NeededOffsets:
    """The lowest offset that readers need of one partition, by the epoch in which everything before it was read."""

    lowest: dict[int, Offset] = field(default_factory=dict)

    def add(self, offset: int, epoch: int) -> None:
        """Add the position of a reader."""
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
    """Return what retention must keep, by partition; no reader needs anything of other partitions."""
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
    """Return the first partition in which a reader would go back; None: it goes back in no partition.

    A lower offset in a later epoch does not count: records that it had read may have been given up.
    """
    for number, offset in sorted(positions.items()):
        known = before.get(number)
        if known is not None and offset < known.offset:
            is_later = NO_EPOCH < known.epoch < epochs.get(number, NO_EPOCH)
            if not is_later:
                return number
    return None

"""How far a named stream of topics has come, as brokers know it: retention keeps what it has not read
(docs/promises.md, S7 and S10).

- A position is registered before the first record after it is read, and advanced when Spark says that a batch is done.
  That comes a batch late, or not at all: a position may lie behind what was read, never ahead of it.
- A stream that begins again at its checkpoint says where that is, also if it goes back.
- A stream with nothing to do says now and then that it is still there.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sulina.errors import InvalidSettings, ReaderAhead, TopicNotFound
from sulina.spark.clients import client_of
from sulina.spark.planner import NO_EPOCHS, Epochs, Offsets
from sulina.types import Epoch, PartitionName, TopicName

EXPIRES_SECONDS = 30 * 86_400.0
REPEAT_SECONDS = 3600.0  # after which a position is said again, so that it does not expire


@dataclass(slots=True)
class StreamPositions:
    """The positions of one stream. Lives in the driver."""

    url: str
    reader: str
    clock: Callable[[], float] = time.monotonic
    _said: Offsets = field(default_factory=dict)
    _epochs: dict[PartitionName, Epoch] = field(default_factory=dict)  # in which everything before was read, if known
    _said_at: dict[TopicName, float] = field(default_factory=dict)

    def enter(self, start: Offsets, epochs: Epochs = NO_EPOCHS) -> None:
        """Register the positions of partitions that are new to this run; renew those that are old."""
        self._epochs |= {name: epoch for name, epoch in epochs.items() if name not in self._said}
        new = {partition: offset for partition, offset in start.items() if partition not in self._said}
        late = {topic for topic, at in self._said_at.items() if self.clock() - at > REPEAT_SECONDS}
        again = {partition: offset for partition, offset in self._said.items() if partition.topic in late}
        self._say(again | new, is_beginning=True)

    def advance(self, end: Offsets, epochs: Epochs = NO_EPOCHS) -> None:
        """Register that everything before `end` has been processed.

        Raises:
            InvalidSettings: another stream has the same name.
        """
        self._epochs |= epochs
        moved = {name: at for name, at in end.items() if self._said.get(name) != at}
        # Back goes who has read what was given up since: the log goes on before that.
        back = {name: at for name, at in moved.items() if at < self._said.get(name, at)}
        self._say(back, is_beginning=True)
        self._say({name: at for name, at in moved.items() if name not in back}, is_beginning=False)

    def _say(self, positions: Offsets, *, is_beginning: bool) -> None:
        client = client_of(self.url)
        for topic in sorted({partition.topic for partition in positions}):
            said = {partition: at for partition, at in positions.items() if partition.topic == topic}
            try:
                client.admin.register_reader(
                    self.reader,
                    str(topic),
                    {partition.partition: at for partition, at in said.items()},
                    expires_seconds=EXPIRES_SECONDS,
                    kind="spark",
                    description=f"a stream with the option reader={self.reader}"[:200],
                    force=is_beginning,
                    epochs={
                        partition.partition: self._epochs[partition] for partition in said if partition in self._epochs
                    },
                )
            except TopicNotFound:
                pass  # it was deleted: there is nothing to keep
            except ReaderAhead as ahead:
                raise InvalidSettings(
                    f"option reader: {self.reader!r} was moved from {ahead.offset} to offset {ahead.current} in "
                    f"partition {ahead.partition} of {topic} by somebody else: give each stream a name of its own"
                ) from ahead
            self._said |= said
            self._said_at[topic] = self.clock()

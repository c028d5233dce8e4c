"""Rules of a scan of topics: which offsets of which partitions are read, and in which pieces.

- A scan is decided once, from what the logs hold at that moment. A reader of the same offsets reads the same again.
- Ranges are half-open. What a partition stores is a run of pieces end to end, each with its size, so that a scan can be
  divided fairly without reading anything.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from sulina.core.log.commit import SegmentRef
from sulina.core.log.position import EARLIEST, LATEST, Position
from sulina.errors import InvalidName, InvalidSettings
from sulina.types import DEFAULT_NAMESPACE, Epoch, Offset, PartitionName, TopicName

SPLIT_BYTES = 32 << 20
TASK_ROWS = 1 << 18  # rows of one task, in a batch of a stream
_EARLIEST, _LATEST = -2, -1  # in JSON, as Kafka's users write them
_WILDCARD = re.compile(r"[*?[]")  # makes a name of a topic a pattern


@dataclass(frozen=True, slots=True)
class Piece:
    """Offsets that are stored together, and how many bytes they have."""

    start: Offset
    end: Offset
    size_bytes: int
    stored: SegmentRef | None = None  # in an archive or a directory; None: its owner has it


@dataclass(frozen=True, slots=True)
class Span:
    """What a partition holds at one moment: pieces end to end."""

    partition: PartitionName
    start: Offset
    end: Offset
    pieces: tuple[Piece, ...] = ()
    epoch: Epoch | None = None  # of the log at that moment; None: no owner has claimed it yet


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition that are read one after the other, all from its owner or all from files."""

    partition: PartitionName
    start: Offset
    end: Offset
    size_bytes: int
    stored: tuple[SegmentRef, ...] = ()  # empty: read from the partition's owner
    epoch: Epoch | None = None  # a record of a later one is another than was planned to be read; None: not known


# Where a scan begins and ends


@dataclass(frozen=True, slots=True)
class Positions:
    """A position for every partition; some have one of their own."""

    default: Position
    own: Mapping[PartitionName, Position] = field(default_factory=dict)

    def of(self, partition: PartitionName) -> Position:
        """Return the position of a partition."""
        return self.own.get(partition, self.default)

    @classmethod
    def parse(cls, text: str | None, otherwise: Position) -> "Positions":
        """Read `earliest`, `latest`, another position, or JSON: `{"/ns/topic": {"0": 23, "1": -2}}`.

        In JSON -2 is the earliest offset and -1 the latest; "23@4" is offset 23, after what was read in epoch 4.
        Partitions that are not named are at `otherwise`, and so are all if there is no text.

        Raises:
            InvalidSettings: the text has another form.
        """
        if text is None:
            return cls(otherwise)
        if not text.lstrip().startswith("{"):
            return cls(Position.parse(text.strip()))
        own: dict[PartitionName, Position] = {}
        try:
            for topic, partitions in json.loads(text).items():
                for number, offset in partitions.items():
                    own[PartitionName(TopicName.of(topic), int(number))] = _position(offset)
        except (ValueError, AttributeError, TypeError, InvalidName) as error:
            raise InvalidSettings(
                f'offsets are earliest, latest or JSON such as {{"/shop/orders": {{"0": 23}}}}: {error}'
            ) from None
        return cls(otherwise, own)


def _position(offset: object) -> Position:
    if isinstance(offset, str) and "@" in offset:
        return Position.parse(f"offset:{offset}")
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < _EARLIEST:
        raise ValueError(f"{offset!r} is not an offset")
    if offset in (_EARLIEST, _LATEST):
        return EARLIEST if offset == _EARLIEST else LATEST
    return Position.parse(f"offset:{offset}")


# Which topics


def _whole(text: str) -> str:
    """Return a name or a pattern with its namespace: `default` where it has neither namespace nor dot."""
    if "/" in text or (_WILDCARD.search(text) and "." in text):
        return text  # such a pattern is refused: `shop.*` may mean either of two
    return f"/{DEFAULT_NAMESPACE}/{text}" if _WILDCARD.search(text) else str(TopicName.of(text))


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Some topics by name, or by patterns with `*`, `?` and `[…]`: `/shop/orders, /logs/*`."""

    patterns: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "TopicChoice":
        """Read names and patterns that have commas between them; those without a namespace are in `default`.

        Raises:
            InvalidSettings: no topic is named, or a pattern is not `/namespace/topic`.
            InvalidName: a name cannot be that of a topic.
        """
        parts = [part.strip() for part in text.split(",") if part.strip()]
        patterns = tuple(dict.fromkeys(map(_whole, parts)))
        if not patterns:
            raise InvalidSettings(
                "option topic is empty: name a topic such as /default/orders, several with commas, or /shop/*"
            )
        for pattern in patterns:
            if not _WILDCARD.search(pattern):
                TopicName.parse(pattern)
            elif pattern.count("/") != 2 or not pattern.startswith("/"):
                raise InvalidSettings(f"topic pattern {pattern!r} must have the form /namespace/topic, such as /shop/*")
        return cls(patterns)

    @property
    def names(self) -> tuple[TopicName, ...] | None:
        """Return the topics, if all are named; None: those that exist have to be listed."""
        if any(map(_WILDCARD.search, self.patterns)):
            return None
        return tuple(map(TopicName.parse, self.patterns))

    def has(self, topic: TopicName) -> bool:
        """Tell whether a topic is one of them."""
        return any(fnmatchcase(str(topic), pattern) for pattern in self.patterns)


# What is read


def limited(
    spans: Sequence[Span], starts: Mapping[PartitionName, Offset], *, rows_max: int | None, bytes_max: int | None
) -> dict[PartitionName, Offset]:
    """Return where to end, so that at most `rows_max` rows and about `bytes_max` bytes are read from `starts` on.

    Partitions share the room by how far they are behind; each that is behind gets some, so none starves.
    """
    rows = {span.partition: max(0, span.end - starts[span.partition]) for span in spans}
    share = 1.0
    if rows_max is not None:
        share = min(share, rows_max / max(1, sum(rows.values())))
    if bytes_max is not None:
        size_bytes = sum(_bytes(span, starts[span.partition], span.end) for span in spans)
        share = min(share, bytes_max / max(1, size_bytes))
    if share >= 1:
        return {span.partition: max(span.end, starts[span.partition]) for span in spans}
    room = rows_max if rows_max is not None else math.inf
    ends = {}
    for partition in sorted(rows, key=lambda name: (rows[name], name)):  # so that small ones are not rounded away
        taken = int(min(room, rows[partition], max(1, math.floor(rows[partition] * share)) if rows[partition] else 0))
        room -= taken
        ends[partition] = Offset(starts[partition] + taken)
    return ends


def _bytes(span: Span, start: int, end: int) -> int:
    return sum(piece.size_bytes for piece in cut(span.pieces, start, end))


def cut(pieces: Iterable[Piece], start: int, end: int) -> Iterator[Piece]:
    """Yield the parts of pieces that lie within [start, end), each with its share of the bytes."""
    for piece in pieces:
        first, last = max(start, piece.start), min(end, piece.end)
        if first < last:
            part = (last - first) / (piece.end - piece.start)
            yield replace(piece, start=Offset(first), end=Offset(last), size_bytes=math.ceil(piece.size_bytes * part))


def ranges(span: Span, start: int, end: int, *, bytes_max: int = SPLIT_BYTES) -> list[Range]:
    """Return [start, end) of a partition in ranges of at most about `bytes_max` bytes.

    What is in one object or segment of an archive stays together if it is no larger than that.
    """
    found: list[Range] = []
    for piece in cut(span.pieces, start, end):
        parts = 1 if piece.stored is not None and piece.stored.object else -(-piece.size_bytes // max(1, bytes_max))
        parts = max(1, min(parts, piece.end - piece.start))
        for part in _parts(piece, parts):
            last = found[-1] if found else None
            if (
                last is not None
                and bool(last.stored) == (part.stored is not None)
                and last.size_bytes + part.size_bytes <= bytes_max
            ):
                stored = last.stored
                if part.stored is not None and part.stored not in stored:
                    stored = (*stored, part.stored)
                found[-1] = replace(last, end=part.end, size_bytes=last.size_bytes + part.size_bytes, stored=stored)
            else:
                stored = () if part.stored is None else (part.stored,)
                found.append(Range(span.partition, part.start, part.end, part.size_bytes, stored, span.epoch))
    return found


def _parts(piece: Piece, count: int) -> Iterator[Piece]:
    rows = piece.end - piece.start
    for number in range(count):
        start, end = piece.start + rows * number // count, piece.start + rows * (number + 1) // count
        size = piece.size_bytes * (number + 1) // count - piece.size_bytes * number // count
        yield replace(piece, start=Offset(start), end=Offset(end), size_bytes=size)


def packed(wanted: Iterable[Range], *, bytes_max: int = SPLIT_BYTES) -> list[tuple[Range, ...]]:
    """Group ranges into tasks of about `bytes_max` bytes, in their order. Small ones share a task."""
    groups: list[list[Range]] = []
    size_bytes = 0
    for one in wanted:
        if not groups or size_bytes + one.size_bytes > bytes_max:
            groups.append([])
            size_bytes = 0
        groups[-1].append(one)
        size_bytes += one.size_bytes
    return [tuple(group) for group in groups]


def shares(
    wanted: Mapping[PartitionName, tuple[int, int]], *, tasks_min: int | None = None, rows_max: int = TASK_ROWS
) -> list[list[tuple[PartitionName, int, int]]]:
    """Divide offsets into equal shares, a task each, in their order.

    Only the offsets count: dividing the same offsets again gives the same tasks, wherever they are stored by then.
    """
    total = sum(end - start for start, end in wanted.values())
    count = min(total, max(tasks_min or 1, -(-total // rows_max)))
    found: list[list[tuple[PartitionName, int, int]]] = [[] for _ in range(count)]
    task = taken = 0
    for partition, (start, end) in wanted.items():
        while start < end:
            last = min(end, start + total * (task + 1) // count - taken)
            found[task].append((partition, start, last))
            taken, start = taken + last - start, last
            task += taken == total * (task + 1) // count
    return found


def split_bytes(spans: Iterable[Span], wanted: Mapping[PartitionName, tuple[int, int]], tasks_min: int | None) -> int:
    """Return how large a task may be, so that there are `tasks_min` of them if the data allow."""
    if tasks_min is None:
        return SPLIT_BYTES
    total = sum(_bytes(span, *wanted[span.partition]) for span in spans if span.partition in wanted)
    return max(1, min(SPLIT_BYTES, total // tasks_min))

"""Plans the next commit: which appends are accepted, at which offsets, in which segment, at which byte.

A plan starts from a state and admits appends in the order of their arrival. Each is placed whole, answered as it was
answered the first time, or refused; a refused append leaves no trace in the plan. Nothing here writes: the shell writes
the placed batches, then commits `operations`, then returns the answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from sulina.core.log.commit import (
    CHECKPOINT_EVERY,
    NO_ORIGIN,
    Add,
    AnyOperation,
    Claim,
    Commit,
    OriginRef,
    Remove,
    SequenceRun,
    timestamp_text,
)
from sulina.core.log.log_state import Appended, LogState, advanced, repeat_of
from sulina.core.log.publish_request import PublishRequest
from sulina.core.log.segment import SegmentLimits, segment_name, takes_more
from sulina.core.records.batch import SEQUENCES, BatchHeader
from sulina.errors import Conflict, DuplicateSequence, InvalidInput, StaleEpoch, VersionConflict
from sulina.types import Epoch, Offset, Version

EPOCHS = 1 << 31  # a record batch has 32 bits for the epoch, one of them the sign


class Append(NamedTuple):
    """A request to publish, with the headers of its batches."""

    request: PublishRequest
    batches: Sequence[BatchHeader]


class BatchPlacement(NamedTuple):
    """Where one batch is written, and the offset of its first record."""

    append: int  # index of the append, then index of the batch in it
    batch: int
    segment: Offset
    position: int
    offset: Offset


def next_commit(
    state: LogState,
    operations: Sequence[AnyOperation],
    *,
    txn_id: str,
    now: float,
    epoch: Epoch,
    log_ms: int = 0,
) -> Commit:
    """Build the commit that applies `operations` after `state`.

    Raises:
        StaleEpoch: a newer owner has claimed the log.
        InvalidInput: no batch can carry this epoch.
    """
    if not 0 <= epoch < EPOCHS:
        raise InvalidInput(f"epoch {epoch} does not fit into a record batch: it must be in 0..{EPOCHS - 1}")
    if epoch < state.epoch:
        raise StaleEpoch(ours=epoch, current=state.epoch)
    start_offset, next_offset = state.start_offset, state.next_offset
    for operation in operations:
        match operation:
            case Add():
                if not state.segments and next_offset == 0:
                    start_offset = operation.offset_start  # an archive begins where its log did
                next_offset = operation.offset_end
            case Remove():
                start_offset = operation.offset_end
            case Claim() if operation.epoch <= state.epoch:
                raise StaleEpoch(ours=operation.epoch, current=state.epoch)
    version = Version(state.version + 1)
    return Commit(
        version=version,
        timestamp=timestamp_text(now),
        txn_id=txn_id,
        operations=tuple(operations),
        checkpoint_hint=checkpoint_due(version),
        epoch=epoch,
        start_offset=start_offset,
        next_offset=next_offset,
        log_ms=max(log_ms, state.log_ms),
    )


def checkpoint_due(version: Version) -> bool:
    """Tell whether a checkpoint of this version is due. Version 0 needs no checkpoint: it is one commit."""
    return version > 0 and version % CHECKPOINT_EVERY == 0


@dataclass(slots=True)
class _OpenAdd:
    """An add that the next batch may continue, so that many small batches make a small commit."""

    origin_id: int
    origin_seq: int
    origin_epoch: int
    txn_id: str | None
    segment: Offset
    position: int
    offset_start: Offset
    offset_end: Offset
    size: int
    timestamp_max: int


@dataclass(slots=True)
class Plan:
    """The next commit, as far as it is planned. `admit` fills it; one answer for each append, in order."""

    state: LogState
    limits: SegmentLimits
    now: float
    log_ms: int = 0  # the log's own time
    placements: list[BatchPlacement] = field(default_factory=list)
    answers: list[Appended | Conflict] = field(default_factory=list)
    _adds: list[_OpenAdd] = field(default_factory=list)
    _next_offset: Offset = field(init=False)
    _segment: Offset = field(init=False)
    _size: int = field(init=False)
    _origins: dict[int, OriginRef] = field(default_factory=dict)  # only with the runs of this plan
    _txns: dict[str, Appended] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._next_offset = self.state.next_offset
        active = self.state.segments[-1] if self.state.segments else None
        if active is not None and takes_more(active, now_ms=int(self.now * 1000), limits=self.limits):
            self._segment, self._size = active.base, active.size
        else:
            self._segment, self._size = self._next_offset, 0

    @property
    def version(self) -> Version:
        """Version of the commit that the plan becomes."""
        return Version(self.state.version + 1)

    @property
    def operations(self) -> list[Add]:
        """Operations of the commit that the plan becomes."""
        return [
            Add(
                origin_id=add.origin_id,
                origin_seq=add.origin_seq,
                origin_epoch=add.origin_epoch,
                offset_start=add.offset_start,
                offset_end=add.offset_end,
                segment=segment_name(add.segment),
                position=add.position,
                size=add.size,
                timestamp_max=add.timestamp_max,
                txn_id=add.txn_id,
            )
            for add in self._adds
        ]

    def admit(self, append: Append) -> None:
        """Place an append, answer it as the first time, or refuse it."""
        txn_id, expected = append.request.txn_id, append.request.expected_version
        answer: Appended | Conflict | None = None if txn_id is None else self._answer_to(txn_id)
        if answer is None:
            try:
                answer = self._repeat_of_origins(append)
            except Conflict as refusal:
                answer = refusal
        # Any batch placed before makes a newer version than the expected one.
        if answer is None and expected is not None and (expected != self.state.version or self.placements):
            current = self.version if self.placements else self.state.version
            answer = VersionConflict(expected=expected, current=current)
        self.answers.append(self._place(append) if answer is None else answer)

    def _answer_to(self, txn_id: str) -> Appended | None:
        if (placed := self._txns.get(txn_id)) is not None:
            return placed
        txn = self.state.txns.find(txn_id, max(self.log_ms, self.state.log_ms), self.state.limits.txns)
        return None if txn is None else Appended(txn.offset_start, txn.offset_end, txn.version)

    def _repeat_of_origins(self, append: Append) -> Appended | None:
        repeats: list[Appended] = []
        seen: dict[int, OriginRef] = {}
        fresh = 0
        for header in append.batches:
            if not header.has_origin:
                fresh += 1
                continue
            origin_id, epoch, sequence = header.producer_id, header.producer_epoch, header.base_sequence
            newest = seen.get(origin_id) or self._origins.get(origin_id)
            repeat = repeat_of(
                self._with_stored(origin_id, newest, header),
                origin_id=origin_id,
                epoch=epoch,
                sequence=sequence,
                count=header.record_count,
                may_skip=append.request.may_skip,
            )
            if repeat is not None:
                repeats.append(repeat)
                continue
            fresh += 1
            # The offset does not matter here, only that the append's next batch may follow this one.
            run = SequenceRun(sequence, Offset(0), Offset(header.record_count), self.version)
            seen[origin_id] = advanced(newest, origin_id=origin_id, epoch=epoch, run=run)
        if repeats and fresh:
            # An append commits whole, so a part of it cannot have been written before.
            last = append.batches[-1]
            raise DuplicateSequence(origin_id=last.producer_id, sequence=last.base_sequence, last=last.base_sequence)
        if repeats:
            return Appended(repeats[0].offset_start, repeats[-1].offset_end, repeats[-1].version)
        return None

    def _with_stored(self, origin_id: int, newest: OriginRef | None, header: BatchHeader) -> OriginRef | None:
        """Return an origin with its runs in this plan and, if they matter, its stored runs before them."""
        stored = self.state.origins.get(origin_id)
        if newest is None or stored is None:
            return newest or stored
        is_next = header.base_sequence == (newest.last_seq + 1) % SEQUENCES
        if is_next or newest.epoch != stored.epoch:
            return newest
        return replace(newest, runs=stored.runs + newest.runs)

    def _place(self, append: Append) -> Appended:
        start, number_of_append, txn_id = self._next_offset, len(self.answers), append.request.txn_id
        for number, header in enumerate(append.batches):
            size, offset = header.size_bytes, self._next_offset
            if self._size and self._size + size > self.limits.segment_bytes_max:
                self._segment, self._size = offset, 0
            self.placements.append(BatchPlacement(number_of_append, number, self._segment, self._size, offset))
            end = Offset(offset + header.record_count)
            self._add(header, txn_id, end)
            if header.has_origin:
                origin_id, epoch = header.producer_id, header.producer_epoch
                run = SequenceRun(header.base_sequence, offset, end, self.version)
                newest = self._origins.get(origin_id)
                self._origins[origin_id] = advanced(newest, origin_id=origin_id, epoch=epoch, run=run)
            self._next_offset = end
            self._size += size
        placed = Appended(start, self._next_offset, self.version)
        if txn_id is not None:
            self._txns[txn_id] = placed
        return placed

    def _add(self, header: BatchHeader, txn_id: str | None, end: Offset) -> None:
        if header.has_origin:
            origin = (header.producer_id, header.base_sequence, header.producer_epoch)
        else:
            origin = (NO_ORIGIN, NO_ORIGIN, NO_ORIGIN)
        last = self._adds[-1] if self._adds else None
        if last is not None and self._continues(last, origin, txn_id):
            last.offset_end = end
            last.size += header.size_bytes
            last.timestamp_max = max(last.timestamp_max, header.max_timestamp)
        else:
            self._adds.append(
                _OpenAdd(
                    *origin,
                    txn_id=txn_id,
                    segment=self._segment,
                    position=self._size,
                    offset_start=self._next_offset,
                    offset_end=end,
                    size=header.size_bytes,
                    timestamp_max=header.max_timestamp,
                )
            )

    def _continues(self, last: _OpenAdd, origin: tuple[int, int, int], txn_id: str | None) -> bool:
        """Tell whether a batch can extend an add without losing its origin, sequence or txn_id."""
        if last.segment != self._segment or last.txn_id != txn_id or last.origin_id != origin[0]:
            return False
        if last.origin_id == NO_ORIGIN:
            return True
        following = (last.origin_seq + last.offset_end - last.offset_start) % SEQUENCES
        return last.origin_epoch == origin[2] and following == origin[1]

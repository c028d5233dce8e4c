"""The next commit in the making: which requests get in, at which offsets, in which segment, at which byte.

A plan starts from a state and takes requests in the order of their arrival. Each is placed whole, answered with what
the same request was answered before, or refused; a refused one leaves no trace in the plan. Nothing here writes: the
shell writes what is placed, then commits `operations`, then tells the answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sulina.core.batch import BatchHeader
from sulina.core.commit import (
    CHECKPOINT_EVERY,
    NO_ORIGIN,
    Add,
    Claim,
    Commit,
    OriginRef,
    Remove,
    Seal,
    TxnRef,
    timestamp_text,
)
from sulina.core.log_state import SEQUENCES, Appended, LogState, advanced, grown, repeat_of
from sulina.core.segment import SegmentLimits, must_roll, segment_name
from sulina.errors import Conflict, DuplicateSequence, StaleEpoch, VersionConflict
from sulina.types import Epoch, Offset, Version


@dataclass(frozen=True, slots=True)
class Request:
    """Batches to append together, all or none."""

    batches: Sequence[BatchHeader]
    txn_id: str | None = None
    expected_version: Version | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one batch goes."""

    request: int  # which request, which of its batches
    batch: int
    segment: Offset
    position: int
    offset: Offset


def next_commit(
    state: LogState,
    operations: Sequence[Add | Remove | Claim | Seal],
    *,
    txn_id: str,
    now: float,
    epoch: Epoch,
) -> Commit:
    """The commit that does `operations` after `state`; StaleEpoch when a newer owner has claimed the log."""
    if epoch < state.epoch:
        raise StaleEpoch(ours=epoch, current=state.epoch)
    start_offset, next_offset = state.start_offset, state.next_offset
    for operation in operations:
        match operation:
            case Add():
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
    )


def checkpoint_due(version: Version) -> bool:
    """Whether a checkpoint is made of this version. Version 0 needs none: it holds nothing."""
    return version > 0 and version % CHECKPOINT_EVERY == 0


@dataclass(slots=True)
class Plan:
    """Filled by `admit`; one answer for each request, in order."""

    state: LogState
    limits: SegmentLimits
    now: float
    operations: list[Add | Remove | Claim | Seal] = field(default_factory=list)
    placements: list[Placement] = field(default_factory=list)
    answers: list[Appended | Conflict] = field(default_factory=list)
    _next_offset: Offset = field(init=False)
    _segment: Offset = field(init=False)
    _size: int = field(init=False)
    _origins: dict[int, OriginRef] = field(default_factory=dict)
    _txns: dict[str, TxnRef] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._next_offset = self.state.next_offset
        active = self.state.segments[-1] if self.state.segments else None
        now_ms = int(self.now * 1000)
        if active is None or must_roll(
            active, size_bytes=active.size, batch_bytes=0, now_ms=now_ms, limits=self.limits
        ):
            self._segment, self._size = self._next_offset, 0
        else:
            self._segment, self._size = active.base, active.size

    @property
    def version(self) -> Version:
        """Of the commit that the plan becomes."""
        return Version(self.state.version + 1)

    def admit(self, request: Request) -> None:
        """Place a request, or find its earlier answer, or refuse it."""
        try:
            answer = self._repeat(request)
        except Conflict as refusal:
            self.answers.append(refusal)
            return
        if answer is None:
            answer = self._place(request)
        self.answers.append(answer)

    def _repeat(self, request: Request) -> Appended | None:
        if request.txn_id is not None:
            txn = self._txns.get(request.txn_id) or self.state.txns.get(request.txn_id)
            if txn is not None:
                return Appended(txn.offset_start, txn.offset_end, txn.version)
        expected = request.expected_version
        # Whatever was placed before makes another version than the one expected.
        if expected is not None and (expected != self.state.version or self.placements):
            current = self.version if self.placements else self.state.version
            raise VersionConflict(expected=expected, current=current)
        return self._repeat_of_origins(request)

    def _repeat_of_origins(self, request: Request) -> Appended | None:
        repeats: list[Appended] = []
        seen: dict[int, OriginRef] = {}
        fresh = 0
        for header in request.batches:
            if not _has_origin(header):
                fresh += 1
                continue
            origin_id = header.producer_id
            origin = seen.get(origin_id) or self._origin(origin_id)
            repeat = repeat_of(
                origin,
                origin_id=origin_id,
                epoch=header.producer_epoch,
                sequence=header.base_sequence,
                count=header.record_count,
            )
            if repeat is not None:
                repeats.append(repeat)
                continue
            fresh += 1
            seen[origin_id] = advanced(origin, self._add(header, None), self.version)
        if repeats and fresh:
            # A request commits whole, so half of one cannot have been here before.
            last = request.batches[-1]
            raise DuplicateSequence(origin_id=last.producer_id, sequence=last.base_sequence, last=last.base_sequence)
        if repeats:
            return Appended(repeats[0].offset_start, repeats[-1].offset_end, repeats[-1].version)
        return None

    def _origin(self, origin_id: int) -> OriginRef | None:
        return self._origins.get(origin_id) or self.state.origins.get(origin_id)

    def _place(self, request: Request) -> Appended:
        start = self._next_offset
        for number, header in enumerate(request.batches):
            if self._size and self._size + header.size_bytes > self.limits.segment_bytes_max:
                self._segment, self._size = self._next_offset, 0
            self.placements.append(Placement(len(self.answers), number, self._segment, self._size, self._next_offset))
            add = self._add(header, request.txn_id)
            last = self.operations[-1] if self.operations else None
            if isinstance(last, Add) and _continues(last, add):
                self.operations[-1] = _joined(last, add)
            else:
                self.operations.append(add)
            if add.origin_id != NO_ORIGIN:
                self._origins[add.origin_id] = advanced(self._origin(add.origin_id), add, self.version)
            if add.txn_id is not None:
                self._txns[add.txn_id] = grown(self._txns.get(add.txn_id), add.txn_id, add, self.version)
            self._next_offset = add.offset_end
            self._size += add.size
        return Appended(start, self._next_offset, self.version)

    def _add(self, header: BatchHeader, txn_id: str | None) -> Add:
        has_origin = _has_origin(header)
        return Add(
            origin_id=header.producer_id if has_origin else NO_ORIGIN,
            origin_seq=header.base_sequence if has_origin else NO_ORIGIN,
            origin_epoch=header.producer_epoch if has_origin else NO_ORIGIN,
            offset_start=self._next_offset,
            offset_end=Offset(self._next_offset + header.record_count),
            segment=segment_name(self._segment),
            position=self._size,
            size=header.size_bytes,
            timestamp_max=header.max_timestamp,
            txn_id=txn_id,
        )


def _has_origin(header: BatchHeader) -> bool:
    return header.producer_id >= 0 and header.base_sequence >= 0


def _continues(last: Add, add: Add) -> bool:
    """Whether two adds can be one without forgetting anything: the commit stays small under many small batches."""
    if (last.segment, last.origin_id, last.origin_epoch, last.txn_id) != (
        add.segment,
        add.origin_id,
        add.origin_epoch,
        add.txn_id,
    ):
        return False
    count = last.offset_end - last.offset_start
    return add.origin_id == NO_ORIGIN or add.origin_seq == (last.origin_seq + count) % SEQUENCES


def _joined(last: Add, add: Add) -> Add:
    return Add(
        origin_id=last.origin_id,
        origin_seq=last.origin_seq,
        origin_epoch=last.origin_epoch,
        offset_start=last.offset_start,
        offset_end=add.offset_end,
        segment=last.segment,
        position=last.position,
        size=last.size + add.size,
        timestamp_max=max(last.timestamp_max, add.timestamp_max),
        txn_id=last.txn_id,
    )

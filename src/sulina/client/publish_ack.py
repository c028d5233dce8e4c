"""What became of a publish. A fault of the message is a reject, which says why; a fault of the system raises."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from msgspec import Struct

from sulina.core.delivery.rejects import RejectReason, reject_reason
from sulina.core.topic import Ack
from sulina.errors import PubSubError, SulinaError


class PublishStatus(StrEnum):
    """Whether the records were taken."""

    ACCEPTED = "Accepted"
    REJECTED = "Rejected"


class PublishPart(Struct, frozen=True, kw_only=True):
    """What became of those records of a batch that belong to one partition: all were taken, or `error` says why not.

    An error of the system leaves the outcome open where it says so (`Disconnected`): repeat it with the same txn_id.
    """

    partition: int
    count: int
    base_offset: int | None = None  # None: not taken, or the ack is `memory`
    version: int | None = None
    ack: Ack | None = None
    error: SulinaError | None = None
    records: Sequence[int] = ()  # the places of its records in the batch

    @property
    def is_accepted(self) -> bool:
        """Whether its records were taken."""
        return self.error is None

    @property
    def reason(self) -> RejectReason | None:
        """Why its records were rejected; None: they were not, or the fault is the system's."""
        return None if self.error is None else reject_reason(self.error)


class SplitFailed(PubSubError):
    """Some parts of a batch that was split by partition were not taken; `parts` says what became of each.

    The same call again would publish the other parts twice, unless it has a txn_id: publish the failed ones again.
    """

    def __init__(self, parts: Sequence[PublishPart]) -> None:
        self.parts = tuple(parts)
        failed = [part for part in self.parts if not part.is_accepted]
        taken = ", ".join(str(part.partition) for part in self.parts if part.is_accepted) or "none"
        why = "; ".join(f"partition {part.partition}: {part.error}" for part in failed)
        super().__init__(
            f"{len(failed)} of {len(self.parts)} parts of the batch were not published; partitions that took theirs: "
            f"{taken}. {why}"
        )


@dataclass(frozen=True, slots=True)
class PublishAck:
    """What became of a publish: one part, or several where the caller had a batch split by partition.

    Each part is all or nothing. Where one of several is rejected, so is the whole, and `parts` says which were taken.
    """

    status: PublishStatus
    reason: RejectReason | None = None
    message: str = ""
    parts: tuple[PublishPart, ...] = ()
    error: SulinaError | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, parts: Sequence[PublishPart]) -> Self:
        """The ack that these parts make; the first fault of the system among them is raised.

        Raises:
            SplitFailed: one of several parts met a fault of the system.
        """
        failed = [part for part in parts if part.error is not None]
        if not failed:
            return cls(PublishStatus.ACCEPTED, parts=tuple(parts))
        error = SplitFailed(parts) if len(parts) > 1 else failed[0].error
        reasons = [part.reason for part in failed]
        assert error is not None
        if None in reasons:
            raise error
        return cls(PublishStatus.REJECTED, reasons[0], str(error), tuple(parts), error)

    @classmethod
    def rejected(cls, error: SulinaError) -> Self:
        """The ack for a fault of the message, of which nothing was sent; any other error is raised."""
        reason = reject_reason(error)
        if reason is None:
            raise error
        return cls(PublishStatus.REJECTED, reason, str(error), (), error)

    @property
    def is_accepted(self) -> bool:
        """Whether all records were taken."""
        return self.status == PublishStatus.ACCEPTED

    def raise_for_status(self) -> Self:
        """Raise the error behind a reject; else nothing happens."""
        if self.error is not None:
            raise self.error
        return self

    @property
    def partition(self) -> int:
        """Return the partition of the first part that was taken."""
        return self._first.partition

    @property
    def offset(self) -> int | None:
        """Return the offset of the first record of the first part that was taken; None when the ack is `memory`."""
        return self._first.base_offset

    @property
    def version(self) -> int | None:
        """Return the version of the commit of the first part that was taken; None when the ack is `memory`."""
        return self._first.version

    @property
    def count(self) -> int:
        """Records that were taken, in all parts."""
        return sum(part.count for part in self.parts if part.is_accepted)

    @property
    def _first(self) -> PublishPart:
        for part in self.parts:
            if part.is_accepted:
                return part
        raise self.error or ValueError("no partition took records")

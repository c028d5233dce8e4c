"""What became of a publish. A fault of the message is a reject, which says why; a fault of the system raises."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from sulina.core.rejects import RejectReason, reject_reason
from sulina.errors import SulinaError
from sulina.wire.messages import Published


class PublishStatus(StrEnum):
    """Whether the records were taken."""

    ACCEPTED = "Accepted"
    REJECTED = "Rejected"


@dataclass(frozen=True, slots=True)
class PublishAck:
    """One part for each partition that took records: usually one, more when the keys of a batch belong to several.

    Each part is all or nothing. A reject may have parts too: those that were taken although another was not.
    """

    status: PublishStatus
    reason: RejectReason | None = None
    message: str = ""
    parts: tuple[Published, ...] = ()
    error: SulinaError | None = field(default=None, repr=False, compare=False)

    @classmethod
    def rejected(cls, error: SulinaError, parts: tuple[Published, ...] = ()) -> Self:
        """The ack for a fault of the message; any other error is raised."""
        reason = reject_reason(error)
        if reason is None:
            if parts:
                error.add_note(f"partitions {', '.join(str(part.partition) for part in parts)} took their records")
            raise error
        return cls(PublishStatus.REJECTED, reason, str(error), parts, error)

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
        """Of the first part."""
        return self._first.partition

    @property
    def offset(self) -> int | None:
        """Of the first record of the first part; None when the ack is `memory`."""
        return self._first.base_offset

    @property
    def version(self) -> int | None:
        """Of the commit of the first part; None when the ack is `memory`."""
        return self._first.version

    @property
    def count(self) -> int:
        """Records that were taken, in all parts."""
        return sum(part.count for part in self.parts)

    @property
    def _first(self) -> Published:
        if not self.parts:
            raise self.error or ValueError("no partition took records")
        return self.parts[0]

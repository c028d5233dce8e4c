"""What became of a publish. A fault of the message is a reject, which says why; a fault of the system raises."""

import warnings
from collections.abc import Sequence
from enum import StrEnum
from typing import Self

from msgspec import Struct

from sulina.core.delivery.rejects import RejectReason, reject_reason
from sulina.core.topic import Ack
from sulina.errors import PubSubError, SulinaError


class PublishStatus(StrEnum):
    """Whether the records were accepted."""

    ACCEPTED = "Accepted"
    REJECTED = "Rejected"


class PublishPart(Struct, frozen=True, kw_only=True):
    """What became of the records of a batch that belong to one partition: all were accepted, or `error` says why not.

    Some errors of the system leave the outcome unknown (`Disconnected`): publish again with the same txn_id.
    """

    partition: int
    count: int
    base_offset: int | None = None  # None: not accepted, or the ack is `memory`
    version: int | None = None
    ack: Ack | None = None
    error: SulinaError | None = None
    records: Sequence[int] = ()  # the indexes of its records in the batch

    @property
    def is_accepted(self) -> bool:
        """Return whether its records were accepted."""
        return self.error is None

    @property
    def reason(self) -> RejectReason | None:
        """Return why its records were rejected; None: they were accepted, or the fault is the system's."""
        return None if self.error is None else reject_reason(self.error)


class SplitFailed(PubSubError):
    """Some parts of a batch that was split by partition were not accepted; `parts` says what became of each.

    Without a txn_id, the same call again would publish the other parts twice: publish the failed parts only.
    """

    def __init__(self, parts: Sequence[PublishPart]) -> None:
        self.parts = tuple(parts)
        failed = [part for part in self.parts if not part.is_accepted]
        accepted = ", ".join(str(part.partition) for part in self.parts if part.is_accepted) or "none"
        why = "; ".join(f"partition {part.partition}: {part.error}" for part in failed)
        super().__init__(
            f"{len(failed)} of {len(self.parts)} parts of the batch were not published; partitions that accepted "
            f"theirs: {accepted}. {why}"
        )


class RejectedPublishWarning(RuntimeWarning):
    """A publish was rejected, and its ack was thrown away without being looked at."""


class _UnseenReject:
    """Warns when it is collected, unless the ack that has it was looked at."""

    __slots__ = ("is_seen", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.is_seen = False

    # The function is bound here: at the end of the process its module may be gone.
    def __del__(self, warn: object = warnings.warn) -> None:
        if not self.is_seen and callable(warn):
            warn(
                f"{self.text} Nobody looked at its ack: call raise_for_status(), or check is_accepted.",
                RejectedPublishWarning,
                stacklevel=2,
            )


class PublishAck:
    """What became of a publish: one part, or several where the caller had a batch split by partition.

    Each part is all or nothing. Where one of several is rejected, so is the whole, and `parts` says which were
    accepted. A reject that nobody looks at warns (`RejectedPublishWarning`) when it is collected.
    """

    __slots__ = ("_error", "_parts", "_reason", "_unseen")

    def __init__(
        self,
        parts: Sequence[PublishPart] = (),
        *,
        reason: RejectReason | None = None,
        error: SulinaError | None = None,
        topic: str = "",
    ) -> None:
        """Make an accept; or, with a reason and an error, a reject."""
        assert (reason is None) == (error is None)
        self._parts = tuple(parts)
        self._reason = reason
        self._error = error
        to = f" to {topic}" if topic else ""
        self._unseen = None if error is None else _UnseenReject(f"A publish{to} was rejected, {reason}: {error}.")

    @classmethod
    def of(cls, parts: Sequence[PublishPart], topic: str = "") -> Self:
        """Return the ack that these parts make together.

        Raises:
            SplitFailed: one of several parts met a fault of the system.
            SulinaError: the only part met a fault of the system.
        """
        failed = [part for part in parts if part.error is not None]
        if not failed:
            return cls(parts)
        error = SplitFailed(parts) if len(parts) > 1 else failed[0].error
        reasons = [part.reason for part in failed]
        assert error is not None
        if None in reasons:
            raise error
        return cls(parts, reason=reasons[0], error=error, topic=topic)

    @classmethod
    def rejected(cls, error: SulinaError, topic: str = "") -> Self:
        """Return the ack for a fault of the message, of which nothing was sent.

        Raises:
            SulinaError: `error`, where it is not a fault of the message.
        """
        reason = reject_reason(error)
        if reason is None:
            raise error
        return cls(reason=reason, error=error, topic=topic)

    def _see(self) -> None:
        if self._unseen is not None:
            self._unseen.is_seen = True

    @property
    def status(self) -> PublishStatus:
        """Return whether all records were accepted."""
        self._see()
        return PublishStatus.ACCEPTED if self._error is None else PublishStatus.REJECTED

    @property
    def is_accepted(self) -> bool:
        """Return whether all records were accepted."""
        self._see()
        return self._error is None

    @property
    def reason(self) -> RejectReason | None:
        """Return why it was rejected; None: it was accepted."""
        self._see()
        return self._reason

    @property
    def error(self) -> SulinaError | None:
        """Return the error behind a reject; None: it was accepted."""
        self._see()
        return self._error

    @property
    def message(self) -> str:
        """Return the text of the error behind a reject; empty: it was accepted."""
        self._see()
        return "" if self._error is None else str(self._error)

    @property
    def parts(self) -> tuple[PublishPart, ...]:
        """Return what became of each part; nothing, where none was sent."""
        self._see()
        return self._parts

    def raise_for_status(self) -> Self:
        """Return this ack, if it is an accept.

        Raises:
            SulinaError: the error behind a reject.
        """
        self._see()
        if self._error is not None:
            raise self._error
        return self

    @property
    def partition(self) -> int:
        """Return the partition of the first part that was accepted.

        Raises:
            SulinaError: the error behind a reject, where no part was accepted.
        """
        return self._first().partition

    @property
    def offset(self) -> int | None:
        """Return the offset of the first record of the first part that was accepted; None when the ack is `memory`.

        Raises:
            SulinaError: the error behind a reject, where no part was accepted.
        """
        return self._first().base_offset

    @property
    def version(self) -> int | None:
        """Return the version of the commit of the first part that was accepted; None when the ack is `memory`.

        Raises:
            SulinaError: the error behind a reject, where no part was accepted.
        """
        return self._first().version

    @property
    def count(self) -> int:
        """Return the number of records that were accepted, in all parts."""
        self._see()
        return sum(part.count for part in self._parts if part.is_accepted)

    def _first(self) -> PublishPart:
        self._see()
        for part in self._parts:
            if part.is_accepted:
                return part
        raise self._error or ValueError("no partition accepted records")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PublishAck):
            return NotImplemented
        return (self.reason, self.message, self.parts) == (other.reason, other.message, other.parts)

    def __hash__(self) -> int:
        return hash((self.reason, self.message))

    def __repr__(self) -> str:
        if self.is_accepted:
            return f"PublishAck({self.status}, parts={self._parts!r})"
        return f"PublishAck({self.status}, reason={self._reason!r}, message={self.message!r}, parts={self._parts!r})"

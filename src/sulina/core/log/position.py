"""Start of a subscription or a reader, as one word: `earliest`, `latest`, `offset:42`, `timestamp:…`, `version:7`.

A version means the first record that its commit added; a timestamp means the first record as new or newer. An offset
may name the epoch in which everything before it was read, `offset:42@7`: if those records were discarded since, it
means the offset where the log continues (`core.log.epochs`).
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Self

from sulina.errors import InvalidSettings

_NUMBER_MAX = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class At(StrEnum):
    """The unit of a position."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    VERSION = "version"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a partition, looked up when it is used."""

    at: At
    value: int = 0  # an offset, milliseconds since 1970, or a version
    epoch: int | None = None  # only with an offset: everything before it was read in this epoch; None: not known

    @classmethod
    def at_offset(cls, offset: int, epoch: int | None) -> Self:
        """Return an offset, and the epoch in which everything before it was read if that is known (not negative)."""
        return cls(At.OFFSET, offset, epoch if epoch is not None and epoch >= 0 else None)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a position. Timestamps are milliseconds since 1970 or ISO 8601 (UTC unless another zone is given).

        Raises:
            InvalidSettings: the text is not a position.
        """
        word, colon, rest = text.partition(":")
        if word in (At.EARLIEST, At.LATEST) and not colon:
            return cls(At(word))
        if word in (At.OFFSET, At.TIMESTAMP, At.VERSION):
            digits, at, epoch_digits = rest.partition("@") if word == At.OFFSET else (rest, "", "")
            number, epoch = _number(digits), _number(epoch_digits)
            if number is None and word == At.TIMESTAMP:
                number = _milliseconds(rest)
            if number is not None and (epoch is not None or not at):
                return cls(At(word), number, epoch)
        shown = text if len(text) <= 60 else text[:57] + "..."
        raise InvalidSettings(
            f"position {shown!r} is not valid: use earliest, latest, offset:N, offset:N@EPOCH, version:N, "
            "timestamp:MS or timestamp:ISO"
        )

    def __str__(self) -> str:
        if self.at in (At.EARLIEST, At.LATEST):
            return self.at.value
        return f"{self.at.value}:{self.value}" if self.epoch is None else f"{self.at.value}:{self.value}@{self.epoch}"


EARLIEST = Position(At.EARLIEST)
LATEST = Position(At.LATEST)


def _number(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        return None
    return number if (number := int(text)) <= _NUMBER_MAX else None


def _milliseconds(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    # Not by `timestamp()`: a float loses a millisecond now and then.
    milliseconds = ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
    return milliseconds if milliseconds >= 0 else None

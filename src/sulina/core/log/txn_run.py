"""A run of txn_ids: the offsets that each of them got, in the order of their commits.

A run grows until it is sealed, and never changes again. It is stored once, under a name with its versions and the
checksum of its bytes, so that a checkpoint needs only its name and one run cannot be mistaken for another.
"""

import re
from array import array
from typing import Annotated, Any

import msgspec
from crc32c import crc32c

from sulina.errors import CorruptCommit
from sulina.json_values import decode_json
from sulina.types import Offset, Version

ENDING = ".txns"
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_NAME = re.compile(r"[0-9]{20}-[0-9]{20}-[0-9a-f]{8}\.txns")


class TxnRef(msgspec.Struct, frozen=True, array_like=True):
    """The offsets that a txn_id got."""

    txn_id: str
    offset_start: Offset
    offset_end: Offset
    version: Version
    log_ms: int = 0  # of its commit, by the log's own time


class _RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a run."""

    txn_ids: list[str]
    offset_starts: list[Int64]
    offset_ends: list[Int64]
    versions: list[Int64]
    log_ms: list[Int64]


class TxnRun:
    """A run in columns, because there may be a million entries: each has 40 bytes and its text."""

    __slots__ = ("_ends", "_starts", "_times", "_versions", "count", "last_ms", "name", "number", "txn_ids")

    def __init__(self) -> None:
        self.name: str | None = None  # of its file, once the run is sealed
        self.count = 0
        self.last_ms = 0  # of the newest entry
        self.number = 0  # set by a memory of several runs
        self.txn_ids: list[str] | tuple[str, ...] = []  # sealed: a tuple, which the garbage collector skips
        self._starts, self._ends, self._versions, self._times = array("q"), array("q"), array("q"), array("q")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TxnRun):
            return NotImplemented
        return (self.name, self.count, self.last_ms) == (other.name, other.count, other.last_ms) and (
            self.name is not None or self.refs() == other.refs()
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def is_loaded(self) -> bool:
        """Whether the run has its txn_ids: one that a checkpoint names has to be read first."""
        return len(self.txn_ids) == self.count

    def add(self, txn: TxnRef) -> None:
        """Add the newest entry. Adds of one txn_id follow one another in one commit, and become one entry."""
        assert isinstance(self.txn_ids, list), "it is sealed"
        if self.count and self.txn_ids[-1] == txn.txn_id and self._versions[-1] == txn.version:
            self._ends[-1] = txn.offset_end
            return
        # Another thread finds an entry by its txn_id: that is added last.
        self._starts.append(txn.offset_start)
        self._ends.append(txn.offset_end)
        self._versions.append(txn.version)
        self._times.append(txn.log_ms)
        self.last_ms = txn.log_ms
        self.txn_ids.append(txn.txn_id)
        self.count += 1

    def find(self, txn_id: str) -> TxnRef:
        """Return the entry of a txn_id; the newest, if it is there twice.

        Raises:
            KeyError: the txn_id is not in this run.
        """
        for at in range(len(self.txn_ids) - 1, -1, -1):
            if self.txn_ids[at] == txn_id:
                return self._at(at)
        raise KeyError(txn_id)

    def refs(self) -> tuple[TxnRef, ...]:
        """Return all entries, oldest first."""
        return tuple(self._at(at) for at in range(self.count))

    def _at(self, at: int) -> TxnRef:
        return TxnRef(
            self.txn_ids[at],
            Offset(self._starts[at]),
            Offset(self._ends[at]),
            Version(self._versions[at]),
            self._times[at],
        )

    # As a file

    def seal(self) -> None:
        """Name the run: from now on it does not change."""
        assert self.count
        self.txn_ids = tuple(self.txn_ids)
        self.name = f"{self._versions[0]:020d}-{self._versions[-1]:020d}-{crc32c(self.encode()):08x}{ENDING}"

    def encode(self) -> bytes:
        """Return the bytes of the run's file: one line of JSON."""
        columns = (list(column) for column in (self._starts, self._ends, self._versions, self._times))
        names = ("offset_starts", "offset_ends", "versions", "log_ms")
        line = msgspec.json.encode(_RunFile(txn_ids=list(self.txn_ids), **dict(zip(names, columns, strict=True))))
        return line + b"\n"

    def load(self, data: bytes) -> None:
        """Read the run's file, which `encode` wrote.

        Raises:
            CorruptCommit: it is damaged, or holds another run.
        """
        assert self.name is not None
        if f"-{crc32c(data):08x}{ENDING}" != self.name[-len(f"-00000000{ENDING}") :]:
            raise CorruptCommit(name=self.name, reason=f"its checksum does not hold over {len(data)} bytes")
        try:
            columns = decode_json(data, _RunFile)
        except msgspec.MsgspecError as error:
            raise CorruptCommit(name=self.name, reason=f"its checksum holds, its fields do not: {error}") from error
        numbers = (columns.offset_starts, columns.offset_ends, columns.versions, columns.log_ms)
        if {len(column) for column in (columns.txn_ids, *numbers)} != {self.count}:
            raise CorruptCommit(name=self.name, reason=f"it does not hold {self.count} txn_ids")
        self.txn_ids = tuple(columns.txn_ids)
        self._starts, self._ends, self._versions, self._times = (array("q", column) for column in numbers)

    # As a checkpoint names it

    def reference(self) -> tuple[str, int, int]:
        """Return the entry of a checkpoint that names this run."""
        assert self.name is not None, "only a sealed run has a name"
        return self.name, self.count, self.last_ms

    @classmethod
    def referred(cls, reference: Any) -> "TxnRun":
        """Return the run that a checkpoint names, not yet loaded.

        Raises:
            msgspec.ValidationError: the entry does not name a run.
        """
        match reference:
            case [str(name), int(count), int(last_ms)] if is_run_name(name) and count > 0:
                run = cls()
                run.name, run.count, run.last_ms = name, count, last_ms
                return run
        raise msgspec.ValidationError(f"{reference} does not name a run of txn_ids")


def is_run_name(name: str) -> bool:
    """Return whether a name is that of a run's file. Such a name never leads to another directory."""
    return _NAME.fullmatch(name) is not None

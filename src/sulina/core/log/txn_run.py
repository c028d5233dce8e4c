"""A run of txn_ids: what each of them wrote, in the order of their commits.

A run grows until it is sealed, and never changes again. It is stored once, under a name that says which versions it is
of and what the checksum of its bytes is, so that a checkpoint needs only its name and nobody can take another for it.
"""

import re
from array import array
from typing import Annotated, Any

import msgspec
from crc32c import crc32c

from sulina.errors import CorruptCommit
from sulina.types import Offset, Version

ENDING = ".txns"
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_NAME = re.compile(r"[0-9]{20}-[0-9]{20}-[0-9a-f]{8}\.txns")


class TxnRef(msgspec.Struct, frozen=True, array_like=True):
    """What a txn_id wrote."""

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
    """Columns, because there may be a million of them: 40 bytes and the text for each."""

    __slots__ = ("_ends", "_starts", "_times", "_versions", "count", "last_ms", "name", "number", "txn_ids")

    def __init__(self) -> None:
        self.name: str | None = None  # of its file, once it is sealed
        self.count = 0
        self.last_ms = 0  # of the newest of them
        self.number = 0  # for who has several of them
        self.txn_ids: list[str] | tuple[str, ...] = []  # sealed: a tuple, of which the garbage collector knows nothing
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
        """Whether it has its txn_ids: what a checkpoint names has to be read first."""
        return len(self.txn_ids) == self.count

    def add(self, txn: TxnRef) -> None:
        """Take in the newest. Adds of one txn_id follow one another in one commit, and are one."""
        assert isinstance(self.txn_ids, list), "it is sealed"
        if self.count and self.txn_ids[-1] == txn.txn_id and self._versions[-1] == txn.version:
            self._ends[-1] = txn.offset_end
            return
        # A reader beside us finds a txn_id by its place: that comes last.
        self._starts.append(txn.offset_start)
        self._ends.append(txn.offset_end)
        self._versions.append(txn.version)
        self._times.append(txn.log_ms)
        self.last_ms = txn.log_ms
        self.txn_ids.append(txn.txn_id)
        self.count += 1

    def find(self, txn_id: str) -> TxnRef:
        """Return what a txn_id of this run wrote; the newest, if it is there twice."""
        for at in range(len(self.txn_ids) - 1, -1, -1):
            if self.txn_ids[at] == txn_id:
                return self._at(at)
        raise KeyError(txn_id)

    def refs(self) -> tuple[TxnRef, ...]:
        """Return all of them, oldest first."""
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
        """Name it: from now on it does not change."""
        assert self.count
        self.txn_ids = tuple(self.txn_ids)
        self.name = f"{self._versions[0]:020d}-{self._versions[-1]:020d}-{crc32c(self.encode()):08x}{ENDING}"

    def encode(self) -> bytes:
        """Return the bytes of its file: one line of JSON."""
        columns = (list(column) for column in (self._starts, self._ends, self._versions, self._times))
        names = ("offset_starts", "offset_ends", "versions", "log_ms")
        line = msgspec.json.encode(_RunFile(txn_ids=list(self.txn_ids), **dict(zip(names, columns, strict=True))))
        return line + b"\n"

    def load(self, data: bytes) -> None:
        """Take in what `encode` wrote. CorruptCommit for anything else."""
        assert self.name is not None
        if f"-{crc32c(data):08x}{ENDING}" != self.name[-len(f"-00000000{ENDING}") :]:
            raise CorruptCommit(name=self.name, reason=f"its checksum does not hold over {len(data)} bytes")
        try:
            columns = msgspec.json.decode(data, type=_RunFile)
        except msgspec.MsgspecError as error:
            raise CorruptCommit(name=self.name, reason=f"its checksum holds, its fields do not: {error}") from error
        numbers = (columns.offset_starts, columns.offset_ends, columns.versions, columns.log_ms)
        if {len(column) for column in (columns.txn_ids, *numbers)} != {self.count}:
            raise CorruptCommit(name=self.name, reason=f"it does not hold {self.count} txn_ids")
        self.txn_ids = tuple(columns.txn_ids)
        self._starts, self._ends, self._versions, self._times = (array("q", column) for column in numbers)

    # As a checkpoint names it

    def reference(self) -> tuple[str, int, int]:
        """Return what a checkpoint says of it."""
        assert self.name is not None, "only a sealed run has a name"
        return self.name, self.count, self.last_ms

    @classmethod
    def referred(cls, reference: Any) -> "TxnRun":
        """Return the run that a checkpoint names, not yet loaded. ValidationError."""
        match reference:
            case [str(name), int(count), int(last_ms)] if is_run_name(name) and count > 0:
                run = cls()
                run.name, run.count, run.last_ms = name, count, last_ms
                return run
        raise msgspec.ValidationError(f"{reference} names no run of txn_ids")


def is_run_name(name: str) -> bool:
    """Return whether a name is that of a run's file; nothing else is such a run, and no such name leads elsewhere."""
    return _NAME.fullmatch(name) is not None

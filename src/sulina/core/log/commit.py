"""Commit and checkpoint files: what they say, and their bytes.

A commit is one line of JSON with the fields of the seed, and a few more. Its last field is the CRC32C of all bytes
before it, so that a damaged file is known as such before any of it is believed. Unknown fields are ignored, so that
a newer writer does not stop an older reader. Offset ranges are half-open.

A checkpoint may be compressed: then its file is that line as gzip. Readers tell by the first bytes, not by a setting.
"""

import zlib
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from crc32c import crc32c

from sulina.core.log.txn_run import TxnRef, TxnRun
from sulina.errors import CorruptCommit
from sulina.types import Epoch, Offset, Version

NO_ORIGIN = -1  # a batch without a producer id, as in the record batch format
CHECKPOINT_EVERY = 10  # versions
LAST_CHECKPOINT = "_last_checkpoint"

_NAME_DIGITS = 20
_CRC_FIELD = b',"crc":'
_GZIP_MAGIC = b"\x1f\x8b"  # no JSON begins like this
_GZIP_WINDOW = 31  # zlib's word for: with the header and trailer of gzip
DECOMPRESSED_BYTES_MAX = 1 << 30  # a checkpoint of millions of segments and origins is smaller


class Operation(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """A step of a commit."""


class Add(Operation, frozen=True, kw_only=True, tag="add"):
    """Whole batches of one origin, end to end in one segment."""

    origin_id: int
    origin_seq: int  # of the first record
    offset_start: Offset
    offset_end: Offset
    segment: str
    position: int
    size: int
    timestamp_max: int  # milliseconds, over all records
    origin_epoch: int = NO_ORIGIN
    txn_id: str | None = None
    # In an archive an add is a slice of the log: batches of any origins, and the commits that made them.
    object: str | None = None  # where the batches lie
    version_start: Version = Version(0)  # of the log, as all versions here; half-open
    version_end: Version = Version(0)
    epoch: Epoch = Epoch(-1)  # of every batch in it
    data_crc: int = 0
    commits_size: int = 0  # bytes
    state: str | None = None  # the object that holds the log's state at version_end - 1


class Remove(Operation, frozen=True, kw_only=True, tag="remove"):
    """The oldest segment is no longer part of the log."""

    segment: str
    offset_start: Offset
    offset_end: Offset
    size: int
    object: str | None = None  # in an archive: the slice


class Claim(Operation, frozen=True, kw_only=True, tag="claim"):
    """A new owner: whoever has a lower epoch may write no more."""

    epoch: Epoch
    broker_id: str
    holder: str | None = None  # in an archive: the directory that goes on from here


class Seal(Operation, frozen=True, kw_only=True, tag="seal"):
    """The newest segment is final: what follows goes into another one."""

    segment: str
    offset_end: Offset
    size: int


class Merge(Operation, frozen=True, kw_only=True, tag="merge"):
    """Slices of an archive that lie end to end have become one. What the log holds is the same."""

    first: str  # the object of the first of them
    count: int
    object: str
    data_crc: int
    size: int
    commits_size: int


AnyOperation = Add | Remove | Claim | Seal | Merge


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """One atomic log entry."""

    version: Version
    timestamp: str
    txn_id: str
    operations: tuple[AnyOperation, ...]
    checkpoint_hint: bool
    epoch: Epoch
    start_offset: Offset  # of the log after this commit
    next_offset: Offset
    log_ms: int = 0  # the log's own time (`core.log.log_time`); 0 in commits of before there was one


class SegmentRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A segment as the commit log knows it; bytes past `size` are not part of the log."""

    name: str
    base: Offset  # inclusive
    next_offset: Offset  # exclusive
    size: int
    epoch: Epoch  # of every batch in it
    created_ms: int  # by the log's clock, as is the next
    written_ms: int
    timestamp_max: int  # by the clocks of the producers
    sealed: bool = False
    # Of a slice in an archive, as its add said:
    object: str | None = None
    version_start: Version = Version(0)
    version_end: Version = Version(0)
    data_crc: int = 0
    commits_size: int = 0
    state: str | None = None


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive sequences of an origin, and where they went."""

    sequence: int
    offset_start: Offset
    offset_end: Offset
    version: Version


class OriginRef(msgspec.Struct, frozen=True, kw_only=True):
    """How far an origin has come, with its newest runs so that a repeat gets its first answer."""

    origin_id: int
    epoch: int
    last_seq: int
    runs: tuple[Run, ...]
    log_ms: int = 0  # of its newest record, by the log's own time


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole state of a log at a version: recovery needs no commit up to it."""

    version: Version
    timestamp: str
    last_offset: int  # -1 when the log never had a record
    start_offset: Offset
    next_offset: Offset
    epoch: Epoch
    segments: tuple[SegmentRef, ...]
    origins: tuple[OriginRef, ...]
    txns: tuple[TxnRef, ...]  # the newest; older ones are in runs
    log_version: Version = Version(-1)  # of an archive: how far into the log it reaches
    holder: str | None = None  # of an archive: the directory that goes on from there
    claimer: str | None = None  # of an archive: the broker that made the newest claim
    txn_runs: tuple[TxnRun, ...] = ()  # each in a file of its own, which is named here; oldest first
    log_ms: int = 0
    newest_ms: int = 0  # of all commits up to it, by the clocks of their writers


class LastCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A hint where to start looking. It may be missing, stale or torn."""

    version: Version


Stored = TypeVar("Stored", Commit, Checkpoint, LastCheckpoint)


def offset_before(commit: Commit) -> Offset:
    """Return where the log ended before a commit: the first record that it added, or a later one, is there."""
    return next((one.offset_start for one in commit.operations if isinstance(one, Add)), commit.next_offset)


def commit_name(version: int) -> str:
    """The file of a commit. Names sort as versions do."""
    return f"{version:020d}.json"


def checkpoint_name(version: int) -> str:
    """The file of a checkpoint; it sorts before the commit of its version."""
    return f"{version:020d}.checkpoint.json"


def commit_version(name: str) -> Version | None:
    """The version of a commit file; None for any other file."""
    return _version(name, ".json")


def checkpoint_version(name: str) -> Version | None:
    """The version of a checkpoint file; None for any other file."""
    return _version(name, ".checkpoint.json")


def _version(name: str, ending: str) -> Version | None:
    digits = name[:_NAME_DIGITS]
    # isascii first: isdigit alone accepts digits of other scripts.
    if name[_NAME_DIGITS:] == ending and digits.isascii() and digits.isdigit():
        return Version(int(digits))
    return None


def encode(entry: Commit | Checkpoint | LastCheckpoint, *, compress: bool = False) -> bytes:
    """Return the bytes of the file: one line of JSON that ends in its own checksum, as gzip if asked to."""
    body = msgspec.json.encode(entry, enc_hook=_refer)[:-1]
    line = b"%b%b%d}\n" % (body, _CRC_FIELD, crc32c(body))
    return zlib.compress(line, wbits=_GZIP_WINDOW) if compress else line


def _decompress(name: str, data: bytes) -> bytes:
    unpacking = zlib.decompressobj(wbits=_GZIP_WINDOW)
    try:
        line = unpacking.decompress(data, DECOMPRESSED_BYTES_MAX)
    except zlib.error as error:
        raise CorruptCommit(name=name, reason=f"it cannot be decompressed: {error}") from error
    if not unpacking.eof or unpacking.unused_data:
        raise CorruptCommit(name=name, reason="its compressed part is cut short, too long, or followed by other bytes")
    return line


def decode(name: str, data: bytes, kind: type[Stored]) -> Stored:
    """Read what `encode` wrote, compressed or not; CorruptCommit for anything else."""
    if data.startswith(_GZIP_MAGIC):
        data = _decompress(name, data)
    body, found, crc = data.rpartition(_CRC_FIELD)
    if not found or crc != b"%d}\n" % crc32c(body):
        raise CorruptCommit(name=name, reason=f"its checksum does not hold over {len(data)} bytes")
    try:
        return msgspec.json.decode(body + b"}", type=kind, dec_hook=_referred)
    except msgspec.MsgspecError as error:
        raise CorruptCommit(name=name, reason=f"its checksum holds, its fields do not: {error}") from error


def _refer(run: Any) -> Any:
    assert isinstance(run, TxnRun)
    return run.reference()


def _referred(kind: type, reference: Any) -> Any:
    assert kind is TxnRun
    return TxnRun.referred(reference)


def timestamp_text(now: float) -> str:
    """Seconds since 1970 as the commit's `timestamp`, in milliseconds."""
    text = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def timestamp_ms(text: str) -> int:
    """The inverse of `timestamp_text`, in milliseconds."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)

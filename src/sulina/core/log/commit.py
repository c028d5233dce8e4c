"""Commit and checkpoint files: their fields and their bytes.

A commit is one line of JSON. Its last field is the CRC32C of all bytes before it, so a damaged file is recognized
before any of it is used. Its first field is its format (`core.formats`). Unknown fields are ignored, so a newer writer
of the same format does not stop an older reader. Offset ranges are half-open.

A checkpoint may be compressed: then its file is that line as gzip. Readers tell by the first bytes, not by a setting.
"""

import re
import zlib
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import msgspec
from crc32c import crc32c
from msgspec import Meta

from sulina.core.formats import CHECKPOINT, COMMIT
from sulina.core.log.txn_run import TxnRef, TxnRun
from sulina.errors import CorruptCommit
from sulina.types import Epoch, Offset, Version

NO_ORIGIN = -1  # a batch without a producer id, as in the record batch format
CHECKPOINT_EVERY = 10  # versions
LAST_CHECKPOINT = "_last_checkpoint"

_COMMIT_NAME = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT_NAME = re.compile(r"([0-9]{20})\.checkpoint\.json")
_CRC_FIELD = b',"crc":'
_GZIP_MAGIC = b"\x1f\x8b"  # no JSON begins like this
_GZIP_WINDOW = 31  # zlib's number for a gzip header and trailer
DECOMPRESSED_BYTES_MAX = 1 << 30  # a checkpoint of millions of segments and origins is smaller


class CommitOperation(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """One operation of a commit."""


class Add(CommitOperation, frozen=True, kw_only=True, tag="add"):
    """Whole batches of one origin, end to end in one segment."""

    origin_id: Annotated[int, Meta(description="The producer id of the batches; -1: they have no producer id.")]
    origin_seq: Annotated[int, Meta(description="The producer's sequence number of the first record.")]
    offset_start: Annotated[Offset, Meta(description="The offset of the first record.")]
    offset_end: Annotated[Offset, Meta(description="One past the offset of the last record.")]
    segment: Annotated[str, Meta(description="The segment file.")]
    position: Annotated[int, Meta(description="Where the batches begin in the file.")]
    size: Annotated[int, Meta(description="The size of the batches in bytes.")]
    timestamp_max: Annotated[int, Meta(description="The newest timestamp of the records.")]
    origin_epoch: Annotated[int, Meta(description="The epoch of the producer; -1: they have no producer id.")] = (
        NO_ORIGIN
    )
    txn_id: Annotated[str | None, Meta(description="The publisher's `txn_id`.")] = None
    # In an archive an add is a slice of the log: batches of any origins, and the commits that made them.
    object: Annotated[str | None, Meta(description="In an archive: the object that holds the slice.")] = None
    version_start: Annotated[
        Version, Meta(description="In an archive: the first version whose commit is in the slice.")
    ] = Version(0)
    version_end: Annotated[
        Version, Meta(description="In an archive: one past the last version whose commit is in the slice.")
    ] = Version(0)
    epoch: Annotated[Epoch, Meta(description="In an archive: the epoch of the owner that wrote the batches.")] = Epoch(
        -1
    )
    data_crc: Annotated[int, Meta(description="In an archive: the CRC32C of the batches.")] = 0
    commits_size: Annotated[int, Meta(description="In an archive: the size of the slice's commits in bytes.")] = 0
    state: Annotated[
        str | None, Meta(description="In an archive: the object with the state of the log at the end of the slice.")
    ] = None


class Remove(CommitOperation, frozen=True, kw_only=True, tag="remove"):
    """Removes the oldest segment from the log."""

    segment: Annotated[str, Meta(description="The segment file.")]
    offset_start: Annotated[Offset, Meta(description="The offset of its first record.")]
    offset_end: Annotated[Offset, Meta(description="One past the offset of its last record.")]
    size: Annotated[int, Meta(description="Its size in bytes.")]
    object: Annotated[str | None, Meta(description="In an archive: the object that held the slice.")] = None


class Claim(CommitOperation, frozen=True, kw_only=True, tag="claim"):
    """Makes a broker the owner: owners with a lower epoch may not write any more."""

    epoch: Annotated[Epoch, Meta(description="The epoch of the new owner.")]
    broker_id: Annotated[str, Meta(description="The new owner.")]
    holder: Annotated[str | None, Meta(description="In an archive: the data directory of the new owner.")] = None


class Seal(CommitOperation, frozen=True, kw_only=True, tag="seal"):
    """Seals the newest segment: the next batch begins another one."""

    segment: Annotated[str, Meta(description="The segment file.")]
    offset_end: Annotated[Offset, Meta(description="One past the offset of its last record.")]
    size: Annotated[int, Meta(description="Its size in bytes.")]


class Merge(CommitOperation, frozen=True, kw_only=True, tag="merge"):
    """Merges adjacent slices of an archive into one. The records and commits stay the same."""

    first: Annotated[str, Meta(description="The object of the first slice.")]
    count: Annotated[int, Meta(description="The number of slices that were merged.")]
    object: Annotated[str, Meta(description="The object that holds all of them.")]
    data_crc: Annotated[int, Meta(description="The CRC32C of its batches.")]
    size: Annotated[int, Meta(description="The size of its batches in bytes.")]
    commits_size: Annotated[int, Meta(description="The size of its commits in bytes.")]


AnyOperation = Add | Remove | Claim | Seal | Merge


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """One atomic log entry."""

    version: Annotated[Version, Meta(description="The number of the commit.")]
    timestamp: Annotated[str, Meta(description="When the commit was written.")]
    txn_id: Annotated[str, Meta(description="The id of the commit.")]
    operations: Annotated[tuple[AnyOperation, ...], Meta(description="What the commit did, in order.")]
    checkpoint_hint: Annotated[bool, Meta(description="Whether a checkpoint follows it.")]
    epoch: Annotated[Epoch, Meta(description="The epoch of the owner that wrote it.")]
    start_offset: Annotated[Offset, Meta(description="The offset of the oldest record after the commit.")]
    next_offset: Annotated[Offset, Meta(description="One past the offset of the newest record after the commit.")]
    log_ms: Annotated[
        int,
        Meta(
            description="The log's own time in milliseconds, as its owners measured it; 0 in commits from "
            "before it was measured."
        ),
    ] = 0


class SegmentRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A segment as recorded in the commit log; bytes past `size` are not part of the log."""

    name: str
    base: Offset  # inclusive
    next_offset: Offset  # exclusive
    size: int
    epoch: Epoch  # of every batch in it
    created_ms: int  # by the clock of the commit's writer, as is the next
    written_ms: int
    timestamp_max: int  # by the clocks of the producers
    sealed: bool = False
    # Fields of a slice in an archive, as in its add:
    object: str | None = None
    version_start: Version = Version(0)
    version_end: Version = Version(0)
    data_crc: int = 0
    commits_size: int = 0
    state: str | None = None


class SequenceRun(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive sequences of an origin, and the offsets that they got."""

    sequence: int
    offset_start: Offset
    offset_end: Offset
    version: Version


class OriginRef(msgspec.Struct, frozen=True, kw_only=True):
    """The newest sequence of an origin, with its newest runs so that a repeated batch gets its first answer."""

    origin_id: int
    epoch: int
    last_seq: int
    runs: tuple[SequenceRun, ...]
    log_ms: int = 0  # the log's own time when its newest record was appended


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole state of a log at a version: recovery reads no commit up to that version."""

    version: Version
    timestamp: str
    last_offset: int  # -1 when the log never had a record
    start_offset: Offset
    next_offset: Offset
    epoch: Epoch
    segments: tuple[SegmentRef, ...]
    origins: tuple[OriginRef, ...]
    txns: tuple[TxnRef, ...]  # the newest; older ones are in runs
    log_version: Version = Version(-1)  # archive only: the last version of the log that it has
    holder: str | None = None  # archive only: the directory named by the newest claim
    claimer: str | None = None  # archive only: the broker that made the newest claim
    txn_runs: tuple[TxnRun, ...] = ()  # each in a file of its own, which is named here; oldest first
    log_ms: int = 0
    newest_ms: int = 0  # of all commits up to it, by the clocks of their writers


class LastCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A hint at the newest checkpoint. It may be missing, stale or torn."""

    version: Version


Stored = TypeVar("Stored", Commit, Checkpoint, LastCheckpoint)


def offset_before(commit: Commit) -> Offset:
    """Return the end of the log before a commit: the first record that it added, if any, has this offset."""
    return next((one.offset_start for one in commit.operations if isinstance(one, Add)), commit.next_offset)


def commit_name(version: int) -> str:
    """Return the file name of a commit. Names sort by version."""
    return f"{version:020d}.json"


def checkpoint_name(version: int) -> str:
    """Return the file name of a checkpoint; it sorts before the commit of the same version."""
    return f"{version:020d}.checkpoint.json"


def commit_version(name: str) -> Version | None:
    """Return the version of a commit file; None for any other file."""
    found = _COMMIT_NAME.fullmatch(name)
    return Version(int(found[1])) if found is not None else None


def checkpoint_version(name: str) -> Version | None:
    """Return the version of a checkpoint file; None for any other file."""
    found = _CHECKPOINT_NAME.fullmatch(name)
    return Version(int(found[1])) if found is not None else None


def encode(entry: Commit | Checkpoint | LastCheckpoint, *, compress: bool = False) -> bytes:
    """Encode a file: one line of JSON that ends in its own checksum, as gzip if `compress`."""
    family = COMMIT if type(entry) is Commit else CHECKPOINT
    body = family.stamp(msgspec.json.encode(entry, enc_hook=_refer))[:-1]
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
    """Decode a file that `encode` wrote, compressed or not.

    Raises:
        CorruptCommit: it is damaged, or not of this kind.
        NewerFormat: a newer version of Sulina wrote it; this is said only of what its checksum holds over.
    """
    if data.startswith(_GZIP_MAGIC):
        data = _decompress(name, data)
    body, found, crc = data.rpartition(_CRC_FIELD)
    if not found or crc != b"%d}\n" % crc32c(body):
        raise CorruptCommit(name=name, reason=f"its checksum does not hold over {len(data)} bytes")
    try:
        return (COMMIT if kind is Commit else CHECKPOINT).decode(body + b"}", kind, name, _referred)
    except msgspec.MsgspecError as error:
        raise CorruptCommit(name=name, reason=f"its checksum holds, its fields do not: {error}") from error


def _refer(run: Any) -> Any:
    assert isinstance(run, TxnRun)
    return run.reference()


def _referred(kind: type, reference: Any) -> Any:
    assert kind is TxnRun
    return TxnRun.referred(reference)


def timestamp_text(now: float) -> str:
    """Format seconds since 1970 as a commit's `timestamp`, in milliseconds."""
    text = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def timestamp_ms(text: str) -> int:
    """Parse a commit's `timestamp` into milliseconds since 1970."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)

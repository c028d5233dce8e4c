"""Everything that Sulina raises on purpose.

```
SulinaError
├── InvalidInput                    the caller's fault; nothing was written
│   ├── InvalidName                 a namespace, topic or partition name outside the rules
│   ├── InvalidBatch                a record batch that is not what its header says
│   │   ├── CorruptBatch            its CRC32C does not hold
│   │   └── UnknownCodec            a compression that the format does not know
│   ├── BatchTooLarge               more bytes than the limit, as sent
│   └── DecompressedTooLarge        more bytes than the limit, once decompressed
├── Conflict                        somebody else was first; nothing was written
│   ├── VersionConflict             another commit took the version           (retry)
│   ├── StaleEpoch                  a newer owner exists
│   ├── StaleOrigin                 a newer instance of this producer exists
│   ├── SequenceGap                 a producer's earlier batch is missing
│   └── DuplicateSequence           written long ago; its offsets are no longer known
├── NotAvailable                    the log does not have it
│   ├── NotYet                      the offset or version is not there yet    (retry)
│   ├── OffsetOutOfRange            before the first retained offset, or past the end
│   └── VersionNotRetained          its commit has been cleaned up
├── QueueFull                       too much is waiting to be committed       (retry)
├── LogClosed                       the log was closed
├── LogLocked                       another process is writing this directory
├── LogStopped                      a write failed; reopen after repair
└── Corrupt                         stored bytes are not what was written
    ├── CorruptSegment
    ├── CorruptCommit
    └── CorruptLog                  commits are missing and no checkpoint covers them
```
`retryable` says whether the same call can succeed later without a change.
"""

from typing import ClassVar


class SulinaError(Exception):
    """The root of the tree."""

    retryable: ClassVar[bool] = False


class InvalidInput(SulinaError):
    """The caller's fault; nothing was written."""


class InvalidName(InvalidInput):
    """A name outside the rules."""

    def __init__(self, *, kind: str, name: str, pattern: str) -> None:
        super().__init__(f"{kind} name {name!r} is not valid: it must match {pattern}")
        self.kind, self.name, self.pattern = kind, name, pattern


class InvalidBatch(InvalidInput):
    """A record batch that is not what its header says."""


class CorruptBatch(InvalidBatch):
    """A record batch whose checksum does not hold."""

    def __init__(self, *, stored: int, computed: int) -> None:
        super().__init__(f"record batch has CRC32C {computed:#010x}, its header says {stored:#010x}")
        self.stored, self.computed = stored, computed


class UnknownCodec(InvalidBatch):
    """A compression that the format does not know."""

    def __init__(self, *, codec: int) -> None:
        super().__init__(f"compression codec {codec} is unknown: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd")
        self.codec = codec


class BatchTooLarge(InvalidInput):
    """More bytes than the limit, as sent."""

    def __init__(self, *, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"record batch of {size_bytes} bytes is over the limit of {limit_bytes}")
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes


class DecompressedTooLarge(InvalidInput):
    """More bytes than the limit, once decompressed. Decompression stopped at the limit."""

    def __init__(self, *, limit_bytes: int) -> None:
        super().__init__(f"record batch decompresses to more than the limit of {limit_bytes} bytes")
        self.limit_bytes = limit_bytes


class Conflict(SulinaError):
    """Somebody else was first; nothing was written."""


class VersionConflict(Conflict):
    """Another commit took the version. Read again, then retry with the new version."""

    retryable = True

    def __init__(self, *, expected: int, current: int) -> None:
        super().__init__(f"expected version {expected}, but the log is at {current}")
        self.expected, self.current = expected, current


class StaleEpoch(Conflict):
    """A newer owner exists; nothing was written."""

    def __init__(self, *, ours: int, current: int) -> None:
        super().__init__(f"epoch {ours} is fenced by {current}")
        self.ours, self.current = ours, current


class StaleOrigin(Conflict):
    """A newer instance of this producer exists."""

    def __init__(self, *, origin_id: int, ours: int, current: int) -> None:
        super().__init__(f"producer {origin_id} with epoch {ours} is fenced by epoch {current}")
        self.origin_id, self.ours, self.current = origin_id, ours, current


class SequenceGap(Conflict):
    """A producer's earlier batch is missing: accepting this one would reorder its records."""

    def __init__(self, *, origin_id: int, sequence: int, expected: int) -> None:
        super().__init__(f"producer {origin_id} sent sequence {sequence}, expected {expected}")
        self.origin_id, self.sequence, self.expected = origin_id, sequence, expected


class DuplicateSequence(Conflict):
    """The batch was written long ago; its offsets are no longer known."""

    def __init__(self, *, origin_id: int, sequence: int, last: int) -> None:
        super().__init__(f"producer {origin_id} repeats sequence {sequence}; the log is at {last}")
        self.origin_id, self.sequence, self.last = origin_id, sequence, last


class NotAvailable(SulinaError):
    """The log does not have it."""


class NotYet(NotAvailable):
    """The offset or version is not there yet."""

    retryable = True


class OffsetOutOfRange(NotAvailable):
    """Before the first retained offset, or past the end."""

    def __init__(self, *, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is outside [{start}, {end})")
        self.offset, self.start, self.end = offset, start, end


class VersionNotRetained(NotAvailable):
    """The commit of this version has been cleaned up, or never was."""

    def __init__(self, *, version: int, oldest: int, current: int) -> None:
        super().__init__(f"version {version} is not retained; versions {oldest} to {current} are")
        self.version, self.oldest, self.current = version, oldest, current


class QueueFull(SulinaError):
    """Too much is waiting to be committed."""

    retryable = True

    def __init__(self, *, waiting_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"{waiting_bytes} bytes wait to be committed, the limit is {limit_bytes}")
        self.waiting_bytes, self.limit_bytes = waiting_bytes, limit_bytes


class LogClosed(SulinaError):
    """The log was closed."""

    def __init__(self, *, path: str) -> None:
        super().__init__(f"the log in {path} is closed")
        self.path = path


class LogLocked(SulinaError):
    """Another process is writing this directory."""

    def __init__(self, *, path: str) -> None:
        super().__init__(f"{path} is being written by another process; a partition has one writer")
        self.path = path


class LogStopped(SulinaError):
    """A write failed, so what is on disk is unknown until the log is opened again.

    Nothing that was acknowledged is affected. What was waiting has an unknown outcome: retry it with the same
    txn_id or origin after reopening.
    """

    def __init__(self, *, path: str, cause: BaseException) -> None:
        super().__init__(f"the log in {path} stopped: {cause}; repair the cause, then open it again")
        self.path, self.cause = path, cause
        self.__cause__ = cause


class Corrupt(SulinaError):
    """Stored bytes are not what was written. They are never served."""


class CorruptSegment(Corrupt):
    """A stored batch fails its checksum, its offset or its epoch."""

    def __init__(self, *, path: str, position: int, offset: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at byte {position} (offset {offset}): {reason}")
        self.path, self.position, self.offset, self.reason = path, position, offset, reason


class CorruptCommit(Corrupt):
    """A commit or checkpoint file fails its checksum or the rules of the log."""

    def __init__(self, *, name: str, reason: str) -> None:
        super().__init__(f"{name} is damaged: {reason}")
        self.name, self.reason = name, reason


class CorruptLog(Corrupt):
    """Commits are missing and no valid checkpoint covers them. The log does not open: it never restarts at 0."""

    def __init__(self, *, path: str, reason: str) -> None:
        super().__init__(f"the commit log in {path} cannot be rebuilt: {reason}")
        self.path, self.reason = path, reason

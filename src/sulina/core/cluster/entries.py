"""Entries of the metadata store about brokers, and about which broker owns which partition.

- A partition has at most one assignment. Every change of owner raises its epoch, in one transaction that compares the
  epoch before. Epochs start at `FIRST_EPOCH` for each topic id: archives, stamps of directories and clients' caches
  belong to one topic id, never to the next topic of the same name.
- `is_archived` means that everything acknowledged is in the archive: then any broker may become the owner. An owner
  clears it before it acknowledges records that only its own disk has.
"""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

ALONE_EPOCH = 1  # of a node that is not in a cluster
FIRST_EPOCH = 2  # of a partition in a cluster: batches have 31 bits, so they are counted, not taken from a clock


class Registration(Struct, frozen=True, kw_only=True):
    """A broker of the cluster; deleted with its lease."""

    broker_id: str
    url: str  # where clients and other brokers reach it
    store_id: str  # of its data directory; a broker with a new disk has another one
    started_ms: int
    software: str = "0"
    is_leaving: bool = False  # it is stopping: it gives its partitions back, and gets no more
    peer: str = ""  # host:port for connections of other brokers; empty: it accepts none


class Leader(Struct, frozen=True, kw_only=True):
    """The broker that assigns partitions; deleted with its lease."""

    broker_id: str


class BrokerMode(StrEnum):
    """Whether a broker gets partitions. A draining one gives its own away."""

    ACTIVE = "active"
    DRAINING = "draining"


class BrokerState(Struct, frozen=True, kw_only=True):
    """The mode that an operator has set for a broker; outlives the broker. No entry means active."""

    state: BrokerMode = BrokerMode.ACTIVE


class LoadReport(Struct, frozen=True, kw_only=True):
    """The load of a broker; written regularly, and at once when it acquired or released a partition."""

    broker_id: str
    at_ms: int
    partitions: int
    topics: int
    connections: int
    consumers: int
    published_bytes_per_second: float = 0.0
    delivered_bytes_per_second: float = 0.0
    clock_ahead_seconds: float = 0.0  # by its own reckoning; 0: about right


class RememberedTime(Struct, frozen=True, kw_only=True):
    """The newest time that has been shown (`core.cluster.shown_time`), so that it outlives the brokers."""

    shown_ms: int


class Assignment(Struct, frozen=True, kw_only=True):
    """The broker in the key owns the partition in the key. Its revision fences what the owner writes."""

    epoch: int
    since_ms: int


class EpochEntry(Struct, frozen=True, kw_only=True):
    """The newest epoch of a partition and its owner; outlives the assignment."""

    epoch: int
    broker_id: str
    store_id: str
    is_archived: bool  # everything acknowledged is in the archive
    in_sync: list[str] = []
    topic_id: str | None = None  # None: written by an older release, or by a leader that had not heard of the topic


class Reason(StrEnum):
    """Why a partition has no owner."""

    CREATED = "created"
    UNLOADED = "unloaded"
    STOPPED = "stopped"  # its broker was stopped
    DEAD = "dead"  # the lease of its broker expired
    FORCED = "forced"  # an operator gave up the records that only a dead broker has


class Unassigned(Struct, frozen=True, kw_only=True):
    """A partition that waits for an owner."""

    reason: Reason
    since_ms: int
    from_broker: str | None = None
    from_store: str | None = None
    to: str | None = None  # the broker that should get it, if it is registered
    is_recovering: bool = False  # only `from_broker`, with `from_store`, may get it
    only_there: tuple[int, int] | None = None  # offsets that only that broker has, as last reported; None: unknown
    topic_id: str | None = None  # of a partition that never had an owner; others have it in their epoch entry


class UnloadStep(StrEnum):
    """Steps of an unload; each can be repeated."""

    REQUESTED = "requested"
    QUIESCED = "quiesced"  # publishes are refused
    PAUSED = "paused"  # consumers are sent nothing more, their cursors are durable
    SEALED = "sealed"  # everything is archived, and the sealed state is written
    UNASSIGNED = "unassigned"  # the assignment is gone; shown, never stored


class MoveEnd(StrEnum):
    """How a move ends: the last step that clients show; never stored."""

    MOVED = "moved"  # another broker serves the partition, or the same one under a higher epoch
    REFUSED = "refused"  # its owner keeps it
    RECOVERING = "recovering"  # its owner died, and alone has what is not archived


class UnloadRequest(Struct, frozen=True, kw_only=True):
    """A request to unload a partition from its owner, kept until that is done; it outlives restarts of the owner."""

    unload_id: str
    force: bool
    requested_ms: int
    requested_by: str
    to: str | None = None
    give_up: bool = False  # unload though records that were reported are missing
    step: UnloadStep = UnloadStep.REQUESTED
    error: str | None = None  # of the last attempt


class Sealed(Struct, frozen=True, kw_only=True):
    """Where the next owner goes on after an unload. The archive is the truth; this entry is checked against it."""

    state: Literal["sealed"] = "sealed"
    last_committed_offset: int  # -1: there never was a record
    next_offset: int
    version: int
    epoch: int
    broker_id: str
    ts: str


class DeleteMark(Struct, frozen=True, kw_only=True):
    """The topic with the id in the key was deleted on purpose: its data may be removed from disks."""

    topic: str
    at_ms: int


class GivenUp(Struct, frozen=True, kw_only=True):
    """Offsets that an operator gave up: acknowledged records at these offsets are lost."""

    start: int
    end: int | None  # None: the end of the log on the lost disk, which is unknown
    reason: str
    at_ms: int


class Current(Struct, frozen=True, kw_only=True):
    """The ends of the archive and the log of a partition, as their owner last reported them."""

    archived_offset: int
    end_offset: int
    epoch: int
    at_ms: int
    object: str | None = None  # the newest object
    topic_id: str | None = None  # None: written by an older release


class ObjectEntry(Struct, frozen=True, kw_only=True):
    """A slice of the archive in the index."""

    object: str
    offset_end: int
    size_bytes: int
    epoch: int

"""What brokers share about each other and about who owns what, as the metadata store has it.

- A partition has at most one assignment. Every change of owner raises its epoch, in one transaction that compares the
  one before. They start at `FIRST_EPOCH` for each topic id: what an epoch is compared with (an archive, a directory's
  stamp, a client's memory of who serves what) belongs to one topic id, never to the next topic of that name.
- `is_archived` says that everything acknowledged is in the archive: then anybody may take the partition over. An owner
  that is about to acknowledge what only its own disk has says so first.
"""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

ALONE_EPOCH = 1  # of a node that has no others beside it
FIRST_EPOCH = 2  # of a partition in a cluster: batches have 31 bits, so they are counted, not taken from a clock


class Registration(Struct, frozen=True, kw_only=True):
    """A broker that is there; goes with its lease."""

    broker_id: str
    url: str  # where clients and other brokers reach it
    store_id: str  # of its data directory: a broker that lost its disk is another one
    started_ms: int
    software: str = "0"
    is_leaving: bool = False  # it gives back what it has, and takes nothing more
    peer: str = ""  # host:port for frames of other brokers; none: it takes none


class Leader(Struct, frozen=True, kw_only=True):
    """The broker that assigns; goes with its lease."""

    broker_id: str


class BrokerMode(StrEnum):
    """Whether a broker is given partitions. A draining one gives away those that it has."""

    ACTIVE = "active"
    DRAINING = "draining"


class BrokerState(Struct, frozen=True, kw_only=True):
    """What an operator wants of a broker; outlives it. No entry means active."""

    state: BrokerMode = BrokerMode.ACTIVE


class LoadReport(Struct, frozen=True, kw_only=True):
    """How much a broker has to do; written now and then, and at once when it gained or lost a partition."""

    broker_id: str
    at_ms: int
    partitions: int
    topics: int
    connections: int
    consumers: int
    published_bytes_per_second: float = 0.0
    delivered_bytes_per_second: float = 0.0
    clock_ahead_seconds: float = 0.0  # as it knows itself; 0: about right


class RememberedTime(Struct, frozen=True, kw_only=True):
    """The newest time that has been shown (`core.cluster.shown_time`), so that it outlives the brokers."""

    shown_ms: int


class Assignment(Struct, frozen=True, kw_only=True):
    """The broker in the key owns the partition in the key. Its revision fences what the owner writes."""

    epoch: int
    since_ms: int


class EpochEntry(Struct, frozen=True, kw_only=True):
    """The newest owner of a partition; outlives the ownership."""

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
    STOPPED = "stopped"  # its broker left in good order
    DEAD = "dead"  # its broker's lease ran out
    FORCED = "forced"  # an operator gave up what only a dead broker has


class Unassigned(Struct, frozen=True, kw_only=True):
    """A partition that waits for an owner."""

    reason: Reason
    since_ms: int
    from_broker: str | None = None
    from_store: str | None = None
    to: str | None = None  # who is to have it, if that one is there
    is_recovering: bool = False  # only `from_broker`, with that store, may have it
    only_there: tuple[int, int] | None = None  # the offsets that only that one has, as it last reported; None: unknown
    topic_id: str | None = None  # of a partition that never had an owner; later ones have it in their epoch


class UnloadStep(StrEnum):
    """How far an unload has come; each step may be done again."""

    REQUESTED = "requested"
    QUIESCED = "quiesced"  # nothing more is taken
    PAUSED = "paused"  # consumers are let go, their cursors are durable
    SEALED = "sealed"  # everything is in the archive, and the sealed state says so
    UNASSIGNED = "unassigned"  # the assignment is gone; shown, never stored


class UnloadRequest(Struct, frozen=True, kw_only=True):
    """The wish that a partition leaves its owner, until it has. The owner carries it out, also after a restart."""

    unload_id: str
    force: bool
    requested_ms: int
    requested_by: str
    to: str | None = None
    give_up: bool = False  # go on without records that were reported and are missing
    step: UnloadStep = UnloadStep.REQUESTED
    error: str | None = None  # of the last attempt


class Sealed(Struct, frozen=True, kw_only=True):
    """An owner has let go in good order: this is where the next one goes on. The archive decides; this is a witness."""

    state: Literal["sealed"] = "sealed"
    last_committed_offset: int  # -1: it never had a record
    next_offset: int
    version: int
    epoch: int
    broker_id: str
    ts: str


class DeleteMark(Struct, frozen=True, kw_only=True):
    """A topic, by its id in the key, was deleted on purpose: disks may remove what they have of it."""

    topic: str
    at_ms: int


class GivenUp(Struct, frozen=True, kw_only=True):
    """Offsets that an operator gave up: records under them that were acknowledged before are lost."""

    start: int
    end: int | None  # None: as far as the lost disk had come, which nobody knows
    reason: str
    at_ms: int


class Current(Struct, frozen=True, kw_only=True):
    """How far the archive and the log of a partition had come when their owner last said so."""

    archived_offset: int
    end_offset: int
    epoch: int
    at_ms: int
    object: str | None = None  # the newest
    topic_id: str | None = None  # None: written by an older release


class ObjectEntry(Struct, frozen=True, kw_only=True):
    """A slice of the archive, in the index."""

    object: str
    offset_end: int
    size_bytes: int
    epoch: int

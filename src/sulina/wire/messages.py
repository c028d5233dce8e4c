"""What a node says about its topics and subscriptions: the same shapes in JSON, in frames and in Python."""

from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct

from sulina.core.delivery.members import SubscriptionKind
from sulina.core.delivery.readers import ExpiresSeconds, Natural, Text
from sulina.core.topic import PARTITIONS_OF_A_TOPIC_MAX, Ack, Policy, TopicSettings

Name = Annotated[str, Meta(max_length=500)]


class TopicState(StrEnum):
    """Whether a partition takes records."""

    ACTIVE = "active"
    DRAINING = "draining"
    CLOSED = "closed"
    RECOVERING = "recovering"  # waits for the broker that alone has all of it


class Published(Struct, frozen=True, kw_only=True):
    """Where the records of one publish went. A `memory` ack knows neither offset nor version."""

    partition: int
    base_offset: int | None
    count: int
    version: int | None
    ack: Ack


class NamespaceInfo(Struct, frozen=True, kw_only=True):
    """A namespace, and what its topics inherit."""

    namespace: str
    policy: Policy
    topics: int


class SegmentInfo(Struct, frozen=True, kw_only=True):
    """One file of a log."""

    name: str
    start_offset: int
    end_offset: int
    size_bytes: int
    is_sealed: bool


class PartitionInfo(Struct, frozen=True, kw_only=True):
    """A partition as its log has it now."""

    topic: str
    partition: int
    state: TopicState
    epoch: int
    version: int
    start_offset: int
    end_offset: int
    size_bytes: int
    segments: list[SegmentInfo]
    error: str | None = None  # why it takes no records
    archived_offset: int | None = None  # everything before it is in the archive; None: there is none
    is_stale: bool = False  # another broker may have more: the reader has asked for what is here all the same


class TopicInfo(Struct, frozen=True, kw_only=True):
    """A topic with its settings as they were given, and its policy as it works."""

    topic: str
    settings: TopicSettings
    policy: Policy
    schema_id: str
    topic_id: str  # no other topic's, also not of one of the same name
    state: TopicState
    subscriptions: list[str]


class TopicPage(Struct, frozen=True, kw_only=True):
    """Some topics in the order of their names; `next` is what to list after, None at the end."""

    topics: list[TopicInfo]
    next: str | None


class SubscriptionSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a subscription is created with; `start` counts only then."""

    kind: SubscriptionKind = SubscriptionKind.EXCLUSIVE
    start: Name = "latest"


class Subscribed(Struct, frozen=True, kw_only=True):
    """A consumer is attached. Where the topic is not reliable, there is nothing to ack."""

    is_reliable: bool


class JoinedTopic(Struct, frozen=True, kw_only=True):
    """A subscriber is attached. Where the topic is not reliable, there are no positions, and nothing comes twice."""

    is_reliable: bool
    positions: dict[int, int]  # the offset that it is sent first, by partition
    epochs: dict[int, int] = {}  # of the logs in which these are


class CursorInfo(Struct, frozen=True, kw_only=True):
    """How far a subscription has come in one partition."""

    partition: int
    offset: int  # everything before it is acked
    acked: list[tuple[int, int]]  # beyond it, half-open; the first thousand
    end_offset: int
    lag: int  # records that are not acked
    in_flight: int  # records that consumers have and have not acked


class SubscriptionInfo(Struct, frozen=True, kw_only=True):
    """A subscription, its consumers and its cursors."""

    topic: str
    subscription: str
    kind: SubscriptionKind
    start: str
    consumers: list[str]
    cursors: list[CursorInfo]
    lag: int


ReaderPositions = Annotated[
    dict[Annotated[int, Meta(ge=0, lt=PARTITIONS_OF_A_TOPIC_MAX)], Natural],
    Meta(min_length=1, max_length=PARTITIONS_OF_A_TOPIC_MAX),
]


ReaderEpochs = Annotated[
    dict[Annotated[int, Meta(ge=0, lt=PARTITIONS_OF_A_TOPIC_MAX)], Natural],
    Meta(max_length=PARTITIONS_OF_A_TOPIC_MAX),
]


class ReaderSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a reader is now, by partition. What else is absent stays as it was."""

    positions: ReaderPositions = {}  # the next offset that it needs
    expires_seconds: ExpiresSeconds | None = None
    kind: Text | None = None
    description: Text | None = None
    force: bool = False  # go back
    epochs: ReaderEpochs = {}  # in which everything before these positions was read, where it is known


class ReaderPositionInfo(Struct, frozen=True, kw_only=True):
    """Where a registered reader is in one partition. None: the broker that answers does not know."""

    partition: int
    offset: int  # of the next record that it needs
    updated_ms: int
    start_offset: int | None = None
    end_offset: int | None = None
    lag: int | None = None  # records from `offset` to the end


class ReaderInfo(Struct, frozen=True, kw_only=True):
    """A registered reader of a topic: retention keeps what it needs, until it expires."""

    reader: str
    topic: str
    kind: str
    description: str
    expires_seconds: float
    updated_ms: int  # when it was last heard of
    is_expired: bool
    positions: list[ReaderPositionInfo]
    lag: int | None  # None: that of some partition is not known


class ReaderPage(Struct, frozen=True, kw_only=True):
    """Some readers in the order of their names; `next` is what to list after, None at the end."""

    readers: list[ReaderInfo]
    next: str | None


class ProducerInfo(Struct, frozen=True, kw_only=True):
    """A producer of a topic, and the broker that it is connected to."""

    producer: str
    broker_id: str
    since_ms: int  # when it first published there
    is_connected: bool  # False: that broker is gone, and the producer has not come back elsewhere


class Fetched(Struct, frozen=True, kw_only=True):
    """Whole batches as they are stored; the first may begin before the offset that was asked for."""

    data: memoryview
    offset: int  # that was asked for: records before it are to be passed over
    next_offset: int
    version: int
    end_offset: int
    epoch: int = -1  # of the log that answers: who reads on at `next_offset` says it
    is_stale: bool = False  # another broker may have more: the reader has asked for what is here all the same


class Trouble(Struct, frozen=True, kw_only=True):
    """Something on a node that is not as it should be: the code of an error, or a `TroubleKind`."""

    kind: str
    what: str  # in words, without what to do
    topic: str | None = None
    partition: int | None = None


class TroubleKind(StrEnum):
    """What is wrong on a node, where no error says it."""

    NOT_SERVING = "not_serving"  # the node starts or stops
    CUT_OFF = "cut_off"  # it does not reach the metadata store
    REPLACED = "replaced"  # another process has a copy of its data directory
    NOT_SERVED = "not_served"  # a partition that is assigned to it
    DISK_FULL = "disk_full"  # a log takes no records because its disk has no room
    LOG_STOPPED = "log_stopped"  # a log takes no records because of another fault of its disk
    CONSUMER_LATE = "consumer_late"  # it has let its time to ack pass
    DIRECTORY_ORPHANED = "directory_orphaned"  # its topic vanished without a delete mark
    DIRECTORY_SET_ASIDE = "directory_set_aside"  # it was overtaken, and has records of its own


class NodeInfo(Struct, frozen=True, kw_only=True):
    """The node that answers."""

    broker_id: str
    version: str
    is_ready: bool
    topics: int
    connections: int
    uptime_seconds: float
    objects: str | None = None  # where the archives of the cluster are, for whoever may read them there
    objects_endpoint: str | None = None  # None: the cloud's own
    store_id: str | None = None  # of its data directory; None: it is not part of a cluster
    disk_bytes: int | None = None  # of the file system with the data directory
    disk_free_bytes: int | None = None
    troubles: list[Trouble] = []  # the first of each kind
    trouble_counts: dict[str, int] = {}  # by kind, all of them


# Publish/subscribe


class PubSubMetrics(Struct, frozen=True, kw_only=True):
    """What became of messages, and of whom they were for, as the node that answers has seen it since its start."""

    topic: str | None = None  # None: all of them
    accepted: int = 0
    rejected: dict[str, int] = {}  # by reason
    delivered: int = 0
    failed: dict[str, int] = {}  # deliveries to subscribers, by status
    batches: dict[str, int] = {}  # sent to nodes, by the status of their reports
    redelivered: int = 0
    queued: int = 0  # that wait for a node at this moment
    dropped: int = 0
    missed: int = 0  # by subscribers that were suspended
    active: int = 0  # subscribers
    suspended: int = 0


class PubSubEvent(Struct, frozen=True, kw_only=True):
    """One thing that happened on the node: one of `PubSubEventType`, or any other."""

    at: float  # seconds since 1970
    type: str
    topic: str | None = None
    fields: dict[str, Any] = {}


# The cluster


class PartitionPlacement(Struct, frozen=True, kw_only=True):
    """Where a partition is served."""

    partition: int
    state: TopicState  # closed: it waits for an owner
    epoch: int = -1
    broker_id: str | None = None
    url: str | None = None  # None with a broker: the node that answers, which has no other name
    waits_for: str | None = None  # the broker that alone has all of it


class Placement(Struct, frozen=True, kw_only=True):
    """Where the partitions of a topic are served, and whom to ask when that has changed."""

    topic: str
    topic_id: str
    partitions: list[PartitionPlacement]
    brokers: list[str]  # the URLs of all that are there


class BrokerInfo(Struct, frozen=True, kw_only=True):
    """A broker of the cluster."""

    broker_id: str
    url: str | None
    state: str  # active, draining, unreachable
    is_leader: bool
    partitions: int
    topics: int
    connections: int
    published_bytes_per_second: float
    uptime_seconds: float | None
    clock_ahead_seconds: float = 0.0  # of the time that retention goes by; negative: behind the others; 0: about right


class UnloadInfo(Struct, frozen=True, kw_only=True):
    """An unload that is under way, or how it ended."""

    topic: str
    partition: int
    step: str  # requested, quiesced, paused, sealed, unassigned, then moved
    from_broker: str | None
    to_broker: str | None
    error: str | None = None
    given_up: tuple[int, int] | None = None  # the offsets that only the lost broker had, as it last reported them
    reported_seconds: float | None = None  # how long ago it did; what it acknowledged since is given up too
    lease_seconds: float | None = None  # how long it may have gone on after it was last heard of
    since_seconds: float | None = None  # how long ago it was asked for


class WaitingPartition(Struct, frozen=True, kw_only=True):
    """A partition that has no owner."""

    topic: str
    partition: int
    since_seconds: float
    waits_for: str | None = None  # the broker that alone has all of it


class MetadataInfo(Struct, frozen=True, kw_only=True):
    """How much room the metadata store has, as it last said; null where it does not say."""

    is_full: bool  # it takes no more writes: nothing fails over
    size_bytes: int | None = None
    used_bytes: int | None = None
    quota_bytes: int | None = None


class ClusterInfo(Struct, frozen=True, kw_only=True):
    """The cluster as one broker sees it."""

    brokers: list[BrokerInfo]
    leader: str | None
    topics: int
    partitions: int
    unassigned: int
    recovering: int
    unloads: list[UnloadInfo]
    metadata: MetadataInfo | None = None  # before the broker has asked for the first time
    is_stale: bool = False  # that broker has lost touch with the metadata store: so it was when it last heard
    waiting: list[WaitingPartition] = []  # partitions without an owner: the first hundred


class Rebalanced(Struct, frozen=True, kw_only=True):
    """What a rebalance has asked for."""

    moves: list[UnloadInfo]

"""What a node says about its topics and subscriptions: the same shapes in JSON, in frames and in Python."""

from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct

from sulina.core.delivery.members import SubscriptionKind
from sulina.core.delivery.pubsub import SubscriberInfo
from sulina.core.delivery.readers import ExpiresSeconds, Natural, Text
from sulina.core.log.commit import Commit
from sulina.core.topic import PARTITIONS_OF_A_TOPIC_MAX, Ack, Policy, TopicSettings

Name = Annotated[str, Meta(max_length=500)]
POSITION_PATTERN = (
    r"^(earliest|latest|(offset|version|timestamp):(0|[1-9][0-9]{0,17})"
    r"|offset:(0|[1-9][0-9]{0,17})@(0|[1-9][0-9]{0,17})"
    r"|timestamp:(19[7-9]|2[0-9]{2})[0-9]-[0-9T:.+Z-]+)$"
)
PARTITION_PATTERN = r"^(0|[1-9][0-9]{0,2}|10[01][0-9]|102[0-3])$"  # a partition as a name in a JSON object
# What a position looks like, for schemas only: `Position.parse` decides.
PositionText = Annotated[Name, Meta(extra_json_schema={"pattern": POSITION_PATTERN})]


class TopicState(StrEnum):
    """Whether a partition takes records."""

    ACTIVE = "active"
    DRAINING = "draining"
    CLOSED = "closed"
    RECOVERING = "recovering"  # waits for the broker that alone has all of it


class Published(Struct, frozen=True, kw_only=True):
    """Where the records of one publish went. A `memory` ack knows neither offset nor version."""

    partition: Annotated[int, Meta(description="The partition that the records went to.")]
    base_offset: Annotated[
        int | None, Meta(description="The offset of the first record; the others follow without a gap.")
    ]
    count: Annotated[int, Meta(description="How many records were appended.")]
    version: Annotated[int | None, Meta(description="The commit that made them visible, all at once.")]
    ack: Annotated[Ack, Meta(description="What has happened to them: `local` means durable on the owner's disk.")]


class NamespaceInfo(Struct, frozen=True, kw_only=True):
    """A namespace, and what its topics inherit."""

    namespace: Annotated[str, Meta(description="The namespace.")]
    policy: Annotated[Policy, Meta(description="The policy that its topics inherit.")]
    topics: Annotated[int, Meta(description="The number of its topics.")]


class NamespaceList(Struct, frozen=True, kw_only=True):
    """All namespaces."""

    namespaces: Annotated[list[NamespaceInfo], Meta(description="The namespaces, by name.")]


class SegmentInfo(Struct, frozen=True, kw_only=True):
    """One file of a log."""

    name: Annotated[str, Meta(description="The file's name.")]
    start_offset: Annotated[int, Meta(description="The offset of its first record.")]
    end_offset: Annotated[int, Meta(description="One past the offset of its last record.")]
    size_bytes: Annotated[int, Meta(description="The size of its committed bytes.")]
    is_sealed: Annotated[bool, Meta(description="Whether the segment is sealed: it does not change any more.")]


class PartitionInfo(Struct, frozen=True, kw_only=True):
    """A partition as its log has it now."""

    topic: Annotated[str, Meta(description="The topic, `/namespace/topic`.")]
    partition: Annotated[int, Meta(description="The number of the partition.")]
    state: Annotated[TopicState, Meta(description="Whether the partition takes records.")]
    epoch: Annotated[int, Meta(description="The owner's epoch; every change of owner raises it.")]
    version: Annotated[int, Meta(description="The version of its newest commit.")]
    start_offset: Annotated[int, Meta(description="The offset of the oldest retained record.")]
    end_offset: Annotated[int, Meta(description="One past the offset of the newest record.")]
    size_bytes: Annotated[int, Meta(description="The size of all its segments.")]
    segments: Annotated[list[SegmentInfo], Meta(description="Its segment files.")]
    error: Annotated[str | None, Meta(description="Why the partition takes no records; null if it does.")] = None
    archived_offset: Annotated[
        int | None, Meta(description="Everything before this offset is in the archive; null: there is no archive.")
    ] = None
    is_stale: Annotated[
        bool, Meta(description="Whether another broker may have more. Only if `stale` was asked for.")
    ] = False


class TopicInfo(Struct, frozen=True, kw_only=True):
    """A topic with its settings as they were given, and its policy as it works."""

    topic: Annotated[str, Meta(description="The topic, `/namespace/topic`.")]
    settings: Annotated[TopicSettings, Meta(description="The settings as they were given.")]
    policy: Annotated[Policy, Meta(description="The policy in effect, with what the namespace and the system add.")]
    schema_id: Annotated[str, Meta(description="The id of the schema; equal for equal schemas.")]
    topic_id: Annotated[
        str, Meta(description="A unique id. A topic that is deleted and created again has another one.")
    ]
    state: Annotated[TopicState, Meta(description="Whether the topic takes records.")]
    subscriptions: Annotated[list[str], Meta(description="The names of its subscriptions.")]


class TopicPage(Struct, frozen=True, kw_only=True):
    """Some topics in the order of their names; `next` is what to list after, None at the end."""

    topics: Annotated[list[TopicInfo], Meta(description="The topics, by name.")]
    next: Annotated[str | None, Meta(description="The `after` of the next page; null at the end.")]


class CommitPage(Struct, frozen=True, kw_only=True):
    """Some commits of a partition; the next page begins at `next_version`."""

    commits: Annotated[list[Commit], Meta(description="The commits, by version.")]
    next_version: Annotated[int, Meta(description="The first version of the next page.")]


class SubscriptionSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a subscription is created with; `start` counts only then."""

    mode: Annotated[SubscriptionKind, Meta(description="Which of its consumers gets a record.")] = (
        SubscriptionKind.EXCLUSIVE
    )
    start: Annotated[
        PositionText,
        Meta(
            description="Where a new subscription begins: `earliest`, `latest`, `offset:N`, `version:N`, "
            "`timestamp:MS` or `timestamp:ISO`."
        ),
    ] = "latest"


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

    partition: Annotated[int, Meta(description="The number of the partition.")]
    offset: Annotated[int, Meta(description="Everything before this offset is acked.")]
    acked: Annotated[
        list[tuple[int, int]], Meta(description="Acked ranges `[start, end)` beyond `offset`; the first thousand.")
    ]
    end_offset: Annotated[int, Meta(description="One past the offset of the newest record.")]
    lag: Annotated[int, Meta(description="The number of records that are not acked.")]
    in_flight: Annotated[int, Meta(description="The number of records that are delivered and not acked.")]


class SubscriptionInfo(Struct, frozen=True, kw_only=True):
    """A subscription, its consumers and its cursors."""

    topic: Annotated[str, Meta(description="The topic, `/namespace/topic`.")]
    subscription: Annotated[str, Meta(description="The name of the subscription.")]
    mode: Annotated[SubscriptionKind, Meta(description="Which of its consumers gets a record.")]
    start: Annotated[str, Meta(description="The position at which it began.")]
    consumers: Annotated[list[str], Meta(description="The consumers that are attached now.")]
    cursors: Annotated[list[CursorInfo], Meta(description="Its cursors, by partition.")]
    lag: Annotated[int, Meta(description="The number of records that are not acked, in all partitions.")]


class SubscriptionList(Struct, frozen=True, kw_only=True):
    """The subscriptions of a topic."""

    subscriptions: Annotated[list[SubscriptionInfo], Meta(description="The subscriptions, by name.")]


ReaderPositions = Annotated[
    dict[Annotated[int, Meta(ge=0, lt=PARTITIONS_OF_A_TOPIC_MAX)], Natural],
    Meta(
        min_length=1,
        max_length=PARTITIONS_OF_A_TOPIC_MAX,
        extra_json_schema={"propertyNames": {"pattern": PARTITION_PATTERN}},
    ),
]


ReaderEpochs = Annotated[
    dict[Annotated[int, Meta(ge=0, lt=PARTITIONS_OF_A_TOPIC_MAX)], Natural],
    Meta(max_length=PARTITIONS_OF_A_TOPIC_MAX, extra_json_schema={"propertyNames": {"pattern": PARTITION_PATTERN}}),
]


class ReaderSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a reader is now, by partition. What else is absent stays as it was."""

    positions: Annotated[
        ReaderPositions,
        Meta(
            description="By partition: the next offset that the reader needs. Partitions that are not named "
            "keep their position."
        ),
    ]
    expires_seconds: Annotated[
        ExpiresSeconds | None,
        Meta(description="The reader expires when it has not registered for this long. Default: 7 days."),
    ] = None
    kind: Annotated[Text | None, Meta(description="What the reader is, for example `spark`.")] = None
    description: Annotated[Text | None, Meta(description="What the reader is for.")] = None
    force: Annotated[bool, Meta(description="Whether positions may go back, to read records again.")] = False
    epochs: Annotated[
        ReaderEpochs,
        Meta(
            description="By partition: the `epoch` of the answer in which everything before the position was "
            "read. If some of that is given up, retention keeps what follows, and the reader may go "
            "back to there."
        ),
    ] = {}


class ReaderPositionInfo(Struct, frozen=True, kw_only=True):
    """Where a registered reader is in one partition. None: the broker that answers does not know."""

    partition: Annotated[int, Meta(description="The number of the partition.")]
    offset: Annotated[int, Meta(description="The next offset that it needs: retention keeps everything from there on.")]
    updated_ms: Annotated[int, Meta(description="When it registered this position, in milliseconds since 1970, UTC.")]
    start_offset: Annotated[
        int | None, Meta(description="The offset of the oldest retained record; null: only another broker knows it.")
    ] = None
    end_offset: Annotated[
        int | None, Meta(description="One past the offset of the newest record; null: only another broker knows it.")
    ] = None
    lag: Annotated[
        int | None,
        Meta(description="The number of records from `offset` to the end; null: only another broker knows it."),
    ] = None


class ReaderInfo(Struct, frozen=True, kw_only=True):
    """A registered reader of a topic: retention keeps what it needs, until it expires."""

    reader: Annotated[str, Meta(description="The name of the reader.")]
    topic: Annotated[str, Meta(description="The topic, `/namespace/topic`.")]
    kind: Annotated[str, Meta(description="What the reader is, as it registered.")]
    description: Annotated[str, Meta(description="What the reader is for, as it registered.")]
    expires_seconds: Annotated[float, Meta(description="The reader expires when it has not registered for this long.")]
    updated_ms: Annotated[int, Meta(description="When it last registered, in milliseconds since 1970, UTC.")]
    is_expired: Annotated[
        bool, Meta(description="Whether it has expired: retention ignores it, and a day later it is deleted.")
    ]
    positions: Annotated[list[ReaderPositionInfo], Meta(description="Its positions, by partition.")]
    lag: Annotated[
        int | None,
        Meta(description="The number of records that it has not read; null where that of a partition is not known."),
    ]


class ReaderPage(Struct, frozen=True, kw_only=True):
    """Some readers in the order of their names; `next` is what to list after, None at the end."""

    readers: Annotated[list[ReaderInfo], Meta(description="The readers, by name.")]
    next: Annotated[str | None, Meta(description="The `after` of the next page; null at the end.")]


class ProducerInfo(Struct, frozen=True, kw_only=True):
    """A producer of a topic, and the broker that it is connected to."""

    producer: Annotated[str, Meta(description="The name of the client, or of its batching producer.")]
    broker_id: Annotated[str, Meta(description="The broker that it is connected to.")]
    since_ms: Annotated[int, Meta(description="When it first published there, in milliseconds since 1970.")]
    is_connected: Annotated[
        bool, Meta(description="False: that broker is gone, and the producer has not connected to another.")
    ]


class ProducerList(Struct, frozen=True, kw_only=True):
    """The producers of a topic, at all brokers."""

    producers: Annotated[list[ProducerInfo], Meta(description="The producers, by name, then by broker.")]


class SubscriberList(Struct, frozen=True, kw_only=True):
    """The subscribers of the partitions that the broker serves."""

    subscribers: Annotated[list[SubscriberInfo], Meta(description="The subscribers, by partition, then by node.")]


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

    kind: Annotated[
        str,
        Meta(
            description="The code of an error, such as `log_incomplete`, or `not_serving`, `cut_off`, "
            "`replaced`, `not_served`, `disk_full`, `log_stopped`, `consumer_late`, "
            "`directory_orphaned`, `directory_set_aside`."
        ),
    ]
    what: Annotated[str, Meta(description="What was found, in words.")]
    topic: Annotated[
        str | None, Meta(description="The topic, `/namespace/topic`; null: the trouble is the node's.")
    ] = None
    partition: Annotated[int | None, Meta(description="The number of the partition; null: all of them.")] = None


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

    broker_id: Annotated[str, Meta(description="The name of the broker.")]
    version: Annotated[str, Meta(description="The version of Sulina that it runs.")]
    is_ready: Annotated[bool, Meta(description="Whether it serves.")]
    topics: Annotated[int, Meta(description="The number of its topics.")]
    connections: Annotated[int, Meta(description="The number of open sessions.")]
    uptime_seconds: Annotated[float, Meta(description="The seconds since it started.")]
    objects: Annotated[
        str | None, Meta(description="The URL of the object store with the archives; null: there is no object store.")
    ] = None
    objects_endpoint: Annotated[
        str | None, Meta(description="The endpoint of that object store; null: the cloud's own.")
    ] = None
    store_id: Annotated[
        str | None, Meta(description="The id of its data directory; null: the node is not part of a cluster.")
    ] = None
    disk_bytes: Annotated[int | None, Meta(description="The size of the file system with the data directory.")] = None
    disk_free_bytes: Annotated[int | None, Meta(description="The free bytes of that file system.")] = None
    troubles: Annotated[
        list[Trouble], Meta(description="The troubles of this node: the first twenty of each kind.")
    ] = []
    trouble_counts: Annotated[dict[str, int], Meta(description="The number of troubles, by kind.")] = {}


# Publish/subscribe


class PubSubMetrics(Struct, frozen=True, kw_only=True):
    """What became of messages, and of whom they were for, as the node that answers has seen it since its start."""

    topic: Annotated[str | None, Meta(description="The topic, `/namespace/topic`; null: all topics.")] = None
    accepted: Annotated[int, Meta(description="Messages that were accepted.")] = 0
    rejected: Annotated[dict[str, int], Meta(description="Publishes that were rejected, by reason.")] = {}
    delivered: Annotated[
        int, Meta(description="Messages that subscribers acked: one message for two subscribers counts twice.")
    ] = 0
    failed: Annotated[dict[str, int], Meta(description="Deliveries to subscribers that failed, by status.")] = {}
    batches: Annotated[
        dict[str, int], Meta(description="Batches that were sent to nodes, by the status of their reports.")
    ] = {}
    redelivered: Annotated[int, Meta(description="Messages that were sent again.")] = 0
    queued: Annotated[int, Meta(description="Batches that wait for a node now.")] = 0
    dropped: Annotated[int, Meta(description="Messages dropped because their node was out of reach.")] = 0
    missed: Annotated[int, Meta(description="Messages that suspended subscribers missed.")] = 0
    active: Annotated[int, Meta(description="Subscribers that are active now.")] = 0
    suspended: Annotated[int, Meta(description="Subscribers that are suspended now.")] = 0


class PubSubEvent(Struct, frozen=True, kw_only=True):
    """One thing that happened on the node: one of `PubSubEventType`, or any other."""

    at: float  # seconds since 1970
    type: str
    topic: str | None = None
    fields: dict[str, Any] = {}


# The cluster


class PartitionPlacement(Struct, frozen=True, kw_only=True):
    """Where a partition is served."""

    partition: Annotated[int, Meta(description="The number of the partition.")]
    state: Annotated[
        TopicState,
        Meta(
            description="`active` takes records, `draining` is leaving, `closed` waits for an owner, "
            "`recovering` waits for the broker that alone has all of it."
        ),
    ]
    epoch: Annotated[
        int, Meta(description="The owner's epoch; every change of owner raises it. -1: it never had an owner.")
    ] = -1
    broker_id: Annotated[str | None, Meta(description="The owner; null: it has no owner now.")] = None
    url: Annotated[str | None, Meta(description="The owner's URL; null: the node that answers, or no owner.")] = None
    waits_for: Annotated[str | None, Meta(description="The broker that is away and alone has all of its records.")] = (
        None
    )


class Placement(Struct, frozen=True, kw_only=True):
    """Where the partitions of a topic are served, and whom to ask when that has changed."""

    topic: Annotated[str, Meta(description="The topic, `/namespace/topic`.")]
    topic_id: Annotated[
        str, Meta(description="A unique id. A topic that is deleted and created again has another one.")
    ]
    partitions: Annotated[list[PartitionPlacement], Meta(description="The partitions, by number.")]
    brokers: Annotated[list[str], Meta(description="The URLs of all brokers: ask one of them when an owner is gone.")]


class BrokerInfo(Struct, frozen=True, kw_only=True):
    """A broker of the cluster."""

    broker_id: Annotated[str, Meta(description="The name of the broker.")]
    url: Annotated[str | None, Meta(description="The broker's URL; null while it is not known.")]
    state: Annotated[str, Meta(description="`active`, `draining`, or `unreachable`: its lease has run out.")]
    is_leader: Annotated[bool, Meta(description="Whether it is the leader, which assigns partitions.")]
    partitions: Annotated[int, Meta(description="The number of partitions that it owns.")]
    topics: Annotated[int, Meta(description="The number of topics with partitions that it owns.")]
    connections: Annotated[int, Meta(description="The number of open sessions, as it last reported.")]
    published_bytes_per_second: Annotated[float, Meta(description="The rate of published bytes, as it last reported.")]
    uptime_seconds: Annotated[float | None, Meta(description="The seconds since it started; null while it is away.")]
    clock_ahead_seconds: Annotated[
        float, Meta(description="How far its clock is ahead of the others; negative: behind them; 0: about right.")
    ] = 0.0


class BrokerList(Struct, frozen=True, kw_only=True):
    """All brokers of the cluster."""

    brokers: Annotated[list[BrokerInfo], Meta(description="The brokers, by name.")]


class UnloadInfo(Struct, frozen=True, kw_only=True):
    """An unload that is under way, or how it ended."""

    topic: Annotated[str, Meta(description="The topic, `/namespace/topic`.")]
    partition: Annotated[int, Meta(description="The number of the partition.")]
    step: Annotated[
        str,
        Meta(
            description="The step that was reached: `requested`, `quiesced`, `paused`, `sealed`, `unassigned`, `moved`."
        ),
    ]
    from_broker: Annotated[str | None, Meta(description="The owner that the partition leaves.")]
    to_broker: Annotated[
        str | None, Meta(description="The next owner; null: the leader picks the least loaded broker.")
    ]
    error: Annotated[str | None, Meta(description="Why the last attempt failed; it is tried again.")] = None
    given_up: Annotated[
        tuple[int, int] | None,
        Meta(description="The offsets `[start, end)` that only the lost broker had, as it last reported them."),
    ] = None
    reported_seconds: Annotated[
        float | None,
        Meta(
            description="The seconds since the lost broker reported them; what it acknowledged since is given up too."
        ),
    ] = None
    lease_seconds: Annotated[
        float | None, Meta(description="How long the lost broker may have gone on acknowledging after its last report.")
    ] = None
    since_seconds: Annotated[float | None, Meta(description="The seconds since the move was requested.")] = None


class MoveList(Struct, frozen=True, kw_only=True):
    """Moves of a topic's partitions."""

    moves: Annotated[list[UnloadInfo], Meta(description="The moves, by partition.")]


class WaitingPartition(Struct, frozen=True, kw_only=True):
    """A partition that has no owner."""

    topic: Annotated[str, Meta(description="The topic, `/namespace/topic`.")]
    partition: Annotated[int, Meta(description="The number of the partition.")]
    since_seconds: Annotated[float, Meta(description="The seconds that it has had no owner.")]
    waits_for: Annotated[
        str | None, Meta(description="The broker that alone has all of its records; null: any broker may own it.")
    ] = None


class MetadataInfo(Struct, frozen=True, kw_only=True):
    """How much room the metadata store has, as it last said; null where it does not say."""

    is_full: Annotated[
        bool, Meta(description="Whether its quota is used up: it takes no writes then, and nothing fails over.")
    ]
    size_bytes: Annotated[
        int | None, Meta(description="Its size on disk, free pages included; null where it does not report it.")
    ] = None
    used_bytes: Annotated[
        int | None, Meta(description="Its size without free pages; null where it does not report it.")
    ] = None
    quota_bytes: Annotated[
        int | None,
        Meta(description="The size at which it is full; null where it does not report it, as etcd before 3.6."),
    ] = None


class ClusterInfo(Struct, frozen=True, kw_only=True):
    """The cluster as one broker sees it."""

    brokers: Annotated[list[BrokerInfo], Meta(description="The brokers, by name.")]
    leader: Annotated[
        str | None, Meta(description="The broker that assigns partitions; null while no broker is elected.")
    ]
    topics: Annotated[int, Meta(description="The number of topics.")]
    partitions: Annotated[int, Meta(description="The number of partitions of all topics.")]
    unassigned: Annotated[int, Meta(description="The number of partitions without an owner.")]
    recovering: Annotated[
        int, Meta(description="The number of those that wait for the broker that alone has all of their records.")
    ]
    unloads: Annotated[list[UnloadInfo], Meta(description="The moves that are under way.")]
    metadata: Annotated[
        MetadataInfo | None, Meta(description="The room in the metadata store; null before the broker has asked it.")
    ] = None
    is_stale: Annotated[
        bool,
        Meta(
            description="Whether the broker that answers has lost touch with the metadata store, and reports "
            "what it last knew."
        ),
    ] = False
    waiting: Annotated[
        list[WaitingPartition], Meta(description="The partitions without an owner, by name: the first hundred.")
    ] = []


class Rebalanced(Struct, frozen=True, kw_only=True):
    """What a rebalance has asked for."""

    moves: Annotated[
        list[UnloadInfo], Meta(description="The moves that were requested; empty when there is nothing to gain.")
    ]

"""The table of operations: what can be asked of a broker, on every surface under the same name.

Session calls, HTTP routes, the OpenAPI document and the client's methods are derived from it. The fields of an
operation's arguments are the arguments of the call, and over HTTP the parts of the path, the query or the body.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Generic, ParamSpec, TypeVar, get_type_hints

import msgspec
from msgspec import Meta, Struct

from sulina.core.log.position import Position
from sulina.core.topic import Policy, TopicSettings
from sulina.errors import (
    AlreadyExists,
    BrokerNotFound,
    Conflict,
    CursorMoved,
    InvalidSettings,
    LimitReached,
    NamespaceNotEmpty,
    NamespaceNotFound,
    NotOwner,
    NotReliable,
    NotServing,
    OffsetOutOfRange,
    OwnersNotReached,
    PartitionNotFound,
    ReaderAhead,
    ReaderNotFound,
    SchemaConflict,
    SubscriptionBusy,
    SubscriptionNotFound,
    SulinaError,
    TopicNotFound,
    VersionNotRetained,
)
from sulina.types import NAME_PATTERN, NAMESPACE_PATTERN, PARTITIONS_MAX, TopicName
from sulina.wire.messages import (
    BrokerInfo,
    BrokerList,
    ClusterInfo,
    CommitPage,
    MoveList,
    NamespaceInfo,
    NamespaceList,
    NodeInfo,
    PartitionInfo,
    Placement,
    PositionText,
    ProducerList,
    PubSubMetrics,
    ReaderInfo,
    ReaderPage,
    ReaderSettings,
    Rebalanced,
    SubscriberList,
    SubscriptionInfo,
    SubscriptionList,
    SubscriptionSettings,
    TopicInfo,
    TopicPage,
)

COMMITS_MAX = 1000  # in one page
COMMITS_DEFAULT = 100  # the newest, unless asked otherwise
TOPICS_MAX = 1000  # in one page
READERS_MAX = 1000  # in one page
NUMBER_MAX = 2**63 - 1

P = ParamSpec("P")
R = TypeVar("R")


class Server(StrEnum):
    """Which broker answers an operation."""

    ANY_BROKER = "any broker"
    OWNER = "the owner of the partition"
    OWNERS = "every owner of the topic's partitions, for those that it owns"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HttpRoute:
    """How an operation is asked for over HTTP."""

    method: str
    path: str  # its placeholders are fields of the arguments; {namespace}/{topic} is the field `topic`
    tag: str
    answer: str  # what a success means
    status: int = 200
    created: str | None = None  # what status 201 means, where the operation can create something
    body: str | None = None  # the field that is the whole body; None: the fields that are not in the path
    example: Any = None  # an answer
    body_example: Any = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation(Generic[P, R]):
    """One thing that a broker can be asked to do, or to tell."""

    name: str
    arguments: Callable[P, Struct]  # a type of Struct
    result: type[R]
    summary: str
    description: str
    server: Server = Server.ANY_BROKER
    changes: bool = False  # a change is not repeated once it was sent: its outcome is not known
    errors: tuple[type[SulinaError], ...] = ()
    route: HttpRoute | None = None  # None: over sessions only

    @property
    def shape(self) -> type[Struct]:
        """Return the type of the arguments."""
        assert isinstance(self.arguments, type)
        return self.arguments

    @property
    def has_topic(self) -> bool:
        """Return whether the operation is about one topic."""
        return "topic" in self.shape.__struct_fields__


@cache
def field_types(shape: type[Struct]) -> dict[str, Any]:
    """Return the types of a Struct's fields, with their limits and texts."""
    hints = get_type_hints(shape, include_extras=True)
    return {name: hints[name] for name in shape.__struct_fields__}


@cache
def body_type(operation: "Operation[..., Any]") -> type[Struct] | None:
    """Return the type of the body over HTTP; None: the operation takes no body."""
    route = operation.route
    if route is None or route.method not in ("PUT", "POST"):
        return None
    if route.body is not None:
        kind: type[Struct] = field_types(operation.shape)[route.body]
        return kind
    fields: list[Any] = []
    for field in msgspec.structs.fields(operation.shape):
        if f"{{{field.name}}}" not in route.path:
            kind_of = field_types(operation.shape)[field.name]
            fields.append((field.name, kind_of) if field.required else (field.name, kind_of, field.default))
    if not fields:
        return None
    name = operation.shape.__name__.removesuffix("Request") + "Body"
    namespace = {"__doc__": operation.summary + "."}
    return msgspec.defstruct(name, fields, namespace=namespace, kw_only=True, forbid_unknown_fields=True)


# Types of arguments. Patterns are for schemas only: names are checked where they are used, with errors that say more.

if TYPE_CHECKING:
    Topic = str | TopicName  # sent as text
    At = str | Position  # sent as text
else:
    Topic = Annotated[str, Meta(max_length=500, description="The topic, `/namespace/topic`.")]
    At = PositionText

Namespace = Annotated[
    str,
    Meta(
        max_length=500,
        description="The namespace. `default` always exists.",
        examples=["examples"],
        extra_json_schema={"pattern": f"^{NAMESPACE_PATTERN}$", "maxLength": 200},
    ),
]
_NAME_SCHEMA = {"pattern": f"^{NAME_PATTERN}$", "maxLength": 200}
Subscription = Annotated[
    str,
    Meta(max_length=500, description="The subscription.", examples=["billing"], extra_json_schema=_NAME_SCHEMA),
]
Reader = Annotated[
    str,
    Meta(max_length=500, description="The name of the reader.", examples=["nightly"], extra_json_schema=_NAME_SCHEMA),
]
Broker = Annotated[
    str,
    Meta(
        max_length=500,
        description="The name of the broker.",
        examples=["example-broker"],
        extra_json_schema=_NAME_SCHEMA,
    ),
]
Partition = Annotated[int, Meta(ge=0, le=PARTITIONS_MAX - 1, description="The number of the partition.", examples=[0])]
Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Force = Annotated[bool, Meta(description="Whether to detach consumers that are attached.")]
After = Annotated[
    Annotated[str, Meta(max_length=500)] | None,
    Meta(description="List what comes after this: the `next` of the page before."),
]


class NoArguments(Struct, forbid_unknown_fields=True):
    """The arguments of operations that take none."""


class NamespaceRequest(Struct, forbid_unknown_fields=True):
    """A namespace."""

    namespace: Namespace


class CreateNamespaceRequest(Struct, forbid_unknown_fields=True):
    """A namespace to create or change."""

    namespace: Namespace
    policy: Policy = Policy()


class TopicRequest(Struct, forbid_unknown_fields=True):
    """A topic."""

    topic: Topic


class CreateTopicRequest(Struct, forbid_unknown_fields=True):
    """A topic to create or change."""

    topic: Topic
    settings: TopicSettings = TopicSettings()


class TopicsRequest(Struct, forbid_unknown_fields=True):
    """A page of topics."""

    namespace: Annotated[Namespace | None, Meta(description="Only topics of this namespace.")] = None
    after: After = None
    limit: Annotated[int, Meta(ge=1, le=TOPICS_MAX, description="The largest number of topics in the page.")] = 100


class DeleteTopicRequest(TopicRequest, kw_only=True, forbid_unknown_fields=True):
    """A topic to delete."""

    force: Force = False


class PartitionRequest(Struct, forbid_unknown_fields=True):
    """A partition of a topic."""

    topic: Topic
    partition: Partition = 0


class PartitionInfoRequest(PartitionRequest, kw_only=True, forbid_unknown_fields=True):
    """A partition to show."""

    stale: Annotated[
        bool,
        Meta(description="Answer with what this broker has, even if another may own the partition now and have more."),
    ] = False


class CommitsRequest(PartitionRequest, kw_only=True, forbid_unknown_fields=True):
    """A range of versions."""

    start: Annotated[
        Number | None, Meta(description=f"The first version. Absent: {COMMITS_DEFAULT} versions before `end`.")
    ] = None
    end: Annotated[
        Number | None,
        Meta(description=f"One past the last version; at most {COMMITS_MAX} are read. Absent: the newest."),
    ] = None


class LocateRequest(Struct, forbid_unknown_fields=True):
    """A position in a partition."""

    topic: Topic
    position: At
    partition: Partition = 0


class SubscriptionRequest(Struct, forbid_unknown_fields=True):
    """A subscription of a topic."""

    topic: Topic
    subscription: Subscription


class CreateSubscriptionRequest(SubscriptionRequest, forbid_unknown_fields=True):
    """A subscription to create."""

    settings: SubscriptionSettings = SubscriptionSettings()


class DeleteSubscriptionRequest(SubscriptionRequest, kw_only=True, forbid_unknown_fields=True):
    """A subscription to delete."""

    force: Force = False


class SeekRequest(SubscriptionRequest, forbid_unknown_fields=True):
    """Where a subscription goes on."""

    position: Annotated[
        At,
        Meta(
            description="Where the subscription goes on: `earliest`, `latest`, `offset:N`, `version:N`, "
            "`timestamp:MS` or `timestamp:ISO`."
        ),
    ]
    partition: Annotated[Partition | None, Meta(description="The only partition to seek in. Absent: all.")] = None


class ReaderRequest(Struct, forbid_unknown_fields=True):
    """A registered reader of a topic."""

    reader: Reader
    topic: Topic


class RegisterReaderRequest(ReaderRequest, forbid_unknown_fields=True):
    """A reader with its positions."""

    settings: ReaderSettings


class ReadersRequest(Struct, forbid_unknown_fields=True):
    """A page of registered readers."""

    topic: Annotated[Topic | None, Meta(description="Only readers of this topic, `/namespace/topic`.")] = None
    after: After = None
    limit: Annotated[int, Meta(ge=1, le=READERS_MAX, description="The largest number of readers in the page.")] = 100


class PubSubMetricsRequest(Struct, forbid_unknown_fields=True):
    """Counts of one topic, or of all."""

    topic: Annotated[Topic | None, Meta(description="Only this topic, `/namespace/topic`.")] = None


class MoveTopicRequest(Struct, forbid_unknown_fields=True):
    """Partitions that are to change their owner."""

    topic: Topic
    to: Annotated[
        Broker | None, Meta(description="The next owner. Absent: the leader picks the least loaded broker.")
    ] = None
    partition: Annotated[Partition | None, Meta(description="The only partition to move. Absent: all.")] = None
    force: Annotated[
        bool,
        Meta(
            description="Whether to detach consumers that are attached. For a partition that is `recovering`: "
            "whether to give up records that only the lost broker has."
        ),
    ] = False
    give_up: Annotated[
        bool,
        Meta(
            description="Whether to go on without records that were reported and are missing (`log_incomplete`): "
            "they are lost for good."
        ),
    ] = False


class CancelMovesRequest(TopicRequest, kw_only=True, forbid_unknown_fields=True):
    """Moves to cancel."""

    partition: Annotated[Partition | None, Meta(description="Only this partition. Absent: all.")] = None


class BrokerRequest(Struct, forbid_unknown_fields=True):
    """A broker of the cluster."""

    broker_id: Broker


# Paths

TOPIC_PATH = "/v1/topics/{namespace}/{topic}"
PARTITION_PATH = f"{TOPIC_PATH}/partitions/{{partition}}"
_NAMESPACE_PATH = "/v1/namespaces/{namespace}"
_SUBSCRIPTION_PATH = f"{TOPIC_PATH}/subscriptions/{{subscription}}"
_READER_PATH = "/v1/readers/{reader}/{namespace}/{topic}"
_MOVES_PATH = f"{TOPIC_PATH}/moves"
_BROKER_PATH = "/v1/cluster/brokers/{broker_id}"
_IS_NEW = "It is new."
_EXISTED = "It existed."
_IS_GONE = "It is gone."

# Namespaces

NAMESPACES = Operation(
    name="namespaces",
    arguments=NoArguments,
    result=NamespaceList,
    summary="List namespaces",
    description="All namespaces, by name.",
    route=HttpRoute(method="GET", path="/v1/namespaces", tag="namespaces", answer="All namespaces."),
)
NAMESPACE = Operation(
    name="namespace",
    arguments=NamespaceRequest,
    result=NamespaceInfo,
    summary="Show a namespace",
    description="Its policy, and how many topics it has.",
    errors=(NamespaceNotFound,),
    route=HttpRoute(method="GET", path=_NAMESPACE_PATH, tag="namespaces", answer="The namespace."),
)
CREATE_NAMESPACE = Operation(
    name="create_namespace",
    arguments=CreateNamespaceRequest,
    result=NamespaceInfo,
    summary="Create or change a namespace",
    description="The body is its policy. Its topics follow at once, except in what their own policy sets.",
    changes=True,
    errors=(InvalidSettings, LimitReached),
    route=HttpRoute(
        method="PUT",
        path=_NAMESPACE_PATH,
        tag="namespaces",
        answer=_EXISTED,
        created=_IS_NEW,
        body="policy",
        body_example={"retention_seconds": 604800},
    ),
)
DELETE_NAMESPACE = Operation(
    name="delete_namespace",
    arguments=NamespaceRequest,
    result=type(None),
    summary="Delete a namespace",
    description="It must have no topics.",
    changes=True,
    errors=(NamespaceNotFound, NamespaceNotEmpty),
    route=HttpRoute(method="DELETE", path=_NAMESPACE_PATH, tag="namespaces", status=204, answer=_IS_GONE),
)

# Topics

TOPICS = Operation(
    name="topics",
    arguments=TopicsRequest,
    result=TopicPage,
    summary="List topics",
    description="By name, a page at a time.",
    errors=(NamespaceNotFound,),
    route=HttpRoute(method="GET", path="/v1/topics", tag="topics", answer="A page of topics."),
)
TOPIC = Operation(
    name="topic",
    arguments=TopicRequest,
    result=TopicInfo,
    summary="Show a topic",
    description="Its settings, and the policy in effect.",
    errors=(TopicNotFound,),
    route=HttpRoute(method="GET", path=TOPIC_PATH, tag="topics", answer="The topic."),
)
CREATE_TOPIC = Operation(
    name="create_topic",
    arguments=CreateTopicRequest,
    result=TopicInfo,
    summary="Create or change a topic",
    description="The number of partitions and the delivery cannot change later; the policy can change at any time, the "
    "schema while there is no data. The namespace must exist.",
    changes=True,
    errors=(
        AlreadyExists,
        SchemaConflict,
        InvalidSettings,
        NamespaceNotFound,
        LimitReached,
    ),
    route=HttpRoute(
        method="PUT",
        path=TOPIC_PATH,
        tag="topics",
        answer=_EXISTED,
        created=_IS_NEW,
        body="settings",
        body_example={
            "partitions": 3,
            "policy": {"retention_seconds": 604800},
            "schema": {"kind": "json", "definition": True},
        },
    ),
)
DELETE_TOPIC = Operation(
    name="delete_topic",
    arguments=DeleteTopicRequest,
    result=type(None),
    summary="Delete a topic",
    description="With all its records and subscriptions.",
    changes=True,
    errors=(TopicNotFound, SubscriptionBusy, OwnersNotReached, NotOwner),
    route=HttpRoute(method="DELETE", path=TOPIC_PATH, tag="topics", status=204, answer=_IS_GONE),
)
PARTITION = Operation(
    name="partition",
    arguments=PartitionInfoRequest,
    result=PartitionInfo,
    summary="Show a partition",
    description="Its offsets, its version and its segments.",
    server=Server.OWNER,
    errors=(TopicNotFound, PartitionNotFound),
    route=HttpRoute(method="GET", path=PARTITION_PATH, tag="topics", answer="The partition."),
)
COMMITS = Operation(
    name="commits",
    arguments=CommitsRequest,
    result=CommitPage,
    summary="Read the commit feed",
    description="What happened to the partition, commit by commit.",
    server=Server.OWNER,
    errors=(TopicNotFound, PartitionNotFound, VersionNotRetained),
    route=HttpRoute(method="GET", path=f"{PARTITION_PATH}/commits", tag="topics", answer="Commits, possibly none."),
)
LOCATE = Operation(
    name="locate",
    arguments=LocateRequest,
    result=int,
    summary="Return the offset that a position means now",
    description="Of one partition.",
    server=Server.OWNER,
    errors=(TopicNotFound, PartitionNotFound, VersionNotRetained),
)

# Subscriptions

SUBSCRIPTIONS = Operation(
    name="subscriptions",
    arguments=TopicRequest,
    result=SubscriptionList,
    summary="List the subscriptions of a topic",
    description="By name, with their lag.",
    server=Server.OWNERS,
    errors=(TopicNotFound,),
    route=HttpRoute(method="GET", path=f"{TOPIC_PATH}/subscriptions", tag="subscriptions", answer="The subscriptions."),
)
SUBSCRIPTION = Operation(
    name="subscription",
    arguments=SubscriptionRequest,
    result=SubscriptionInfo,
    summary="Show a subscription",
    description="Its kind, its consumers, cursors and lag.",
    server=Server.OWNERS,
    errors=(TopicNotFound, SubscriptionNotFound),
    route=HttpRoute(method="GET", path=_SUBSCRIPTION_PATH, tag="subscriptions", answer="The subscription."),
)
CREATE_SUBSCRIPTION = Operation(
    name="create_subscription",
    arguments=CreateSubscriptionRequest,
    result=SubscriptionInfo,
    summary="Create a subscription",
    description="With its cursors at `start`. One that exists with the same kind stays as it is.",
    server=Server.OWNERS,
    changes=True,
    errors=(TopicNotFound, AlreadyExists, NotReliable, OffsetOutOfRange),
    route=HttpRoute(
        method="PUT",
        path=_SUBSCRIPTION_PATH,
        tag="subscriptions",
        answer=_EXISTED,
        created=_IS_NEW,
        body="settings",
        body_example={"mode": "shared", "start": "earliest"},
    ),
)
DELETE_SUBSCRIPTION = Operation(
    name="delete_subscription",
    arguments=DeleteSubscriptionRequest,
    result=type(None),
    summary="Delete a subscription",
    description="With its cursors.",
    server=Server.OWNER,
    changes=True,
    errors=(TopicNotFound, SubscriptionNotFound, SubscriptionBusy, OwnersNotReached),
    route=HttpRoute(method="DELETE", path=_SUBSCRIPTION_PATH, tag="subscriptions", status=204, answer=_IS_GONE),
)
SEEK = Operation(
    name="seek",
    arguments=SeekRequest,
    result=SubscriptionInfo,
    summary="Move the cursors of a subscription",
    description="In one partition, or in all. Its consumers are detached and attach again by themselves.",
    server=Server.OWNERS,
    changes=True,
    errors=(TopicNotFound, SubscriptionNotFound, CursorMoved, OffsetOutOfRange),
    route=HttpRoute(
        method="POST",
        path=f"{_SUBSCRIPTION_PATH}/seek",
        tag="subscriptions",
        answer="The subscription, with its cursors there.",
        body_example={"position": "offset:0", "partition": 0},
    ),
)
CONSUMERS = Operation(
    name="consumers",
    arguments=PartitionRequest,
    result=dict[str, list[str]],
    summary="List the consumers that are attached at the owner of a partition, by subscription",
    description="Ids of consumers.",
    server=Server.OWNER,
    errors=(TopicNotFound, PartitionNotFound),
)

# Publish/subscribe

PRODUCERS = Operation(
    name="producers",
    arguments=TopicRequest,
    result=ProducerList,
    summary="List the producers of a topic",
    description="Those that publish over a session, by name, with the broker that each is connected to. One that "
    "publishes to several brokers is listed for each. Any broker answers.",
    errors=(TopicNotFound,),
    route=HttpRoute(
        method="GET",
        path=f"{TOPIC_PATH}/producers",
        tag="pubsub",
        answer="The producers.",
        example={
            "producers": [{"producer": "shop-1", "broker_id": "b1", "since_ms": 1767225600000, "is_connected": True}]
        },
    ),
)
SUBSCRIBERS = Operation(
    name="subscribers",
    arguments=TopicRequest,
    result=SubscriberList,
    summary="List the subscribers of a topic",
    description="Those of the partitions that the broker serves, each with its node and status. A subscriber of "
    "several partitions is listed for each.",
    server=Server.OWNERS,
    errors=(TopicNotFound,),
    route=HttpRoute(
        method="GET",
        path=f"{TOPIC_PATH}/subscribers",
        tag="pubsub",
        answer="The subscribers.",
        example={
            "subscribers": [
                {"node": "b1", "handle": 7, "name": "screen-3", "status": "active", "reason": "", "offset": 18}
            ]
        },
    ),
)
PUBSUB_METRICS = Operation(
    name="pubsub_metrics",
    arguments=PubSubMetricsRequest,
    result=PubSubMetrics,
    summary="Count what became of messages",
    description="Of one topic or of all, as the broker that answers has counted since its start.",
    errors=(TopicNotFound,),
    route=HttpRoute(
        method="GET",
        path="/v1/pubsub/metrics",
        tag="pubsub",
        answer="The counts.",
        example={
            "topic": "/examples/orders",
            "accepted": 18,
            "rejected": {"InvalidPayload": 1},
            "delivered": 36,
            "failed": {"Timeout": 2},
            "redelivered": 2,
            "queued": 0,
            "dropped": 0,
            "missed": 0,
            "active": 2,
            "suspended": 0,
        },
    ),
)

# Registered readers

READERS = Operation(
    name="readers",
    arguments=ReadersRequest,
    result=ReaderPage,
    summary="List registered readers",
    description="By name, a page at a time, with their lag as far as it is known.",
    errors=(TopicNotFound,),
    route=HttpRoute(method="GET", path="/v1/readers", tag="readers", answer="A page of readers."),
)
READER = Operation(
    name="reader",
    arguments=ReaderRequest,
    result=ReaderInfo,
    summary="Show a registered reader",
    description="Its positions, and its lag as far as the broker that answers knows it.",
    errors=(ReaderNotFound,),
    route=HttpRoute(method="GET", path=_READER_PATH, tag="readers", answer="The reader."),
)
REGISTER_READER = Operation(
    name="register_reader",
    arguments=RegisterReaderRequest,
    result=ReaderInfo,
    summary="Register a reader, or its new positions",
    description="Retention keeps everything from its positions on, until it has not registered for "
    "`expires_seconds`. Partitions that are not named keep their position. Positions go back only with `force`.",
    changes=True,
    errors=(
        TopicNotFound,
        PartitionNotFound,
        ReaderAhead,
        NotReliable,
        LimitReached,
    ),
    route=HttpRoute(
        method="PUT",
        path=_READER_PATH,
        tag="readers",
        answer="It was registered already.",
        created=_IS_NEW,
        body="settings",
        body_example={"positions": {"0": 17, "1": 4}, "expires_seconds": 86400, "description": "orders by day"},
    ),
)
DELETE_READER = Operation(
    name="delete_reader",
    arguments=ReaderRequest,
    result=type(None),
    summary="Delete a registered reader",
    description="Retention does not wait for it any more.",
    changes=True,
    errors=(ReaderNotFound,),
    route=HttpRoute(method="DELETE", path=_READER_PATH, tag="readers", status=204, answer=_IS_GONE),
)

# The cluster

PLACEMENT = Operation(
    name="placement",
    arguments=TopicRequest,
    result=Placement,
    summary="Look up the brokers that serve a topic",
    description="The owner of each partition, with its URL. A single node has no URL but the one that was asked.",
    errors=(TopicNotFound,),
    route=HttpRoute(method="GET", path=f"{TOPIC_PATH}/placement", tag="cluster", answer="The owners of the topic."),
)
MOVE_TOPIC = Operation(
    name="move_topic",
    arguments=MoveTopicRequest,
    result=MoveList,
    summary="Move a topic",
    description="Its partitions, or one of them, get a new owner: `to`, or the least loaded broker. Clients follow by "
    "themselves. Any broker can be asked. The answer lists the moves that have begun; `GET …/moves` their progress. "
    "With consumers attached it is refused (409) unless `force` is set. Forced for a partition that is `recovering`, "
    "with `to`, it gives up records that only the lost broker has: `given_up` lists their offsets.",
    changes=True,
    errors=(TopicNotFound, SubscriptionBusy, InvalidSettings),
    route=HttpRoute(
        method="POST",
        path=_MOVES_PATH,
        tag="cluster",
        status=202,
        answer="The moves have begun.",
        body_example={"to": "b2"},
    ),
)
MOVES = Operation(
    name="moves",
    arguments=TopicRequest,
    result=MoveList,
    summary="List the moves of a topic",
    description="Those under way; empty when all are done.",
    errors=(TopicNotFound,),
    route=HttpRoute(method="GET", path=_MOVES_PATH, tag="cluster", answer="The moves under way."),
)
CANCEL_MOVES = Operation(
    name="cancel_moves",
    arguments=CancelMovesRequest,
    result=MoveList,
    summary="Cancel the moves of a topic",
    description="Those not carried out yet: their partitions keep their owners.",
    changes=True,
    errors=(TopicNotFound,),
    route=HttpRoute(method="DELETE", path=_MOVES_PATH, tag="cluster", answer="The moves that were cancelled."),
)
CLUSTER = Operation(
    name="cluster",
    arguments=NoArguments,
    result=ClusterInfo,
    summary="Show the cluster",
    description="As the broker that answers sees it.",
    errors=(NotServing,),
    route=HttpRoute(method="GET", path="/v1/cluster", tag="cluster", answer="The cluster."),
)
BROKERS = Operation(
    name="brokers",
    arguments=NoArguments,
    result=BrokerList,
    summary="List the brokers",
    description="All brokers, by name.",
    errors=(NotServing,),
    route=HttpRoute(method="GET", path="/v1/cluster/brokers", tag="cluster", answer="All brokers."),
)
DRAIN_BROKER = Operation(
    name="drain_broker",
    arguments=BrokerRequest,
    result=BrokerInfo,
    summary="Drain a broker",
    description="It gets no more partitions, and its partitions move away, a few at a time. It stays drained, also "
    "after a restart, until it is activated.",
    changes=True,
    errors=(BrokerNotFound, Conflict, InvalidSettings),
    route=HttpRoute(
        method="POST", path=f"{_BROKER_PATH}/drain", tag="cluster", status=202, answer="The broker drains."
    ),
)
ACTIVATE_BROKER = Operation(
    name="activate_broker",
    arguments=BrokerRequest,
    result=BrokerInfo,
    summary="Activate a broker",
    description="It gets partitions again.",
    changes=True,
    errors=(BrokerNotFound, Conflict, InvalidSettings),
    route=HttpRoute(method="POST", path=f"{_BROKER_PATH}/activate", tag="cluster", answer="The broker is active."),
)
REBALANCE = Operation(
    name="rebalance",
    arguments=NoArguments,
    result=Rebalanced,
    summary="Rebalance the cluster",
    description="Move partitions from the most loaded brokers to the least loaded ones.",
    changes=True,
    errors=(Conflict, InvalidSettings, NotServing),
    route=HttpRoute(
        method="POST",
        path="/v1/cluster/rebalance",
        tag="cluster",
        status=202,
        answer="The moves that have begun, possibly none.",
    ),
)
INFO = Operation(
    name="info",
    arguments=NoArguments,
    result=NodeInfo,
    summary="Show the node that answers",
    description="Its name, version, sizes and troubles.",
    route=HttpRoute(method="GET", path="/v1/node", tag="node", answer="The node."),
)

OPERATIONS: tuple[Operation[..., Any], ...] = (
    TOPICS, CREATE_TOPIC, TOPIC, DELETE_TOPIC, PARTITION, COMMITS, LOCATE,
    SUBSCRIPTIONS, CREATE_SUBSCRIPTION, SUBSCRIPTION, DELETE_SUBSCRIPTION, SEEK, CONSUMERS,
    PRODUCERS, SUBSCRIBERS, PUBSUB_METRICS,
    READERS, REGISTER_READER, READER, DELETE_READER,
    NAMESPACES, CREATE_NAMESPACE, NAMESPACE, DELETE_NAMESPACE,
    PLACEMENT, MOVE_TOPIC, MOVES, CANCEL_MOVES, CLUSTER, BROKERS, DRAIN_BROKER, ACTIVATE_BROKER, REBALANCE,
    INFO,
)  # fmt: skip
BY_NAME = {operation.name: operation for operation in OPERATIONS}

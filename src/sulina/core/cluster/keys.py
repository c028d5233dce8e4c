"""The keys of the metadata store. Names are valid by construction, so none can reach into another's key."""

from sulina.types import PartitionName, TopicName

NAMESPACES = "/namespaces/"
TOPICS = "/topics/"


def namespace_policy(namespace: str) -> str:
    """What the topics of a namespace inherit; it exists as long as the namespace does."""
    return f"/namespaces/{namespace}/policy"


def namespace_topics(namespace: str) -> str:
    """The list of a namespace's topics."""
    return f"/namespaces/{namespace}/topics/"


def namespace_topic(topic: TopicName) -> str:
    """The topic in its namespace's list."""
    return f"{namespace_topics(topic.namespace)}{topic.namespace}/{topic.topic}"


def topic_prefix(topic: TopicName) -> str:
    """Everything about a topic."""
    return f"/topics/{topic.namespace}/{topic.topic}/"


def policy(topic: TopicName) -> str:
    """How a topic behaves."""
    return topic_prefix(topic) + "policy"


def schema(topic: TopicName) -> str:
    """How its values are to be understood."""
    return topic_prefix(topic) + "schema"


def schema_fixed(topic: TopicName) -> str:
    """That a record was accepted: the schema is what it is, for ever."""
    return topic_prefix(topic) + "schema_fixed"


def delivery(topic: TopicName) -> str:
    """Its kind, partitions and state; it exists as long as the topic does."""
    return topic_prefix(topic) + "delivery"


def producers(topic: TopicName) -> str:
    """All producers of a topic, at all brokers."""
    return topic_prefix(topic) + "producers/"


def producer(topic: TopicName, name: str, broker_id: str) -> str:
    """A producer that is connected to a broker."""
    return f"{producers(topic)}{name}/{broker_id}"


def subscription(topic: TopicName, name: str) -> str:
    """The settings of a subscription; it exists as long as the subscription does."""
    return f"{topic_prefix(topic)}subscriptions/{name}"


def cursor(topic: TopicName, name: str, partition: int) -> str:
    """How far a subscription has come in a partition."""
    return f"{subscription(topic, name)}/cursor/{partition}"


def is_cursor(key: str) -> bool:
    """Return whether a key is that of a cursor; a topic or a subscription may be called `cursor` too."""
    parts = key.split("/")
    return len(parts) == 8 and parts[6] == "cursor"


def holder(topic: TopicName, name: str) -> str:
    """The consumer that an exclusive or failover subscription delivers to."""
    return f"{subscription(topic, name)}/holder"


# The cluster

CLUSTER = "/cluster/"
REGISTER = "/cluster/register/"
LEADER = "/cluster/leader"
LOAD = "/cluster/load/"
BROKERS = "/cluster/brokers/"
UNASSIGNED = "/cluster/unassigned/"
EPOCHS = "/cluster/epochs/"
UNLOADS = "/cluster/unloads/"
OBJECTS = "/cluster/objects"  # which object store all brokers share
DELETED = "/cluster/deleted/"
IDENTITY = "/cluster/identity"  # which cluster this is, and how often it was recovered
MARKS = "/cluster/marks/"
SHOWN_TIME = "/cluster/time"  # the newest time that a broker's retention went by


def register(broker_id: str) -> str:
    """A broker that is there."""
    return REGISTER + broker_id


def load(broker_id: str) -> str:
    """What a broker has to do."""
    return LOAD + broker_id


def broker_prefix(broker_id: str) -> str:
    """Everything that is assigned to a broker, and its state."""
    return f"{BROKERS}{broker_id}/"


def broker_state(broker_id: str) -> str:
    """What an operator wants of a broker."""
    return broker_prefix(broker_id) + "state"


def assignment(broker_id: str, partition: PartitionName) -> str:
    """The broker owns the partition."""
    return broker_prefix(broker_id) + _path(partition)


def unassigned(partition: PartitionName) -> str:
    """The partition waits for an owner."""
    return UNASSIGNED + _path(partition)


def epoch(partition: PartitionName) -> str:
    """The newest owner of a partition."""
    return EPOCHS + _path(partition)


def unload(partition: PartitionName) -> str:
    """The wish that a partition leaves its owner."""
    return UNLOADS + _path(partition)


def mark(broker_id: str) -> str:
    """A counter of a broker's own, by which it sees whether the store went back."""
    return MARKS + broker_id


def deleted(topic_id: str) -> str:
    """The delete mark of a topic: what disks still have of it may go."""
    return DELETED + topic_id


def partition_of(key: str) -> PartitionName:
    """The partition at the end of a key. ValueError."""
    namespace, topic, number = key.rsplit("/", 3)[-3:]
    return PartitionName(TopicName(namespace, topic), int(number))


# Registered readers

READERS = "/readers/"


def reader_prefix(reader: str, topic: TopicName) -> str:
    """Every position of a reader in a topic."""
    return f"{READERS}{reader}/{topic.namespace}/{topic.topic}/"


def reader_position(reader: str, partition: PartitionName) -> str:
    """Where a reader is in a partition."""
    return f"{READERS}{reader}/{_path(partition)}"


def reader_of(key: str) -> tuple[str, PartitionName]:
    """Whose position is under a key, and where. ValueError, InvalidName."""
    reader, namespace, topic, number = key.removeprefix(READERS).split("/")
    return reader, PartitionName(TopicName(namespace, topic), int(number))


# The archive


def storage_prefix(topic: TopicName) -> str:
    """Everything about a topic's archive."""
    return f"/storage/topics/{topic.namespace}/{topic.topic}/"


def archive_prefix(partition: PartitionName) -> str:
    """Everything about a partition's archive."""
    return f"/storage/topics/{_path(partition)}/"


def archive_object(partition: PartitionName, offset: int) -> str:
    """A slice, by its first offset."""
    return f"/storage/topics/{_path(partition)}/objects/{offset:020d}"


def archive_current(partition: PartitionName) -> str:
    """How far archive and log have come."""
    return f"/storage/topics/{_path(partition)}/cur"


def sealed_state(partition: PartitionName) -> str:
    """That an owner has let go in good order."""
    return f"/storage/topics/{_path(partition)}/state"


def given_up(partition: PartitionName, epoch: int) -> str:
    """What was given up after an epoch."""
    return f"/storage/topics/{_path(partition)}/given_up/{epoch:020d}"


def _path(partition: PartitionName) -> str:
    return f"{partition.topic.namespace}/{partition.topic.topic}/{partition.partition}"

"""The keys of the metadata store. Names are validated, so no name can form the key of something else."""

from sulina.types import PartitionName, TopicName

NAMESPACES = "/namespaces/"
TOPICS = "/topics/"


def namespace_policy(namespace: str) -> str:
    """Return the key of a namespace's policy; the key exists as long as the namespace."""
    return f"/namespaces/{namespace}/policy"


def namespace_topics(namespace: str) -> str:
    """Return the prefix of the list of a namespace's topics."""
    return f"/namespaces/{namespace}/topics/"


def namespace_topic(topic: TopicName) -> str:
    """Return the key of a topic in the list of its namespace."""
    return f"{namespace_topics(topic.namespace)}{topic.namespace}/{topic.topic}"


def topic_prefix(topic: TopicName) -> str:
    """Return the prefix of all keys of a topic."""
    return f"/topics/{topic.namespace}/{topic.topic}/"


def policy(topic: TopicName) -> str:
    """Return the key of a topic's policy."""
    return topic_prefix(topic) + "policy"


def schema(topic: TopicName) -> str:
    """Return the key of a topic's schema."""
    return topic_prefix(topic) + "schema"


def schema_fixed(topic: TopicName) -> str:
    """Return the key that fixes the schema of a topic; it is written with the first record."""
    return topic_prefix(topic) + "schema_fixed"


def delivery(topic: TopicName) -> str:
    """Return the key of a topic's delivery kind, partitions and state; it exists as long as the topic."""
    return topic_prefix(topic) + "delivery"


def producers(topic: TopicName) -> str:
    """Return the prefix of the producers of a topic, at all brokers."""
    return topic_prefix(topic) + "producers/"


def producer(topic: TopicName, name: str, broker_id: str) -> str:
    """Return the key of a producer that is connected to a broker."""
    return f"{producers(topic)}{name}/{broker_id}"


def subscription(topic: TopicName, name: str) -> str:
    """Return the key of a subscription's settings; it exists as long as the subscription."""
    return f"{topic_prefix(topic)}subscriptions/{name}"


def cursor(topic: TopicName, name: str, partition: int) -> str:
    """Return the key of the cursor of a subscription in a partition."""
    return f"{subscription(topic, name)}/cursor/{partition}"


def is_cursor(key: str) -> bool:
    """Return whether a key is one of a cursor; a topic or a subscription may be called `cursor` too."""
    parts = key.split("/")
    return len(parts) == 8 and parts[6] == "cursor"


def holder(topic: TopicName, name: str) -> str:
    """Return the key of the consumer that holds an exclusive or failover subscription."""
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
    """Return the key of the registration of a broker."""
    return REGISTER + broker_id


def load(broker_id: str) -> str:
    """Return the key of the load report of a broker."""
    return LOAD + broker_id


def broker_prefix(broker_id: str) -> str:
    """Return the prefix of the assignments and the state of a broker."""
    return f"{BROKERS}{broker_id}/"


def broker_state(broker_id: str) -> str:
    """Return the key of the state that an operator has set for a broker."""
    return broker_prefix(broker_id) + "state"


def assignment(broker_id: str, partition: PartitionName) -> str:
    """Return the key of the assignment of a partition to a broker."""
    return broker_prefix(broker_id) + _path(partition)


def unassigned(partition: PartitionName) -> str:
    """Return the key of a partition that waits for an owner."""
    return UNASSIGNED + _path(partition)


def epoch(partition: PartitionName) -> str:
    """Return the key of a partition's epoch and newest owner."""
    return EPOCHS + _path(partition)


def unload(partition: PartitionName) -> str:
    """Return the key of the request to unload a partition."""
    return UNLOADS + _path(partition)


def mark(broker_id: str) -> str:
    """Return the key of the counter by which a broker notices that the store went back."""
    return MARKS + broker_id


def deleted(topic_id: str) -> str:
    """Return the key of the delete mark of a topic, which allows disks to delete its data."""
    return DELETED + topic_id


def partition_of(key: str) -> PartitionName:
    """Return the partition at the end of a key.

    Raises:
        ValueError: the key does not end with a partition.
    """
    namespace, topic, number = key.rsplit("/", 3)[-3:]
    return PartitionName(TopicName(namespace, topic), int(number))


# Registered readers

READERS = "/readers/"


def reader_prefix(reader: str, topic: TopicName) -> str:
    """Return the prefix of the positions of a reader in a topic."""
    return f"{READERS}{reader}/{topic.namespace}/{topic.topic}/"


def reader_position(reader: str, partition: PartitionName) -> str:
    """Return the key of the position of a reader in a partition."""
    return f"{READERS}{reader}/{_path(partition)}"


def reader_of(key: str) -> tuple[str, PartitionName]:
    """Return the reader and the partition of a position's key.

    Raises:
        ValueError, InvalidName: it is not the key of a position.
    """
    reader, namespace, topic, number = key.removeprefix(READERS).split("/")
    return reader, PartitionName(TopicName(namespace, topic), int(number))


# The archive


def storage_prefix(topic: TopicName) -> str:
    """Return the prefix of all keys of a topic's archive."""
    return f"/storage/topics/{topic.namespace}/{topic.topic}/"


def archive_prefix(partition: PartitionName) -> str:
    """Return the prefix of all keys of a partition's archive."""
    return f"/storage/topics/{_path(partition)}/"


def archive_object(partition: PartitionName, offset: int) -> str:
    """Return the key of a slice of the archive, by its first offset."""
    return f"/storage/topics/{_path(partition)}/objects/{offset:020d}"


def archive_current(partition: PartitionName) -> str:
    """Return the key of the ends of archive and log."""
    return f"/storage/topics/{_path(partition)}/cur"


def sealed_state(partition: PartitionName) -> str:
    """Return the key of the sealed state, which an owner writes when it has unloaded a partition."""
    return f"/storage/topics/{_path(partition)}/state"


def given_up(partition: PartitionName, epoch: int) -> str:
    """Return the key of the offsets that were given up after an epoch."""
    return f"/storage/topics/{_path(partition)}/given_up/{epoch:020d}"


def _path(partition: PartitionName) -> str:
    return f"{partition.topic.namespace}/{partition.topic.topic}/{partition.partition}"

"""The keys of the metadata store. Names are valid by construction, so none can reach into another's key."""

from sulina.types import TopicName

NAMESPACES = "/namespaces/"
TOPICS = "/topics/"


def namespace_policy(namespace: str) -> str:
    """What the topics of a namespace inherit; it exists as long as the namespace does."""
    return f"/namespaces/{namespace}/policy"


def namespace_topic(topic: TopicName) -> str:
    """The topic in its namespace's list."""
    return f"/namespaces/{topic.namespace}/topics/{topic.namespace}/{topic.topic}"


def topic_prefix(topic: TopicName) -> str:
    """Everything about a topic."""
    return f"/topics/{topic.namespace}/{topic.topic}/"


def policy(topic: TopicName) -> str:
    """How a topic behaves."""
    return topic_prefix(topic) + "policy"


def schema(topic: TopicName) -> str:
    """How its values are to be understood."""
    return topic_prefix(topic) + "schema"


def delivery(topic: TopicName) -> str:
    """Its kind, partitions and state; it exists as long as the topic does."""
    return topic_prefix(topic) + "delivery"


def subscription(topic: TopicName, name: str) -> str:
    """The settings of a subscription; it exists as long as the subscription does."""
    return f"{topic_prefix(topic)}subscriptions/{name}"


def cursor(topic: TopicName, name: str, partition: int) -> str:
    """How far a subscription has come in a partition."""
    return f"{subscription(topic, name)}/cursor/{partition}"

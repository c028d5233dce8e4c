"""Words of the domain as types: offsets, versions and epochs are distinct, names are valid by construction."""

import re
from dataclasses import dataclass
from typing import NewType, Self

from sulina.errors import InvalidName

Offset = NewType("Offset", int)  # a record's position in its partition
Version = NewType("Version", int)  # the number of a commit
Epoch = NewType("Epoch", int)  # the fence of an owner

NAMES_LENGTH_MAX = 230  # of namespace and topic together: a partition's directory has a name of 255 bytes at most
PARTITIONS_MAX = 100_000
DEFAULT_NAMESPACE = "default"  # of topics that are named without one

# A namespace has no dot, so that `{ns}.{topic}` names one directory for one topic only (ADR 0001).
NAMESPACE_PATTERN = r"[a-zA-Z0-9_-]{1,200}"
NAME_PATTERN = r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,199}"  # of topics, subscriptions, brokers, readers and producers
_NAMESPACE = re.compile(NAMESPACE_PATTERN, re.ASCII)
_TOPIC = re.compile(NAME_PATTERN, re.ASCII)
_DIRECTORY = re.compile(r"topic=([^.]+)\.(.+)-part=(0|[1-9]\d{0,5})", re.ASCII)


def _checked(kind: str, name: str, pattern: re.Pattern[str]) -> None:
    if not pattern.fullmatch(name):
        shown = name if len(name) <= 60 else name[:57] + "..."
        raise InvalidName(kind=kind, name=shown, pattern=pattern.pattern)


def checked_namespace(name: str) -> str:
    """Return a valid name of a namespace.

    Raises:
        InvalidName: it is not valid.
    """
    _checked("namespace", name, _NAMESPACE)
    return name


def checked_subscription(name: str) -> str:
    """Return a valid name of a subscription.

    Raises:
        InvalidName: it is not valid.
    """
    _checked("subscription", name, _TOPIC)
    return name


def checked_broker(name: str) -> str:
    """Return a valid id of a broker.

    Raises:
        InvalidName: it is not valid.
    """
    _checked("broker", name, _TOPIC)
    return name


def checked_reader(name: str) -> str:
    """Return a valid name of a reader.

    Raises:
        InvalidName: it is not valid.
    """
    _checked("reader", name, _TOPIC)
    return name


def checked_producer(name: str) -> str:
    """Return a valid name of a producer.

    Raises:
        InvalidName: it is not valid.
    """
    _checked("producer", name, _TOPIC)
    return name


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """`/namespace/topic`, checked once, here; from then on safe in a path, a key or a URL."""

    namespace: str
    topic: str

    def __post_init__(self) -> None:
        _checked("namespace", self.namespace, _NAMESPACE)
        _checked("topic", self.topic, _TOPIC)
        if len(self.namespace) + len(self.topic) > NAMES_LENGTH_MAX:
            shown = f"{str(self)[:57]}..."
            raise InvalidName(kind="topic", name=shown, pattern=f"{NAMES_LENGTH_MAX} characters with its namespace")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `/namespace/topic`.

        Raises:
            InvalidName: the text, or a part of it, is not valid.
        """
        parts = text.split("/")
        if len(parts) != 3 or parts[0]:
            shown = text if len(text) <= 60 else text[:57] + "..."
            raise InvalidName(kind="topic", name=shown, pattern="/namespace/topic")
        return cls(parts[1], parts[2])

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse a name as people write it: `/namespace/topic`, or `topic`, which is in the namespace `default`.

        A name with a dot is written whole, since readers take it for either of two topics.

        The command line, the Python client and Spark read names by this rule. What is stored or sent has whole names.

        Raises:
            InvalidName: the text, or a part of it, is not valid.
        """
        if "/" in text:
            return cls.parse(text)
        if "." in text:  # which to Kafka clients stands between namespace and topic
            namespace, _, topic = text.partition(".")
            shown = text if len(text) <= 60 else text[:57] + "..."
            raise InvalidName(
                kind="topic",
                name=shown,
                pattern=f"/namespace/topic where it has a dot; write /{DEFAULT_NAMESPACE}/{shown}"
                + (f" or /{namespace}/{topic}" if namespace and topic and shown == text else ""),
            )
        return cls(DEFAULT_NAMESPACE, text)

    def __str__(self) -> str:
        return f"/{self.namespace}/{self.topic}"


@dataclass(frozen=True, slots=True, order=True)
class PartitionName:
    """One partition of a topic: the ordered unit, and the unit of ownership."""

    topic: TopicName
    partition: int

    def __post_init__(self) -> None:
        if not 0 <= self.partition < PARTITIONS_MAX:
            raise InvalidName(kind="partition", name=str(self.partition), pattern=f"0..{PARTITIONS_MAX - 1}")

    @property
    def directory(self) -> str:
        """Name of this partition's directory, local or in the archive."""
        return f"topic={self.topic.namespace}.{self.topic.topic}-part={self.partition}"

    @classmethod
    def from_directory(cls, name: str) -> Self:
        """Parse the name of a partition's directory.

        Raises:
            InvalidName: it is not such a name.
        """
        found = _DIRECTORY.fullmatch(name)
        if found is None:
            raise InvalidName(kind="partition directory", name=name[:60], pattern=_DIRECTORY.pattern)
        return cls(TopicName(found[1], found[2]), int(found[3]))

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"

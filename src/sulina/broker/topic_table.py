"""The topics that a broker knows, by name: one table that the registry writes, and everybody else reads.

A topic is in the table from the moment it can be used until the moment it is closed. It says nothing about who owns the
partitions of a topic: `partition_ownership` does.
"""

import asyncio
import contextlib
from collections.abc import Iterator

from sulina.broker.topic import Topic
from sulina.types import PartitionName, TopicName


class TopicTable:
    """Maps names to topics. Only `TopicRegistry` adds and removes."""

    def __init__(self) -> None:
        self._by_name: dict[TopicName, Topic] = {}
        self.by_text: dict[str, Topic] = {}  # the same topics, by `/ns/topic`, as a request names them
        self._news = asyncio.Event()  # set, and replaced, when a topic was added, changed or removed

    def __getitem__(self, name: TopicName) -> Topic:
        return self._by_name[name]

    def __contains__(self, name: TopicName) -> bool:
        return name in self._by_name

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Topic]:
        """Iterate over a copy: topics may come and go meanwhile."""
        return iter(list(self._by_name.values()))

    def get(self, name: TopicName) -> Topic | None:
        """Return a topic; None: it does not exist, as far as is known here."""
        return self._by_name.get(name)

    def of_namespace(self, namespace: str) -> Iterator[Topic]:
        """Iterate over the topics of a namespace."""
        return (topic for topic in self if topic.name.namespace == namespace)

    async def when_known(self, name: TopicName, seconds: float) -> Topic | None:
        """Wait until a topic is known here, and return it; None: it was not known in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while name not in self._by_name:
                    await self._news.wait()
        return self._by_name.get(name)

    # What the cluster asks

    def is_reliable(self, partition: PartitionName) -> bool | None:
        """Return whether the topic of a partition is a log; None when there is no such topic."""
        topic = self._of(partition)
        return None if topic is None else topic.is_reliable

    def topic_id(self, partition: PartitionName) -> str | None:
        """Return the id of the topic of a partition; None when there is no such topic."""
        topic = self._of(partition)
        return None if topic is None else topic.stored.topic_id

    def partitions(self) -> list[PartitionName]:
        """Return the partitions of all topics that exist and are not being deleted."""
        return [ownership.name for topic in self for ownership in topic.ownerships]

    def _of(self, partition: PartitionName) -> Topic | None:
        topic = self._by_name.get(partition.topic)
        return topic if topic is not None and partition.partition < topic.stored.partitions else None

    # What the registry writes

    def add(self, topic: Topic) -> None:
        """Make a topic known."""
        self._by_name[topic.name] = self.by_text[str(topic.name)] = topic

    def remove(self, topic: Topic) -> None:
        """Make a topic unknown."""
        del self._by_name[topic.name], self.by_text[str(topic.name)]

    def announce(self) -> None:
        """Wake everybody who waits for a topic."""
        news, self._news = self._news, asyncio.Event()
        news.set()

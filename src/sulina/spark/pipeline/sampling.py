"""Looks at the topics of a node, so that a first definition of a pipeline can be written. It changes nothing there."""

from typing import TYPE_CHECKING

from sulina.core.topic import DeliveryGuarantee, SchemaKind
from sulina.errors import SulinaError
from sulina.spark.pipeline.first_definition import TOPICS_MAX, NodeSample, TopicSample
from sulina.spark.scan import TopicChoice
from sulina.types import TopicName
from sulina.wire.messages import TopicInfo

if TYPE_CHECKING:
    from sulina.client import Client

SYSTEM = "system"  # the namespace of the cluster's own topics
RECORDS_MAX = 100  # of the oldest and of the newest, of all partitions together
PARTITIONS_MAX = 10


async def sampled(client: "Client", topics: TopicChoice | None) -> NodeSample:
    """Return the topics that are chosen, or all but the cluster's own, with a sample of values without a schema.

    Raises:
        TopicNotFound: a topic that is named does not exist.
    """
    if topics is not None and topics.names is not None:
        infos = [await client.admin.topic(name) for name in topics.names]
    else:
        infos = [info for info in await client.admin.topics() if _is_chosen(TopicName.parse(info.topic), topics)]
    stored = [info for info in infos if info.settings.delivery == DeliveryGuarantee.RELIABLE]
    return NodeSample(
        topics=[await _sample(client, info) for info in stored[:TOPICS_MAX]],
        best_effort=[TopicName.parse(info.topic) for info in infos if info not in stored],
        beyond=[TopicName.parse(info.topic) for info in stored[TOPICS_MAX:]],
    )


def _is_chosen(topic: TopicName, topics: TopicChoice | None) -> bool:
    return topic.namespace != SYSTEM if topics is None else topics.has(topic)


async def _sample(client: "Client", info: TopicInfo) -> TopicSample:
    name, schema = TopicName.parse(info.topic), info.settings.value_schema
    if schema.kind != SchemaKind.BYTES:
        return TopicSample(name, schema)
    count = info.settings.partitions
    step = -(-count // PARTITIONS_MAX)
    numbers = range(0, count, step)
    each = max(1, RECORDS_MAX // len(numbers))
    values: list[bytes | None] = []
    try:
        for number in numbers:
            part = await client.admin.partition(name, number)
            newest = max(part.start_offset, part.end_offset - each)
            oldest_end = min(part.start_offset + each, newest)
            values += await _values(client, name, number, part.start_offset, oldest_end)
            values += await _values(client, name, number, newest, part.end_offset)
    except SulinaError as error:  # the definition says so, and has the other topics
        return TopicSample(name, schema, trouble=f"the topic cannot be looked at: {error}")
    return TopicSample(name, schema, values)


async def _values(client: "Client", topic: TopicName, partition: int, start: int, end: int) -> list[bytes | None]:
    """Return the values of the offsets [start, end), as far as they are there."""
    values: list[bytes | None] = []
    if start < end:
        async with client.read(topic, partitions=[partition], start=f"offset:{start}", follow=False) as reader:
            async for message in reader:
                values.append(message.value)
                if message.offset >= end - 1:
                    break
    return values

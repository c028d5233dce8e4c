"""What several brokers say of one thing, each for the partitions that it owns, put together."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from sulina.wire.messages import CursorInfo, PubSubMetrics, SubscriptionInfo


def merged(infos: Sequence[SubscriptionInfo]) -> SubscriptionInfo:
    """Merge what several brokers say of one subscription; of two cursors of a partition, the further one counts."""
    if len(infos) == 1:
        return infos[0]
    cursors: dict[int, CursorInfo] = {}
    for info in infos:
        for cursor in info.cursors:
            known = cursors.get(cursor.partition)
            if known is None or (cursor.end_offset, cursor.offset) >= (known.end_offset, known.offset):
                cursors[cursor.partition] = cursor
    return msgspec.structs.replace(
        infos[0],
        consumers=list(dict.fromkeys(consumer for info in infos for consumer in info.consumers)),
        cursors=[cursors[number] for number in sorted(cursors)],
        lag=sum(cursor.lag for cursor in cursors.values()),
    )


def merged_all(lists: Iterable[Sequence[SubscriptionInfo]]) -> list[SubscriptionInfo]:
    """Merge what several brokers say of all subscriptions of a topic, by name."""
    found: dict[str, list[SubscriptionInfo]] = {}
    for infos in lists:
        for info in infos:
            found.setdefault(info.subscription, []).append(info)
    return [merged(found[name]) for name in sorted(found)]


def summed(parts: Sequence[PubSubMetrics]) -> PubSubMetrics:
    """Add up what became of messages at all brokers."""
    totals: dict[str, int] = Counter()
    rejected, failed, batches = Counter[str](), Counter[str](), Counter[str]()
    for part in parts:
        rejected.update(part.rejected)
        failed.update(part.failed)
        batches.update(part.batches)
        for name in PubSubMetrics.__struct_fields__:
            if isinstance(value := getattr(part, name), int):
                totals[name] += value
    return PubSubMetrics(
        topic=parts[0].topic, rejected=dict(rejected), failed=dict(failed), batches=dict(batches), **totals
    )

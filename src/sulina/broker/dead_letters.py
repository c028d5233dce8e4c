"""Where dead letters go: the topic that the policy names, and from there on, until the way ends.

A way that would go in a circle, or too far, is refused when a policy is stored. What it was checked by is compared in
the same transaction, so two brokers cannot store the two halves of a circle.
"""

from collections.abc import Mapping

from sulina.broker.catalogue import Catalogue
from sulina.core.cluster import keys
from sulina.core.delivery.dead_letter import DEAD_LETTER_SUFFIX, check_way, dead_letter_topic, is_end
from sulina.core.topic import Policy, resolved
from sulina.ports import Compare
from sulina.types import TopicName


async def check_dead_letters(
    catalogue: Catalogue, way: list[TopicName], policy: Policy | None = None, *, namespaces: Mapping[str, Policy]
) -> list[Compare]:
    """Follow dead letters from the last topic of `way` on; return what must stay as it is for the way to end.

    `policy` is the topic's; None: the stored one. `namespaces` are about to get these policies.

    Raises:
        InvalidSettings: they would go in a circle, or too far.
    """
    unchanged: list[Compare] = []
    while not way[-1].topic.endswith(DEAD_LETTER_SUFFIX):
        own, own_stays = await catalogue.read_policy(keys.policy(way[-1]))
        namespace, namespace_stays = await catalogue.read_policy(keys.namespace_policy(way[-1].namespace))
        if policy is None:
            unchanged.append(own_stays)
        if way[-1].namespace not in namespaces:
            unchanged.append(namespace_stays)
        found = resolved(policy or own, namespaces.get(way[-1].namespace, namespace))
        if is_end(way[-1], found):
            break
        way, policy = [*way, dead_letter_topic(way[-1], found)], None
        check_way(way)
    return list(dict.fromkeys(unchanged))

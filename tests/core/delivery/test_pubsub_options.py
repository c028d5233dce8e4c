"""P4: options resolve publish > topic > system, and an override changes nothing but its own publish."""

import dataclasses

import pytest

from sulina.core.delivery.pubsub import DeliveryPolicy, PartitionBehavior, PublishOptions, PubSubConfig, TopicOptions
from sulina.core.topic import Policy, resolved
from sulina.errors import InvalidSettings

NOTHING = PublishOptions()
ONCE = DeliveryPolicy.AT_MOST_ONCE
DROP = PartitionBehavior.DROP


def test_p4_the_system_says_at_least_once_and_delay_queue() -> None:
    policy = resolved(Policy())
    assert policy.delivery_policy == TopicOptions().delivery_policy == DeliveryPolicy.AT_LEAST_ONCE
    assert policy.partition_behavior == TopicOptions().partition_behavior == PartitionBehavior.DELAY_QUEUE


def test_p4_the_topic_goes_before_its_namespace_and_that_before_the_system() -> None:
    namespace = Policy(delivery_policy=ONCE, partition_behavior=DROP)
    topic = Policy(partition_behavior=PartitionBehavior.DELAY_QUEUE)
    policy = resolved(topic, namespace)
    assert (policy.delivery_policy, policy.partition_behavior) == (ONCE, PartitionBehavior.DELAY_QUEUE)


@pytest.mark.parametrize("topic", [TopicOptions(), TopicOptions(delivery_policy=ONCE, partition_behavior=DROP)])
@pytest.mark.parametrize("policy", [None, *DeliveryPolicy])
@pytest.mark.parametrize("behavior", [None, *PartitionBehavior])
def test_p4_a_publish_goes_before_its_topic_which_stays_as_it_is(
    topic: TopicOptions, policy: DeliveryPolicy | None, behavior: PartitionBehavior | None
) -> None:
    chosen = topic.with_publish(PublishOptions(delivery_policy=policy, partition_behavior=behavior))
    assert chosen.delivery_policy == (policy or topic.delivery_policy)
    assert chosen.partition_behavior == (behavior or topic.partition_behavior)
    assert topic.with_publish(NOTHING) == topic


def test_a_time_or_bound_of_zero_is_refused_by_its_name() -> None:
    for field in dataclasses.fields(PubSubConfig):
        with pytest.raises(InvalidSettings, match=f"^{field.name} is 0: it must be greater than 0$"):
            PubSubConfig(**{field.name: 0})

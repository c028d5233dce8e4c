"""What a node keeps for its subscribers when owners change, die and come back under the same epoch."""

from sulina.broker.pubsub.node_subscribers import LocalSubscriber, NodeSubscribers, SubscriberDelivery
from sulina.core.delivery.pubsub import PubSubConfig
from sulina.errors import SulinaError
from sulina.testing.clock import VirtualClock
from sulina.types import PartitionName, TopicName
from sulina.wire.peer import AnyPeerFrame, DeliverBatch, Fence, Reported, pack_handles

TOPIC = TopicName("default", "t")
PARTITION = PartitionName(TOPIC, 0)


class World:
    """The subscribers of one node, what it sends, and what a subscriber is given."""

    def __init__(self, *, is_reliable: bool) -> None:
        self.sent: list[tuple[str, AnyPeerFrame]] = []
        self.given: list[SubscriberDelivery] = []
        self.removed: list[SulinaError] = []
        self.subscribers = NodeSubscribers(PubSubConfig(), send=self._send, clock=VirtualClock())
        self.subscriber = self._attach()
        self.subscriber.partitions = [PARTITION]
        self.subscribers.joined(PARTITION, "a", self.subscriber, 0 if is_reliable else None)

    def _send(self, node: str, frame: AnyPeerFrame) -> bool:
        self.sent.append((node, frame))
        return True

    def _attach(self) -> LocalSubscriber:
        return self.subscribers.attach(TOPIC, "s", self.given.append, self.removed.append)

    def deliver(self, attempt: int, start: int, fence: Fence, owner: str = "a") -> None:
        """One record, at its offset."""
        packed = pack_handles([self.subscriber.handle])
        frame = DeliverBatch(str(TOPIC), 0, fence, attempt, start, start + 1, packed, memoryview(b"x"))
        self.subscribers.deliver(owner, PARTITION, frame)

    def ack_all(self) -> None:
        for number in list(self.subscriber.given):
            self.subscribers.acked(self.subscriber, number)

    @property
    def reports(self) -> list[Reported]:
        return [frame for _, frame in self.sent if isinstance(frame, Reported)]


def test_an_owner_that_was_restarted_under_its_epoch_counts_from_1_again() -> None:
    world = World(is_reliable=False)
    for attempt in (1, 2, 3):
        world.deliver(attempt, attempt, (7, 100))
    world.ack_all()
    world.deliver(1, 0, (7, 200))  # another life of it
    assert len(world.given) == 4
    world.ack_all()
    assert [(report.fence, report.report.attempt) for report in world.reports][-1] == ((7, 200), 1)


def test_an_attempt_that_comes_twice_in_one_life_is_given_once() -> None:
    world = World(is_reliable=False)
    world.deliver(1, 0, (7, 100))
    world.ack_all()
    world.deliver(1, 0, (7, 100))
    assert len(world.given) == 1
    assert [report.report.failed for report in world.reports] == [(), ()]


def test_what_was_acked_of_a_reliable_topic_does_not_come_twice_from_a_new_owner() -> None:
    world = World(is_reliable=True)
    for attempt in (1, 2):
        world.deliver(attempt, attempt - 1, (7, 100))
    world.ack_all()
    world.deliver(1, 1, (8, 300), owner="b")  # acked already
    world.deliver(2, 2, (8, 300), owner="b")
    assert [delivery.ranges for delivery in world.given] == [[(0, 1)], [(1, 2)], [(2, 3)]]


def test_an_owner_that_owns_it_no_more_is_not_heard() -> None:
    world = World(is_reliable=True)
    world.deliver(1, 0, (8, 300), owner="b")
    world.deliver(9, 1, (7, 100))
    assert len(world.given) == 1


def test_what_a_subscriber_may_not_ack_any_more_is_forgotten() -> None:
    world = World(is_reliable=True)
    world.deliver(1, 0, (7, 100))
    world.deliver(1, 0, (8, 300), owner="b")
    assert len(world.subscriber.given) == 1  # of the new owner
    world.subscribers.detach(world.subscriber)
    assert not world.subscriber.given
    assert world.subscribers.position(PARTITION, world.subscriber) is None

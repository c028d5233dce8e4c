"""What a cluster is asked, and told: where topics are, to move them, to empty a broker, to spread the load."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from sulina.client.admin import Admin
from sulina.client.backoff import Patience
from sulina.client.checks import TopicLike, checked_number, checked_seconds, checked_text, topic_text
from sulina.client.merging import summed
from sulina.client.places import Place, is_served
from sulina.client.route import PAUSE_SECONDS_MIN
from sulina.errors import Disconnected, NotServing, TopicNotFound
from sulina.types import TopicName
from sulina.wire.frames import Call
from sulina.wire.messages import (
    BrokerInfo,
    ClusterInfo,
    Placement,
    PubSubMetrics,
    Rebalanced,
    UnloadInfo,
)

POLL_SECONDS_MAX = 0.5
UNLOAD_SECONDS = 600.0  # everything that is not in the archive yet must be brought there
MOVED = "moved"

OnProgress = Callable[[list[UnloadInfo]], None]


class ClusterAdmin(Admin):
    """A node that is alone can be asked, but has nothing to move: InvalidSettings."""

    async def lookup(self, topic: TopicLike) -> Placement:
        """Where the partitions of a topic are served, as the home knows it. TopicNotFound."""
        return await self._routes.places.ask(TopicName.parse(topic_text(topic)))

    async def cluster(self) -> ClusterInfo:
        """The cluster as the home sees it."""
        return await self._read("cluster", ClusterInfo)

    async def pubsub_metrics(self, topic: TopicLike | None = None) -> PubSubMetrics:
        """What became of messages, of one topic or of all, at all brokers together since each was started."""
        if topic is not None:
            name = topic_text(topic)
            return summed(await self._read_owners(name, "pubsub_metrics", PubSubMetrics, {"topic": name}))
        urls = [info.url for info in (await self.cluster()).brokers if info.state != "unreachable"]
        sessions = {self._routes.brokers.session(url) for url in urls}
        answers = await asyncio.gather(
            *(
                session.request(lambda number: Call(number, "pubsub_metrics"), is_repeatable=True)
                for session in sessions
            )
        )
        return summed([msgspec.convert(answer, PubSubMetrics, from_attributes=True) for answer in answers])

    async def unloads(self, topic: TopicLike) -> list[UnloadInfo]:
        """Those that are under way for a topic."""
        return await self._read("unloads", list[UnloadInfo], topic=topic_text(topic))

    async def unload(
        self,
        topic: TopicLike,
        *,
        force: bool = False,
        to: str | None = None,
        partition: int | None = None,
        give_up: bool = False,
        wait: bool = True,
        on_progress: OnProgress | None = None,
        timeout_seconds: float = UNLOAD_SECONDS,
    ) -> list[UnloadInfo]:
        """Have partitions leave their owners, for `to` or for whom the leader chooses; all of a topic, or one.

        Returns when others serve them, and says who; without `wait` at once. `on_progress` is told of every step. Those
        that are at `to` already stay, and are not in the answer. SubscriptionBusy while consumers are attached, unless
        forced; they follow by themselves. A partition that is closed because records are missing (LogIncomplete) goes
        on without them only with `give_up`: they are lost for good. NotServing when it takes longer than that; it goes
        on all the same.
        """
        name = topic_text(topic)
        checked_seconds("timeout_seconds", timeout_seconds)
        if to is not None:
            checked_text("to", to)
        if partition is not None:
            checked_number("partition", partition)
        before = await self.lookup(topic)
        asked: list[UnloadInfo] = await self._change(
            "unload", list[UnloadInfo], topic=name, force=force, to=to, partition=partition, give_up=give_up
        )
        if not wait or not asked:
            return asked
        waiting = _Waiting(name, asked, before, on_progress)
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._wait_moved(topic, waiting)
        except TimeoutError:
            raise waiting.late(timeout_seconds) from None
        return waiting.infos

    async def cancel_unloads(self, topic: TopicLike, *, partition: int | None = None) -> list[UnloadInfo]:
        """Take back wishes to unload or move a topic, all or of one partition; which. What has moved stays moved."""
        if partition is not None:
            checked_number("partition", partition)
        cancelled: list[UnloadInfo] = await self._change(
            "cancel_unloads", list[UnloadInfo], topic=topic_text(topic), partition=partition
        )
        return cancelled

    async def move(
        self,
        topic: TopicLike,
        to: str,
        *,
        force: bool = False,
        partition: int | None = None,
        wait: bool = True,
        on_progress: OnProgress | None = None,
        timeout_seconds: float = UNLOAD_SECONDS,
    ) -> list[UnloadInfo]:
        """`unload` for one broker. InvalidSettings when there is no such broker."""
        return await self.unload(
            topic,
            force=force,
            to=to,
            partition=partition,
            wait=wait,
            on_progress=on_progress,
            timeout_seconds=timeout_seconds,
        )

    async def drain_broker(self, broker_id: str) -> BrokerInfo:
        """It gives away what it owns, and is given nothing more. BrokerNotFound."""
        info: BrokerInfo = await self._change("drain_broker", BrokerInfo, broker_id=checked_text("broker", broker_id))
        return info

    async def activate_broker(self, broker_id: str) -> BrokerInfo:
        """It may own partitions again. BrokerNotFound."""
        info: BrokerInfo = await self._change(
            "activate_broker", BrokerInfo, broker_id=checked_text("broker", broker_id)
        )
        return info

    async def rebalance(self) -> Rebalanced:
        """Spread the load; what is to be moved."""
        answer: Rebalanced = await self._change("rebalance", Rebalanced)
        return answer

    async def _wait_moved(self, topic: TopicLike, waiting: "_Waiting") -> None:
        time = asyncio.get_running_loop().time
        patience = Patience(PAUSE_SECONDS_MIN, POLL_SECONDS_MAX, self._routes.brokers.rng)
        while True:
            if await self._has_moved(topic, waiting):
                return
            await asyncio.sleep(patience.next(time()))

    async def _has_moved(self, topic: TopicLike, waiting: "_Waiting") -> bool:
        """Whether all of them are served by the next owner; the home may be away for a while."""
        try:
            # In this order: what is not under way any more has moved by then.
            under_way = await self.unloads(topic)
            place = await self._routes.places.look_up(TopicName.parse(topic_text(topic)))
        except (Disconnected, NotServing):
            if self._routes.brokers.is_closed:
                raise
            return False
        return waiting.see(under_way, place)


class _Waiting:
    """For partitions to be served by another owner, or by the same one anew: the epoch tells."""

    def __init__(
        self, topic: str, asked: Sequence[UnloadInfo], before: Placement, on_progress: OnProgress | None
    ) -> None:
        self._topic = topic
        self._topic_id = before.topic_id
        self._before = {at.partition: at.epoch for at in before.partitions}
        self._on_progress = on_progress
        self._steps = {info.partition: info for info in asked}
        if on_progress is not None:
            on_progress(self.infos)

    @property
    def infos(self) -> list[UnloadInfo]:
        """As far as they have come."""
        return [self._steps[number] for number in sorted(self._steps)]

    def see(self, under_way: Sequence[UnloadInfo], place: Place) -> bool:
        """Whether all have moved. TopicNotFound when it is another topic's place, whose epochs say nothing of ours."""
        if place.topic_id != self._topic_id:
            raise TopicNotFound(topic=self._topic)
        infos = self.infos
        now = {info.partition: info for info in under_way}
        for number, info in list(self._steps.items()):
            if info.step == MOVED:
                continue
            at = next((at for at in place.partitions if at.partition == number), None)
            if at is not None and is_served(at) and at.epoch > self._before.get(number, -1):
                self._steps[number] = replace(info, step=MOVED, to_broker=at.broker_id, error=None)
            elif number in now:
                # What was given up is only said when it is asked for.
                self._steps[number] = replace(now[number], given_up=info.given_up)
        if self._on_progress is not None and self.infos != infos:
            self._on_progress(self.infos)
        return all(info.step == MOVED for info in self._steps.values())

    def late(self, seconds: float) -> NotServing:
        """Some have not moved in time."""
        waiting = [info for info in self.infos if info.step != MOVED]
        said = "; ".join(
            f"partition {info.partition} is {info.step}" + (f" ({info.error})" if info.error else "")
            for info in waiting
        )
        return NotServing(reason=f"{self._topic} has not moved within {seconds:g} seconds, and goes on: {said}")

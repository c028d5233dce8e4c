"""A cluster by script, in virtual time: brokers that own partitions, lose them, hang, die and come back.

There is one truth: who owns what, what the logs hold, what is acked. Brokers see it late, answer late and in any order,
and may still do what they were sent over a connection that is gone. What happens when is a matter of one seed.
"""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from sulina.client import Client, ClientOptions
from sulina.client.retries import RequestOutcome, request_outcome
from sulina.core.log.commit import OriginRef, SequenceRun
from sulina.core.log.log_state import Appended, advanced, repeat_of
from sulina.core.records.batch import BatchHeader, parse_header
from sulina.core.records.record import StoredRecord, decode, encode
from sulina.core.topic import Ack, TopicSettings
from sulina.errors import (
    ConsumerNotFound,
    Disconnected,
    Draining,
    InvalidSettings,
    LeaseExpired,
    MetadataFailed,
    NotOwner,
    NotServing,
    QueueFull,
    Recovering,
    SubscriptionBusy,
    SulinaError,
    TopicNotFound,
    from_code,
)
from sulina.types import Offset, Version
from sulina.wire.frames import (
    AckRecords,
    AddCredit,
    Answer,
    Call,
    Deliver,
    Detach,
    Detached,
    Failed,
    Fetch,
    FromClient,
    FromNode,
    NackRecords,
    Publish,
    Subscribe,
    decode_from_client,
    decode_from_node,
    encode_frame,
)
from sulina.wire.messages import (
    CursorInfo,
    Fetched,
    MoveList,
    NodeInfo,
    PartitionPlacement,
    Placement,
    Published,
    Subscribed,
    SubscriptionInfo,
    SubscriptionList,
    TopicState,
    UnloadInfo,
)
from tests.client.fake_node import TOPIC, topic_info

BATCH = 5
REFUSALS = QueueFull | NotServing


class Part:
    """A partition: the truth about it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.owner: str | None = None
        self.epoch = 0
        self.state = TopicState.CLOSED
        self.waits_for: str | None = None
        self.log: list[StoredRecord] = []
        self.answers: dict[str, Published] = {}
        self.origins: dict[int, OriginRef] = {}
        self.acked: dict[str, set[int]] = {}  # by subscription
        self.waiting: list[Callable[[], None]] = []  # fetches at the end

    def placement(self) -> PartitionPlacement:
        has_owner = self.owner is not None
        return PartitionPlacement(
            partition=self.number, state=self.state, epoch=self.epoch, broker_id=self.owner,
            url=url_of(self.owner) if has_owner and self.owner else None, waits_for=self.waits_for,
        )  # fmt: skip

    def append(self, frame: Publish) -> Published:
        """By the rules of a log for txn_ids and for numbers. Conflict."""
        header = parse_header(frame.data)
        known = self.answers.get(frame.txn_id) if frame.txn_id is not None else None
        if known is not None:
            return known
        if header.producer_id >= 0 and (found := self._repeat(header, may_skip=frame.may_skip)) is not None:
            return self._published(found.offset_start, header.record_count)
        start = len(self.log)
        self.log += [StoredRecord(r.value, r.key, offset=start + i) for i, r in enumerate(decode(frame.data))]
        if header.producer_id >= 0:
            producer, run = (
                header.producer_id,
                SequenceRun(header.base_sequence, Offset(start), Offset(len(self.log)), Version(0)),
            )
            self.origins[producer] = advanced(
                self.origins.get(producer), origin_id=producer, epoch=header.producer_epoch, run=run
            )
        answer = self._published(start, header.record_count)
        if frame.txn_id is not None:
            self.answers[frame.txn_id] = answer
        waiting, self.waiting = self.waiting, []
        for go_on in waiting:
            go_on()
        return answer

    def _repeat(self, header: BatchHeader, *, may_skip: bool) -> Appended | None:
        return repeat_of(
            self.origins.get(header.producer_id), origin_id=header.producer_id, epoch=header.producer_epoch,
            sequence=header.base_sequence, count=header.record_count, may_skip=may_skip,
        )  # fmt: skip

    def _published(self, start: int, count: int) -> Published:
        return Published(partition=self.number, base_offset=start, count=count, version=start, ack=Ack.ARCHIVED)

    def next_unacked(self, subscription: str, start: int) -> int:
        acked = self.acked.setdefault(subscription, set())
        while start in acked:
            start += 1
        return start


def url_of(broker: str) -> str:
    return f"http://{broker}"


class Consumer:
    """Attached to one broker: what it was sent, and may still be sent."""

    def __init__(self, wire: "Wire", frame: Subscribe) -> None:
        self.wire = wire
        self.handle = frame.consumer
        self.subscription = frame.subscription
        self.name = frame.name
        self.kind = frame.kind
        self.credit = frame.credit
        self.positions: dict[int, int] = {}
        self.held: dict[int, set[int]] = {}


class Wire:
    """A `Connection`, from both sides. What was sent arrives later, in its order."""

    def __init__(self, broker: "FakeBroker") -> None:
        self.broker = broker
        self.is_cut = False
        self.is_closed = False
        self.broken_runs: dict[int, SulinaError] = {}
        self.consumers: dict[int, Consumer] = {}
        self._inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._arriving: deque[bytes] = deque()
        self._last_at = 0.0

    # The client's side

    async def send(self, frame: FromClient) -> None:
        data = encode_frame(frame)
        if self.is_cut or self.is_closed:
            raise Disconnected(url=self.broker.url, reason="cut")
        loop = asyncio.get_running_loop()
        self._arriving.append(data)
        self._last_at = max(self._last_at, loop.time() + self.broker.cluster.latency())
        loop.call_at(self._last_at, self._take)

    async def receive(self) -> FromNode:
        data = await self._inbox.get()
        if data is None:
            raise Disconnected(url=self.broker.url, reason="cut")
        return decode_from_node(data)

    async def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._end()

    # The broker's side

    def _take(self) -> None:
        if self.broker.is_hung:
            self.broker.hung.append(self._take)
        elif self._arriving:
            self.broker.take(self, decode_from_client(self._arriving.popleft()))

    def push(self, frame: FromNode) -> None:
        if self.broker.is_hung:
            self.broker.hung.append(lambda: self.push(frame))
        elif not self.is_cut and not self.is_closed:
            self._inbox.put_nowait(encode_frame(frame))

    def answer(self, request: Any, result: Any = None) -> None:
        if request.id:
            self.push(Answer(request.id, result))

    def refuse(self, request: Any, error: SulinaError) -> None:
        self.push(Failed(request.id, error.code, str(error), error.details()))

    def cut(self, loses_frames: bool = True) -> None:
        """Lost for both; what is on its way may still arrive."""
        if self.is_cut:
            return
        self.is_cut = True
        if loses_frames:
            self._arriving.clear()
        self._inbox.put_nowait(None)
        self._end()

    def _end(self) -> None:
        self.broker.wires.discard(self)
        self.broker.cluster.later(self.consumers.clear)  # not noticed at once


class FakeBroker:
    """One broker of a cluster."""

    def __init__(self, cluster: "FakeCluster", name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.url = url_of(name)
        self.wires: set[Wire] = set()
        self.is_down = False
        self.is_hung = False
        self.hung: list[Callable[[], None]] = []
        self.frames: list[FromClient] = []
        self.connects = 0
        self.view: list[PartitionPlacement] = []  # what it knows, late
        self.told = 0
        self.refuse_next: deque[SulinaError] = deque()  # publishes, whatever else
        self.full_until = 0.0
        self.is_mute = False  # publishes are done, and not answered
        self.is_cut_off = False  # from the truth: it knows nothing new, and cannot write

    async def connect(self) -> Wire:
        self.connects += 1
        await asyncio.sleep(self.cluster.latency())
        if self.is_down:
            raise Disconnected(url=self.url, reason="nobody listens")
        if self.is_hung:
            await asyncio.sleep(10)
            raise Disconnected(url=self.url, reason="no answer within 10 seconds")
        wire = Wire(self)
        self.wires.add(wire)
        return wire

    def calls(self) -> Counter[str]:
        return Counter(frame.method for frame in self.frames if isinstance(frame, Call))

    # Faults

    def cut(self, loses_frames: bool = True) -> None:
        for wire in list(self.wires):
            wire.cut(loses_frames)

    def die(self) -> None:
        self.is_down = True
        self.cut()

    def resume(self) -> None:
        self.is_hung = False
        hung, self.hung = self.hung, []
        for go_on in hung:
            go_on()

    # Requests

    def take(self, wire: Wire, frame: FromClient) -> None:
        self.frames.append(frame)
        try:
            match frame:
                case Publish():
                    self._publish(wire, frame)
                case Fetch():
                    self._fetch(wire, frame)
                case Call():
                    self._call(wire, frame)
                case Subscribe():
                    self._subscribe(wire, frame)
                case AddCredit() if frame.consumer in wire.consumers:
                    wire.consumers[frame.consumer].credit += frame.records
                    self.cluster.dispatch()
                case AckRecords() | NackRecords():
                    self._settle(wire, frame)
                case Detach():
                    wire.consumers.pop(frame.consumer, None)
                    wire.answer(frame)
        except SulinaError as error:
            wire.refuse(frame, error)

    def own(self, number: int) -> Part:
        part = self.cluster.parts[number]
        if self.is_cut_off and self.view[number].broker_id == self.name:
            raise LeaseExpired(broker=self.name)
        if part.owner != self.name:
            at = self.view[number]
            if at.state is TopicState.RECOVERING:
                raise Recovering(topic=TOPIC, partition=number, broker=at.waits_for or "?")
            raise NotOwner(topic=TOPIC, partition=number, owner=at.broker_id, url=at.url)
        if part.state is TopicState.DRAINING:
            raise Draining(topic=TOPIC)
        return part

    def _publish(self, wire: Wire, frame: Publish) -> None:
        cluster, rng = self.cluster, self.cluster.rng
        broken = wire.broken_runs.get(frame.run)
        try:
            if broken is not None and cluster.has_runs:
                raise from_code(broken.code, str(broken), broken.details())
            if frame.topic_id != topic_info(TOPIC, cluster.settings).topic_id:
                raise TopicNotFound(topic=TOPIC)
            assert frame.partition is not None
            part = self.own(frame.partition)
            if self.refuse_next:
                raise self.refuse_next.popleft()
            if asyncio.get_running_loop().time() < self.full_until and rng.random() < 0.5:
                raise QueueFull(waiting_bytes=2, limit_bytes=1)
            if rng.random() < cluster.lease_faults:
                if rng.random() < 0.5:
                    part.append(frame)
                raise LeaseExpired(broker=self.name)
        except SulinaError as error:
            if frame.run and (request_outcome(error) is not RequestOutcome.FINAL or isinstance(error, TopicNotFound)):
                wire.broken_runs[frame.run] = error
            raise
        answer = part.append(frame)
        cluster.dispatch()
        if not self.is_mute:
            cluster.later(lambda: wire.answer(frame, answer))

    def _fetch(self, wire: Wire, frame: Fetch) -> None:
        try:
            part = self.own(frame.partition)
        except SulinaError as error:
            wire.refuse(frame, error)
            return
        end = len(part.log)
        if frame.offset == end and frame.wait_ms:
            self._fetch_later(wire, frame, part)
            return
        records = part.log[frame.offset : frame.offset + BATCH]
        fetched = Fetched(
            data=memoryview(encode(records, base_offset=frame.offset) if records else b""), offset=frame.offset,
            next_offset=frame.offset + len(records), version=0, end_offset=end,
        )  # fmt: skip
        self.cluster.later(lambda: wire.answer(frame, fetched))

    def _fetch_later(self, wire: Wire, frame: Fetch, part: Part) -> None:
        is_done = False

        def go_on(wait_ms: int) -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                self._fetch(wire, Fetch(frame.id, TOPIC, frame.partition, frame.offset, wait_ms=wait_ms))

        part.waiting.append(lambda: go_on(frame.wait_ms))
        asyncio.get_running_loop().call_later(frame.wait_ms / 1000, go_on, 0)

    def _call(self, wire: Wire, frame: Call) -> None:
        cluster, arguments = self.cluster, frame.arguments
        if arguments.get("topic", TOPIC) != TOPIC:
            raise TopicNotFound(topic=arguments["topic"])
        result: Any
        match frame.method:
            case "topic":
                result = topic_info(TOPIC, cluster.settings)
            case "placement":
                brokers = [url_of(name) for name, broker in cluster.brokers.items() if not broker.is_down]
                brokers = [*cluster.odd_urls, *brokers]
                topic_id = topic_info(TOPIC, cluster.settings).topic_id
                result = Placement(topic=TOPIC, topic_id=topic_id, partitions=self.view, brokers=brokers)
            case "locate":
                part = self.own(arguments["partition"])
                result = len(part.log) if arguments["position"] == "latest" else 0
            case "subscription" | "seek" | "create_subscription":
                result = self._subscription(arguments, frame.method)
            case "subscriptions":
                infos = [self._subscription({"subscription": name}, frame.method) for name in ("s", "t")]
                result = SubscriptionList(subscriptions=infos)
            case "info":
                result = NodeInfo(
                    broker_id=self.name, version="0", is_ready=True, topics=1, connections=1, uptime_seconds=1.0
                )
            case "move_topic":
                result = MoveList(moves=cluster.unload(arguments["partition"], arguments["to"]))
            case "moves":
                result = MoveList(moves=[info for info in cluster.unloads.values() if info.step != "unassigned"])
            case _:
                raise InvalidSettings(f"the fake knows nothing of {frame.method}")
        cluster.later(lambda: wire.answer(frame, result))

    def _subscription(self, arguments: dict[str, Any], method: str) -> SubscriptionInfo:
        parts = [part for part in self.cluster.parts if part.owner == self.name]
        if not parts:
            self.own(0)
        name = arguments["subscription"]
        if method == "seek":
            chosen = [p for p in parts if arguments["partition"] in (None, p.number)]
            if arguments["partition"] is not None and not chosen:
                self.own(arguments["partition"])
            for part in chosen:
                part.acked[name] = set()
        cursors = []
        for part in parts:
            offset = part.next_unacked(name, 0)
            cursors.append(
                CursorInfo(
                    partition=part.number, offset=offset, acked=[], end_offset=len(part.log),
                    lag=len(part.log) - offset, in_flight=0,
                )
            )  # fmt: skip
        here = [c for wire in self.wires for c in wire.consumers.values() if c.subscription == name]
        return SubscriptionInfo(
            topic=TOPIC, subscription=name, mode="shared", start="earliest",  # type: ignore[arg-type]
            consumers=sorted(c.name for c in here), cursors=cursors, lag=sum(cursor.lag for cursor in cursors),
        )  # fmt: skip

    # Consumers

    def _subscribe(self, wire: Wire, frame: Subscribe) -> None:
        own = [at for at in self.view if at.broker_id == self.name]
        if not self.is_cut_off:
            parts = self.cluster.parts
            own = [p.placement() for p in parts if p.owner == self.name and p.state is TopicState.ACTIVE]
        if not own:
            self.own(0)
            raise NotOwner(topic=TOPIC, partition=0)
        others = [c for w in self.wires for c in w.consumers.values() if c.subscription == frame.subscription]
        for other in others:
            if other.name != frame.name and frame.kind == "exclusive":
                raise SubscriptionBusy(topic=TOPIC, subscription=frame.subscription, reason="somebody is there")
            if other.name == frame.name:
                del other.wire.consumers[other.handle]
        wire.consumers[frame.consumer] = Consumer(wire, frame)
        wire.answer(frame, Subscribed(is_reliable=True))
        self.cluster.dispatch()

    def _settle(self, wire: Wire, frame: AckRecords | NackRecords) -> None:
        consumer = wire.consumers.get(frame.consumer)
        if consumer is None:
            raise ConsumerNotFound(consumer=frame.consumer)
        part = self.cluster.parts[frame.partition]
        if self.is_cut_off:
            raise MetadataFailed(path="etcd", cause=OSError("no answer"))
        if part.owner != self.name:
            raise NotServing(reason="the partition has another owner")
        held = consumer.held.get(frame.partition, set())
        offsets = {offset for start, end in frame.ranges for offset in range(start, end)} & held
        held -= offsets
        part.acked.setdefault(consumer.subscription, set()).update(offsets)
        wire.answer(frame, len(offsets))

    def release(self, error: SulinaError) -> None:
        """A partition is gone: consumers are let go."""
        if self.is_cut_off:
            return
        for wire in list(self.wires):
            for handle in list(wire.consumers):
                del wire.consumers[handle]
                wire.push(Detached(handle, error.code, str(error), error.details()))


class FakeCluster:
    """Brokers `a`, `b`, `c`, …, and one topic whose partitions they own."""

    def __init__(self, brokers: int = 3, partitions: int = 3, seed: int = 0, latency: float = 0.002) -> None:
        self.rng = random.Random(seed)
        self.settings = TopicSettings(partitions=partitions)
        self.parts = [Part(number) for number in range(partitions)]
        self.brokers = {name: FakeBroker(self, name) for name in "abcdefgh"[:brokers]}
        self.unloads: dict[int, UnloadInfo] = {}
        self.lease_seconds = 3.0
        self.view_seconds = 0.01  # how far brokers are behind
        self.lease_faults = 0.0
        self.has_runs = True
        self.odd_urls: list[str] = []  # that are told as those of brokers
        self._latency = latency
        self._told = 0
        self._tasks: set[asyncio.Task[None]] = set()
        for part in self.parts:
            part.owner, part.epoch, part.state = list(self.brokers)[part.number % brokers], 1, TopicState.ACTIVE
        self.tell(at_once=True)

    def client(self, options: ClientOptions | None = None, *, brokers: str = "a", seed: int = 0) -> Client:
        return Client(
            options=options, url=",".join(url_of(name) for name in brokers), rng=random.Random(seed), reach=self.reach
        )

    def reach(self, url: str) -> Callable[[], Any]:
        broker = self.brokers.get(url.removeprefix("http://"))
        if broker is None:
            raise InvalidSettings(f"{url} is none of ours")
        return broker.connect

    def latency(self) -> float:
        return self.rng.uniform(0, 2 * self._latency)

    def later(self, do: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_later(self.latency(), do)

    def calls(self) -> Counter[str]:
        return sum((broker.calls() for broker in self.brokers.values()), Counter())

    def tell(self, *, at_once: bool = False) -> None:
        """Everybody hears how things are, sooner or later."""
        self._told += 1
        placements = [part.placement() for part in self.parts]
        for broker in self.brokers.values():
            if at_once:
                self._tell(broker, self._told, placements)
            else:
                seconds = self.rng.uniform(0, self.view_seconds)
                asyncio.get_running_loop().call_later(seconds, self._tell, broker, self._told, placements)

    def _tell(self, broker: FakeBroker, told: int, placements: list[PartitionPlacement]) -> None:
        if not broker.is_cut_off and told > broker.told:
            broker.told, broker.view = told, placements

    def assign(self, number: int, to: str | None, state: TopicState = TopicState.ACTIVE) -> None:
        """Change the owner; the former one lets its consumers go."""
        part, former = self.parts[number], self.parts[number].owner
        part.owner, part.state = to, state if to is not None else TopicState.CLOSED
        part.waits_for = None
        if to is not None:
            part.epoch += 1
        self.tell()
        for go_on in part.waiting:
            go_on()
        part.waiting = []
        if former is not None and former != to:
            at = part.placement()
            self.brokers[former].release(NotOwner(topic=TOPIC, partition=number, owner=at.broker_id, url=at.url))
        self.dispatch()

    async def move(self, number: int, to: str, pause_seconds: float = 0.05) -> None:
        """As an unload does: drain, let go, assign."""
        self.parts[number].state = TopicState.DRAINING
        self.tell()
        await asyncio.sleep(pause_seconds)
        self.assign(number, None)
        await asyncio.sleep(pause_seconds)
        self.assign(number, to)

    async def fail_over(self, broker: str) -> None:
        """Its lease runs out; others take what it had."""
        await asyncio.sleep(self.lease_seconds)
        for part in self.parts:
            if part.owner == broker:
                well = [each for each in self.brokers.values() if not (each.is_down or each.is_hung or each.is_cut_off)]
                others = [each.name for each in well]
                self.assign(part.number, self.rng.choice(others))

    def unload(self, number: int | None, to: str | None) -> list[UnloadInfo]:
        chosen = [part for part in self.parts if number in (None, part.number) and part.owner != to]
        for part in chosen:
            goal = to or self.rng.choice([name for name in self.brokers if name != part.owner])
            info = UnloadInfo(
                topic=TOPIC, partition=part.number, step="requested", from_broker=part.owner, to_broker=to
            )
            self.unloads[part.number] = info
            task = asyncio.create_task(self._unload(part.number, goal))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return [self.unloads[part.number] for part in chosen]

    async def _unload(self, number: int, to: str) -> None:
        await self.move(number, to, 0.5)
        del self.unloads[number]

    def dispatch(self) -> None:
        """Send every consumer what its credit allows, in order."""
        for broker in self.brokers.values():
            if broker.is_hung or broker.is_down:
                continue
            for wire in list(broker.wires):
                for consumer in list(wire.consumers.values()):
                    for part in self.parts:
                        if part.owner == broker.name and part.state is TopicState.ACTIVE:
                            self._dispatch(broker, consumer, part)

    def _dispatch(self, broker: FakeBroker, consumer: Consumer, part: Part) -> None:
        others = [c for w in broker.wires for c in w.consumers.values() if c.subscription == consumer.subscription]
        if others[0] is not consumer:  # the first has it all
            return
        while consumer.credit > 0:
            start = part.next_unacked(consumer.subscription, consumer.positions.get(part.number, 0))
            end = start
            acked = part.acked[consumer.subscription]
            while end < len(part.log) and end not in acked and end - start < min(BATCH, consumer.credit):
                end += 1
            consumer.positions[part.number] = end
            if start == end:
                return
            consumer.credit -= end - start
            consumer.held.setdefault(part.number, set()).update(range(start, end))
            data = memoryview(encode(part.log[start:end], base_offset=start))
            consumer.wire.push(Deliver(consumer.handle, part.number, 1, data, [(start, end)]))

"""A node by script: it does what a test tells it, over connections that can be cut. Frames pass as bytes."""

import asyncio
import itertools
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from sulina.client import Client, ClientOptions
from sulina.core.records.batch import parse_header
from sulina.core.records.record import StoredRecord, decode, encode
from sulina.core.topic import Ack, DeliveryGuarantee, TopicSettings, resolved
from sulina.errors import Disconnected, SulinaError, TopicNotFound
from sulina.wire.frames import (
    AckRecords,
    Answer,
    Call,
    Deliver,
    Detach,
    Detached,
    Failed,
    FromClient,
    FromNode,
    Join,
    Listen,
    NackRecords,
    Publish,
    Subscribe,
    Unlisten,
    decode_from_client,
    decode_from_node,
    encode_frame,
)
from sulina.wire.messages import (
    JoinedTopic,
    PartitionPlacement,
    Placement,
    Published,
    Subscribed,
    TopicInfo,
    TopicState,
)

URL = "http://fake"
TOPIC = "/default/orders"
F = TypeVar("F", bound=FromClient)
Script = Callable[["FakeConnection", Any], object]


def origin_of(frame: Publish) -> tuple[int, int]:
    """Producer id and sequence; -1 where a batch has none."""
    header = parse_header(frame.data)
    return header.producer_id, header.base_sequence


def identity_of(frame: Publish) -> str | None:
    """What a log knows a publish by."""
    producer, sequence = origin_of(frame)
    return frame.txn_id or (f"{producer}:{sequence}" if producer >= 0 else None)


class FakeConnection:
    """A `Connection`, from both sides."""

    def __init__(self, node: "FakeNode") -> None:
        self.node = node
        self.is_cut = False
        self.is_closed = False
        self._inbox: asyncio.Queue[bytes | None] = asyncio.Queue()

    # The client's side

    async def send(self, frame: FromClient) -> None:
        data = encode_frame(frame)
        if self.is_cut:
            raise Disconnected(url=URL, reason="cut")
        await self.node.open_gate.wait()
        self.node.take(self, decode_from_client(data))

    async def receive(self) -> FromNode:
        data = await self._inbox.get()
        if data is None:
            raise Disconnected(url=URL, reason="cut")
        return decode_from_node(data)

    async def close(self) -> None:
        self.is_closed = True

    # The node's side

    def push(self, frame: FromNode) -> None:
        self.push_bytes(encode_frame(frame))

    def push_bytes(self, data: bytes) -> None:
        self._inbox.put_nowait(data)

    def answer(self, request: Any, result: Any = None) -> None:
        if request.id:
            self.push(Answer(request.id, result))

    def refuse(self, request: Any, error: SulinaError) -> None:
        self.push(Failed(request.id, error.code, str(error), error.details()))

    def deliver(
        self, consumer: int, start: int, end: int, *, partition: int = 0, attempt: int = 1,
        ranges: list[tuple[int, int]] | None = None, epochs: Mapping[int, int] | None = None,
    ) -> None:  # fmt: skip
        """Records whose values are their offsets; `epochs` says from which offset on they are of which epoch."""
        starts = sorted({start, *(offset for offset in epochs or {} if start < offset < end)})
        data = b"".join(
            encode(
                [StoredRecord(str(offset).encode()) for offset in range(low, high)],
                base_offset=low,
                epoch=max([epoch for offset, epoch in (epochs or {}).items() if offset <= low], default=0),
            )
            for low, high in itertools.pairwise([*starts, end])
        )
        newest = max((epochs or {}).values(), default=-1)
        self.push(Deliver(consumer, partition, attempt, memoryview(data), ranges or [(start, end)], newest))

    def detach(self, consumer: int, error: SulinaError) -> None:
        self.push(Detached(consumer, error.code, str(error), error.details()))

    def cut(self) -> None:
        """The connection is lost, for both."""
        self.is_cut = True
        self._inbox.put_nowait(None)


class FakeNode:
    """Frames with a script are answered by it; the rest wait for `asked`."""

    def __init__(self) -> None:
        self.connections: list[FakeConnection] = []
        self.refusals: deque[SulinaError] = deque()  # of the next attempts to connect
        self.connected_at: list[float] = []  # attempts, by the loop's time
        self.frames: list[FromClient] = []
        self.topics: dict[str, TopicSettings] = {TOPIC: TopicSettings()}  # other settings are another topic
        self.scripts: dict[type, Script] = {Call: self.answer_call}
        self.open_gate = asyncio.Event()  # closed: the client feels back-pressure
        self.open_gate.set()
        self._waiting: list[FromClient] = []
        self._origins: dict[int, FakeConnection] = {}
        self._changed = asyncio.Event()
        self.log: dict[int, list[StoredRecord]] = {}

    def client(self, options: ClientOptions, seed: int = 0) -> Client:
        return Client(self.connect, options=options, url=URL, rng=random.Random(seed))

    async def connect(self) -> FakeConnection:
        self.connected_at.append(asyncio.get_running_loop().time())
        if self.refusals:
            raise self.refusals.popleft()
        connection = FakeConnection(self)
        self.connections.append(connection)
        self._changed.set()
        return connection

    @property
    def connection(self) -> FakeConnection:
        """The newest."""
        return self.connections[-1]

    def answer(self, request: Any, result: Any = None) -> None:
        """Over the connection that the request came by."""
        self._origins[request.id].answer(request, result)

    def refuse(self, request: Any, error: SulinaError) -> None:
        self._origins[request.id].refuse(request, error)

    def take(self, connection: FakeConnection, frame: FromClient) -> None:
        self.frames.append(frame)
        self._origins[getattr(frame, "id", 0)] = connection
        self._changed.set()
        script = self.scripts.get(type(frame))
        if script is not None:
            script(connection, frame)
        else:
            self._waiting.append(frame)

    def sent(self, kind: type[F]) -> list[F]:
        """All frames of a kind that have come so far."""
        return [frame for frame in self.frames if isinstance(frame, kind)]

    def called(self) -> Counter[str]:
        """How often what was called so far."""
        return Counter(call.method for call in self.sent(Call))

    async def asked(self, kind: type[F]) -> F:
        """The next frame of a kind that no script has answered."""
        while True:
            for frame in self._waiting:
                if isinstance(frame, kind):
                    self._waiting.remove(frame)
                    return frame
            self._changed.clear()
            await self._changed.wait()

    async def wait_sent(self, kind: type[FromClient], count: int) -> None:
        """Return when so many frames of a kind have come, with a script or without."""
        while len(self.sent(kind)) < count:
            self._changed.clear()
            await self._changed.wait()

    # Scripts

    def append_publishes(self) -> None:
        """Answer publishes as a log does: once for each txn_id, and for each number of a producer."""
        answers: dict[tuple[int, str], Published] = {}

        def publish(connection: FakeConnection, frame: Publish) -> None:
            partition = frame.partition or 0
            identity = identity_of(frame)
            known = answers.get((partition, identity or ""))
            if known is None:
                log = self.log.setdefault(partition, [])
                records = decode(frame.data)
                known = published(partition, base_offset=len(log), count=len(records))
                log += records
                if identity is not None:
                    answers[partition, identity] = known
            connection.answer(frame, known)

        self.scripts[Publish] = publish

    def attach_consumers(self) -> None:
        """Say yes to every consumer, and goodbye to those that leave."""
        self.scripts[Subscribe] = self._subscribe
        self.scripts[Detach] = lambda connection, frame: connection.answer(frame)

    def join_subscribers(self, end: int = 0) -> None:
        """Say yes to every subscriber, where it wants to begin, or at the end; and to every listener."""

        def join(connection: FakeConnection, frame: Join) -> None:
            settings = self.topics.get(frame.topic)
            if settings is None:
                connection.refuse(frame, TopicNotFound(topic=frame.topic))
                return
            is_reliable = settings.delivery == DeliveryGuarantee.RELIABLE
            positions = {number: frame.positions.get(number, end) for number in range(settings.partitions)}
            connection.answer(frame, JoinedTopic(is_reliable=is_reliable, positions=positions if is_reliable else {}))

        self.scripts[Join] = join
        for kind in (Detach, Listen, Unlisten):
            self.scripts[kind] = lambda connection, frame: connection.answer(frame)

    def settle_records(self) -> None:
        """Take acks and nacks as they come: the consumer held all of it."""

        def settle(connection: FakeConnection, frame: AckRecords | NackRecords) -> None:
            connection.answer(frame, sum(end - start for start, end in frame.ranges))

        self.scripts[AckRecords] = self.scripts[NackRecords] = settle

    def _subscribe(self, connection: FakeConnection, frame: Subscribe) -> None:
        settings = self.topics.get(frame.topic)
        if settings is None:
            connection.refuse(frame, TopicNotFound(topic=frame.topic))
        else:
            connection.answer(frame, Subscribed(is_reliable=settings.delivery == DeliveryGuarantee.RELIABLE))

    def answer_call(self, connection: FakeConnection, frame: Call) -> None:
        if frame.method not in ("topic", "placement"):
            self._waiting.append(frame)
            return
        topic = frame.arguments["topic"]
        settings = self.topics.get(topic)
        if settings is None:
            connection.refuse(frame, TopicNotFound(topic=topic))
        elif frame.method == "topic":
            connection.answer(frame, topic_info(topic, settings))
        else:
            connection.answer(frame, alone(topic, settings))


def topic_info(topic: str, settings: TopicSettings) -> TopicInfo:
    return TopicInfo(
        topic=topic,
        settings=settings,
        policy=resolved(settings.policy),
        schema_id=settings.value_schema.fingerprint,
        topic_id=f"id-{id(settings)}",
        state=TopicState.ACTIVE,
        subscriptions=[],
    )


def alone(topic: str, settings: TopicSettings) -> Placement:
    """Where a topic is that one node serves all of."""
    partitions = [
        PartitionPlacement(partition=number, state=TopicState.ACTIVE, broker_id="fake")
        for number in range(settings.partitions)
    ]
    return Placement(topic=topic, topic_id=topic_info(topic, settings).topic_id, partitions=partitions, brokers=[])


def published(partition: int = 0, *, base_offset: int = 0, count: int = 1, version: int = 0) -> Published:
    return Published(partition=partition, base_offset=base_offset, count=count, version=version, ack=Ack.LOCAL)


def values(records: Sequence[StoredRecord]) -> list[str]:
    return ["" if record.value is None else record.value.decode() for record in records]


def passing() -> TopicSettings:
    """A topic that keeps nothing."""
    return TopicSettings(delivery=DeliveryGuarantee.BEST_EFFORT)


def plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


def own_threads() -> set[threading.Thread]:
    """Return the threads of clients; libraries that other tests have loaded start and end some of their own."""
    return {thread for thread in threading.enumerate() if thread.name.startswith(("sulina", "asyncio"))}

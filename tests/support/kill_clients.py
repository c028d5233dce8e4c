"""Clients of a node that may be killed at any moment: they come back by themselves, and note what happens to them.

A publisher sends again, under the same txn_id, whatever was not answered. A consumer acks most of what it gets, some of
it later, some of it durably, nacks a little, and leaves now and then.
"""

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Protocol

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from sulina.core.delivery.members import SubscriptionKind
from sulina.core.records.record import StoredRecord, encode
from sulina.wire.frames import (
    AckRecords,
    AddCredit,
    Deliver,
    Detach,
    Detached,
    Failed,
    FromNode,
    NackRecords,
    Publish,
    Subscribe,
    decode_from_node,
    encode_frame,
)
from sulina.wire.frames import Answer as AnswerFrame
from sulina.wire.messages import Published
from tests.support.kill_history import (
    AckAnswered,
    AckSent,
    Answer,
    Delivered,
    Ended,
    Event,
    History,
    NackSent,
    Txn,
)
from tests.support.ledger import records_in

TOPIC = "/default/orders"
TOPIC_PATH = f"/v1/topics{TOPIC}"
PARTITIONS = 3
KEYS = [f"key-{number}".encode() for number in range(24)]
BATCH_RECORDS_MAX = 20
REQUEST_SECONDS = 15.0
REPEATED_SHARE = 0.1
REPEATABLE = 200  # of one publisher: those that were answered last
WINDOW = 12  # publishes of one connection that are under way
CREDIT_RECORDS = 120
IDLE_SECONDS = 0.05
BACKOFF_SECONDS_MAX = 0.15  # the node needs the processor to start

GONE = (OSError, EOFError, TimeoutError, WebSocketException)
LATER = {"not_serving", "draining", "queue_full"}  # codes of errors that pass


class World(Protocol):
    """What clients need to know."""

    history: History
    host: str
    is_ending: bool  # nothing new is published
    is_over: bool  # consumers leave
    under_way: set[str]  # txn_ids that were sent and are not answered

    def consumer_came(self) -> None:
        """A session has begun."""

    def consumer_went(self) -> None:
        """A session has ended."""


async def connected(world: World) -> ClientConnection:
    """One attempt; one of GONE."""
    return await connect(
        f"ws://{world.host}/v1/ws",
        compression=None,
        max_size=None,
        open_timeout=REQUEST_SECONDS,
        ping_interval=None,
        close_timeout=1.0,
        proxy=None,
    )


class Publisher:
    """What both kinds of publishers do."""

    def __init__(self, world: World, name: str, seed: int) -> None:
        self.world = world
        self.name = name
        self.rng = random.Random(f"{seed}/{name}")
        self._count = 0
        self._answered: deque[Txn] = deque(maxlen=REPEATABLE)

    def next_txn(self) -> Txn:
        """Something to send: into a given partition, by key, or anywhere."""
        rng = self.rng
        self._count += 1
        count = 1 if rng.random() < 0.3 else rng.randint(2, BATCH_RECORDS_MAX)
        style = rng.random()
        partition: int | None = None
        keys: list[bytes | None] = [None] * count
        if style < 0.4:
            partition = rng.randrange(PARTITIONS)
            keys = [rng.choice([*KEYS, None]) for _ in range(count)]
        elif style < 0.8:
            keys = [rng.choice(KEYS)] * count
        history = self.world.history
        txn = Txn.of(f"{self.name}-{self._count}", self.name, keys, partition=partition, at=history.now())
        history.txns[txn.txn_id] = txn
        self.world.under_way.add(txn.txn_id)
        return txn

    def answered(self, txn: Txn, published: Published) -> None:
        """It is durable."""
        assert published.base_offset is not None
        assert published.version is not None
        self.world.under_way.discard(txn.txn_id)
        at = self.world.history.now()
        place = published.partition, published.base_offset, published.count, published.version
        if not txn.answers:
            self._answered.append(txn)
        txn.answers.append(Answer(at, *place))

    def repeat(self) -> Txn | None:
        """Now and then something that was answered, perhaps in another life of the node: it gets the same answer."""
        return self.rng.choice(self._answered) if self._answered and self.rng.random() < REPEATED_SHARE else None

    def refused(self, txn: Txn, code: str, message: str) -> None:
        """It was not done, and may be later; or it should have been done."""
        txn.refusals += 1
        if code not in LATER:
            self.world.history.faults.append(f"{txn.txn_id} was refused: {code}, {message}")

    def given_up(self, txn: Txn) -> bool:
        """Whether nobody will ever know what became of it."""
        is_given_up = self.rng.random() < 0.05 and not txn.answers
        if is_given_up:
            self.world.under_way.discard(txn.txn_id)
        return is_given_up

    async def pause(self, seconds_max: float) -> None:
        """Others have their turn."""
        await asyncio.sleep(self.rng.uniform(0, seconds_max))


class HttpPublisher(Publisher):
    """One request at a time: as JSON, or as a record batch."""

    def __init__(self, world: World, name: str, seed: int, *, is_raw: bool = False) -> None:
        super().__init__(world, name, seed)
        self._is_raw = is_raw

    async def run(self) -> None:
        """Until the run is ending and the last publish is answered."""
        async with httpx.AsyncClient(base_url=f"http://{self.world.host}", timeout=REQUEST_SECONDS) as client:
            while not self.world.is_ending:
                txn = self.next_txn()
                await self.publish(client, txn)
                if (again := self.repeat()) is not None:
                    await self.publish(client, again)
                await self.pause(0.01)

    async def publish(self, client: httpx.AsyncClient, txn: Txn) -> None:
        """Send it until it is answered, or given up."""
        path = f"{TOPIC_PATH}/records" if txn.partition is None else f"{TOPIC_PATH}/partitions/{txn.partition}/records"
        headers, body = self._body(txn)
        while True:
            txn.sends += 1
            try:
                response = await client.post(path, content=body, headers=headers)
            except httpx.ConnectError:
                await self.pause(BACKOFF_SECONDS_MAX)
                continue
            except httpx.TransportError:
                txn.unknowns += 1
                if self.given_up(txn):
                    return
                continue
            if response.status_code == 200:
                self.answered(txn, msgspec.json.decode(response.content, type=Published))
                return
            problem = response.json()
            self.refused(txn, problem["code"], problem["detail"])
            if problem["code"] not in LATER:
                self.world.under_way.discard(txn.txn_id)
                return
            await self.pause(BACKOFF_SECONDS_MAX)

    def _body(self, txn: Txn) -> tuple[dict[str, str], bytes]:
        """Headers and content of the request."""
        if self._is_raw:
            return {"Content-Type": "application/vnd.sulina.batch", "Sulina-Txn-Id": txn.txn_id}, batch_of(txn)
        records = [
            {"key": None if key is None else key.decode(), "value": (value or b"").decode()}
            for key, value in txn.records
        ]
        return {"Content-Type": "application/json"}, msgspec.json.encode({"records": records, "txn_id": txn.txn_id})


class PipelinedPublisher(Publisher):
    """Many publishes under way over one WebSocket. After a new connection they are sent again, in their order."""

    def __init__(self, world: World, name: str, seed: int) -> None:
        super().__init__(world, name, seed)
        self._unanswered: list[Txn] = []

    async def run(self) -> None:
        """Until the run is ending and all is answered."""
        while not self.world.is_ending or self._unanswered:
            with contextlib.suppress(*GONE):
                socket = await connected(self.world)
                try:
                    await self._session(socket)
                finally:
                    await socket.close()
            await self.pause(BACKOFF_SECONDS_MAX)

    async def _session(self, socket: ClientConnection) -> None:
        sent: dict[int, Txn] = {}
        waiting, self._unanswered = [txn for txn in self._unanswered if not self.given_up(txn)], []
        try:
            while True:
                while len(sent) < WINDOW and (txn := self._next(waiting)) is not None:
                    await self._send(socket, txn, sent)
                if not sent:
                    return
                await self._receive(decode_from_node(await socket.recv(decode=False)), sent, waiting)
                await self.pause(0.005)
        finally:
            for txn in sent.values():
                txn.unknowns += 1
            lost = {txn.txn_id: txn for txn in sent.values() if not txn.answers}
            self._unanswered = [*lost.values(), *waiting]

    def _next(self, waiting: list[Txn]) -> Txn | None:
        if waiting:
            return waiting.pop(0)
        return None if self.world.is_ending else self.next_txn()

    async def _send(self, socket: ClientConnection, txn: Txn, sent: dict[int, Txn]) -> None:
        number = self.world.history.now()
        sent[number] = txn
        txn.sends += 1
        frame = Publish(number, TOPIC, memoryview(batch_of(txn)), partition=txn.partition, txn_id=txn.txn_id)
        await socket.send(encode_frame(frame))

    async def _receive(self, frame: FromNode, sent: dict[int, Txn], waiting: list[Txn]) -> None:
        match frame:
            case AnswerFrame():
                txn = sent.pop(frame.id)
                self.answered(txn, msgspec.convert(frame.result, Published))
                if (again := self.repeat()) is not None:
                    waiting.append(again)
            case Failed():
                txn = sent.pop(frame.id)
                self.refused(txn, frame.code, frame.message)
                if frame.code in LATER:
                    waiting.append(txn)
                else:
                    self.world.under_way.discard(txn.txn_id)
            case _:
                self.world.history.faults.append(f"{self.name} was sent {frame}")


def batch_of(txn: Txn) -> bytes:
    """The record batch of a publish. Sent again, it has another time, and is the same publish all the same."""
    now_ms = time.time_ns() // 1_000_000
    return bytes(encode([StoredRecord(value, key, now_ms) for key, value in txn.records]))


class Consumer:
    """One consumer of a subscription, which it makes if there is none."""

    def __init__(self, world: World, subscription: str, kind: SubscriptionKind, number: int, seed: int) -> None:
        self.world = world
        self.name = f"{subscription}-{number}"
        self._subscription = subscription
        self._kind = kind
        self._rng = random.Random(f"{seed}/{self.name}")
        self._events = world.history.events.setdefault(subscription, [])
        world.history.kinds[subscription] = kind

    async def run(self) -> None:
        """Until the run is over."""
        while not self.world.is_over:
            with contextlib.suppress(*GONE):
                async with self._attached() as attached:
                    while not self.world.is_over and await attached.step():
                        pass
            await asyncio.sleep(self._rng.uniform(0, BACKOFF_SECONDS_MAX))

    @contextlib.asynccontextmanager
    async def _attached(self) -> AsyncIterator["Attached"]:
        socket = await connected(self.world)
        history = self.world.history
        attached = Attached(f"{self.name}/{history.now()}", socket, history, self._events, self._rng)
        self.world.consumer_came()
        try:
            frame = Subscribe(
                history.now(), 1, TOPIC, self._subscription, self._kind, "earliest", CREDIT_RECORDS, self.name
            )
            await socket.send(encode_frame(frame))
            yield attached
        finally:
            self._events.append(Ended(attached.session))
            self.world.consumer_went()
            await socket.close()


class Attached:
    """A consumer on one connection."""

    def __init__(
        self, session: str, socket: ClientConnection, history: History, events: list[Event], rng: random.Random
    ) -> None:
        self.session = session
        self._socket = socket
        self._history = history
        self._events = events
        self._rng = rng
        self._waiting: set[int] = set()  # acks that will be answered
        self._later: list[tuple[int, int]] = []  # to be acked: partition, offset
        self._leaving: int | None = None  # the id of the frame that says so

    async def step(self) -> bool:
        """One frame, or a moment without; False when the session is over."""
        frame: FromNode | None = None
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                data = await self._socket.recv(decode=False)
            frame = decode_from_node(data)
        except TimeoutError:
            await self._ack_later()
        match frame:
            case Deliver():
                if self._leaving is None:  # else it was on its way when the consumer left: others get it
                    self._note(frame)
                    await self._handle(frame)
                    return await self._stays()
            case AnswerFrame():
                if frame.id in self._waiting:
                    self._waiting.remove(frame.id)
                    self._events.append(AckAnswered(frame.id))
                return frame.id != self._leaving
            case Failed():
                if frame.code not in LATER:
                    self._history.faults.append(f"{self.session} was refused: {frame.code}, {frame.message}")
                return frame.id in self._waiting
            case Detached():
                if frame.code not in LATER:
                    self._history.faults.append(f"{self.session} was let go: {frame.code}, {frame.message}")
                return False
        return True

    def _note(self, frame: Deliver) -> None:
        offsets = [offset for start, end in frame.ranges for offset in range(start, end)]
        records = {record.offset: record for record in records_in(memoryview(frame.data))}
        for offset in offsets:
            record = records.get(offset)
            if record is None:
                self._history.faults.append(f"{self.session}: offset {offset} was delivered without its batch")
            else:
                self._history.saw((frame.partition, offset), (record.key, record.value))
        self._events.append(Delivered(self.session, frame.partition, frame.attempt, tuple(offsets)))

    async def _handle(self, frame: Deliver) -> None:
        partition = frame.partition
        offsets = [offset for start, end in frame.ranges for offset in range(start, end)]
        roll = self._rng.random()
        if roll < 0.04:
            nacked = [offset for offset in offsets if self._rng.random() < 0.5] or offsets
            offsets = sorted(set(offsets) - set(nacked))
            self._events.append(NackSent(self.session, partition, nacked))
            delay_ms = self._rng.choice([0, 20, 150])
            await self._socket.send(encode_frame(NackRecords(0, 1, partition, ranges_of(nacked), delay_ms)))
        elif roll < 0.3:
            later = [offset for offset in offsets if self._rng.random() < 0.3]
            offsets = sorted(set(offsets) - set(later))
            self._later += [(partition, offset) for offset in later]
        await self._ack(partition, offsets)
        count = sum(end - start for start, end in frame.ranges)
        await self._socket.send(encode_frame(AddCredit(1, count)))
        if self._rng.random() < 0.2:
            await self._ack_later()

    async def _ack_later(self) -> None:
        later, self._later = self._later, []
        for partition in sorted({partition for partition, _ in later}):
            await self._ack(partition, sorted(offset for p, offset in later if p == partition))

    async def _ack(self, partition: int, offsets: Sequence[int]) -> None:
        if not offsets:
            return
        number = self._history.now() if self._rng.random() < 0.4 else 0
        if number:
            self._waiting.add(number)
        self._events.append(AckSent(self.session, partition, tuple(offsets), number))
        await self._socket.send(encode_frame(AckRecords(number, 1, partition, ranges_of(offsets))))

    async def _stays(self) -> bool:
        """Now and then it leaves: with a word, or without."""
        roll = self._rng.random()
        if roll < 0.01:
            self._events.append(Ended(self.session))
            self._leaving = self._history.now()
            await self._socket.send(encode_frame(Detach(self._leaving, 1)))
        elif roll < 0.02:
            self._events.append(Ended(self.session))
            self._socket.transport.abort()
            return False
        return True


def ranges_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Half-open, of sorted offsets."""
    ranges: list[tuple[int, int]] = []
    for offset in offsets:
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return ranges

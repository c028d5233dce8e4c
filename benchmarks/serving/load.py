"""The load, in a process of its own: it is told what to do by lines of JSON, and answers with what it measured.

Everything is prebuilt; of an answer only what is needed is looked at. A load says how much of a core it took itself.
"""

import asyncio
import gc
import json
import random
import string
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import uvloop

from benchmarks.measure import percentile
from benchmarks.serving.raw_websocket import RawWebSocket, message
from benchmarks.serving.typed_values import typed_values
from sulina.core.records.rows import encode_rows
from sulina.wire.frames import AckRecords, AddCredit, Answer, Deliver, FromNode, Publish, Subscribe, encode_frame

VALUE_BYTES = 100
CREDIT = 200_000
NOBODY_ANSWERS_SECONDS = 60


def values(count: int) -> list[bytes]:
    """The same ones each time."""
    rng = random.Random(42)
    alphabet = (string.ascii_letters + string.digits).encode()
    return [bytes(rng.choices(alphabet, k=VALUE_BYTES)) for _ in range(count)]


@contextmanager
def measured(result: dict[str, Any]) -> Iterator[None]:
    """Wall clock, and the share of a core that this process took."""
    gc.collect()
    gc.freeze()
    started, cpu = time.perf_counter(), time.process_time()
    yield
    result["seconds"] = time.perf_counter() - started
    result["cores"] = (time.process_time() - cpu) / result["seconds"]


# HTTP


class HttpConnection(asyncio.Protocol):
    """Asks again as soon as it is answered, until it is told to stop."""

    transport: asyncio.Transport

    def __init__(self, request: bytes, seconds: list[float]) -> None:
        self._request = request
        self._seconds = seconds
        self._buffer = b""
        self._asked_at = 0.0
        self.is_stopping = False
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It waits until it is told to begin."""
        self.transport = cast(asyncio.Transport, transport)

    def ask(self) -> None:
        """The one request that there is."""
        self._asked_at = time.perf_counter()
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Nearly always a whole answer."""
        if self._buffer:
            data = self._buffer + data
        head = data.find(b"\r\n\r\n")
        length = data.find(b"content-length: ", 0, head)
        if head < 0 or len(data) < head + 4 + int(data[length + 16 : data.find(b"\r", length)]):
            self._buffer = data
            return
        self._buffer = b""
        self._seconds.append(time.perf_counter() - self._asked_at)
        if data[9:12] != b"200":
            self.stopped.set_exception(ConnectionError(f"the server answered {data!r}"))
        elif self.is_stopping:
            self.stopped.set_result(None)
        else:
            self.ask()

    def connection_lost(self, error: Exception | None) -> None:
        """A server must not close."""
        if not self.stopped.done():
            self.stopped.set_exception(error or ConnectionResetError("the server closed the connection"))


async def http(*, port: int, path: str, batch: int, connections: int, seconds: float) -> dict[str, Any]:
    """Publish JSON over keep-alive connections, each with one request under way."""
    body = json.dumps({"records": [{"value": value.decode()} for value in values(batch)]}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    loop = asyncio.get_running_loop()
    times: list[float] = []
    opened = [
        await loop.create_connection(lambda: HttpConnection(request, times), "127.0.0.1", port)
        for _ in range(connections)
    ]
    protocols = [protocol for _, protocol in opened]
    result: dict[str, Any] = {}
    with measured(result):
        for protocol in protocols:
            protocol.ask()
        await asyncio.sleep(seconds)
        answers = len(times)
    for protocol in protocols:
        protocol.is_stopping = True
    async with asyncio.timeout(NOBODY_ANSWERS_SECONDS):
        await asyncio.gather(*(protocol.stopped for protocol in protocols))
    for protocol in protocols:
        protocol.transport.abort()
    result["rate"] = answers / result["seconds"]
    result["p50_ms"], result["p99_ms"] = (percentile(times, percent) * 1e3 for percent in (50, 99))
    return result


# WebSocket


class Pipeline:
    """Publishes over one connection, so many batches under way, until it is told to stop or has sent them all."""

    def __init__(
        self, topic: str, batch: int, window: int, total: int | None = None, *, kind: str | None = None
    ) -> None:
        given = values(batch) if kind is None else typed_values(kind, batch)
        data = memoryview(encode_rows(given, None, 1_700_000_000_000))
        self._frames = [message(encode_frame(Publish(number, topic, data, 0))) for number in range(window)]
        self._batch = batch
        self._left = total
        self._under_way = 0
        self.records = 0  # that were acked
        self.stopped = asyncio.Event()
        self.is_stopping = False

    async def start(self, port: int) -> None:
        """Fill the pipeline."""
        self._connection = await RawWebSocket.connect("127.0.0.1", port, self._answered)
        for number in range(len(self._frames)):
            self._send(number)

    async def stop(self) -> None:
        """Return when everything is acked."""
        self.is_stopping = True
        await self.wait()

    async def wait(self) -> None:
        """Return when it has nothing more to do."""
        async with asyncio.timeout(NOBODY_ANSWERS_SECONDS):
            await self.stopped.wait()
        await self._connection.close()

    def _send(self, number: int) -> None:
        if self._left is not None:
            if self._left <= 0:
                self.is_stopping = True
                return
            self._left -= self._batch
        self._under_way += 1
        self._connection.transport.write(self._frames[number])

    def _answered(self, frame: FromNode) -> None:
        assert isinstance(frame, Answer), frame
        self.records += self._batch
        self._under_way -= 1
        if not self.is_stopping:
            self._send(frame.id)
        if self.is_stopping and not self._under_way:
            self.stopped.set()


class Counter:
    """A consumer that counts and acks what it gets, and asks for more."""

    def __init__(self, topic: str, subscription: str, start: str, on_records: Callable[[int], None]) -> None:
        self._subscribe = Subscribe(1, 1, topic, subscription, start=start, credit=CREDIT)
        self._on_records = on_records
        self.is_attached = asyncio.Event()
        self.records = 0
        self._taken = 0

    async def start(self, port: int) -> None:
        """Return when it is attached."""
        self._connection = await RawWebSocket.connect("127.0.0.1", port, self._take)
        self._connection.send(self._subscribe)
        await self.is_attached.wait()

    async def stop(self) -> None:
        """Leave."""
        await self._connection.close()

    def _take(self, frame: FromNode) -> None:
        if not isinstance(frame, Deliver):
            assert isinstance(frame, Answer), frame
            self.is_attached.set()
            return
        count = sum(end - start for start, end in frame.ranges)
        self.records += count
        self._taken += count
        self._connection.send(AckRecords(0, 1, frame.partition, frame.ranges))
        if self._taken >= CREDIT // 4:
            self._connection.send(AddCredit(1, self._taken))
            self._taken = 0
        self._on_records(count)


async def publish(
    *, port: int, topic: str, batch: int, connections: int, window: int, seconds: float, kind: str | None = None
) -> dict[str, Any]:
    """Pipelined publishes for some time; values are random text, or those of a kind of schema."""
    pipelines = [Pipeline(topic, batch, window, kind=kind) for _ in range(connections)]
    result: dict[str, Any] = {}
    with measured(result):
        for pipeline in pipelines:
            await pipeline.start(port)
        await asyncio.sleep(seconds)
        records = sum(pipeline.records for pipeline in pipelines)
    await asyncio.gather(*(pipeline.stop() for pipeline in pipelines))
    result["rate"] = records / result["seconds"]
    return result


async def fill(*, port: int, topic: str, batch: int, records: int) -> dict[str, Any]:
    """Publish so many records."""
    pipeline = Pipeline(topic, batch, 256, records)
    await pipeline.start(port)
    await pipeline.wait()
    return {"records": pipeline.records}


async def count(*, port: int, topic: str, records: int) -> dict[str, Any]:
    """Have so many stored records delivered."""
    done = asyncio.Event()

    def counted(_: int) -> None:
        if counter.records >= records:
            done.set()

    counter = Counter(topic, "counter", "earliest", counted)
    result: dict[str, Any] = {}
    with measured(result):
        async with asyncio.timeout(NOBODY_ANSWERS_SECONDS):
            await counter.start(port)
            await done.wait()
    await counter.stop()
    result["rate"] = counter.records / result["seconds"]
    return result


async def live(*, port: int, topic: str, batch: int, window: int, seconds: float) -> dict[str, Any]:
    """Publish as fast as the node takes it, and have it delivered at the same time."""
    counter = Counter(topic, "live", "latest", lambda _: None)
    pipeline = Pipeline(topic, batch, window)
    await counter.start(port)
    result: dict[str, Any] = {}
    with measured(result):
        await pipeline.start(port)
        await asyncio.sleep(seconds)
        result["rate"], result["publish_rate"] = counter.records / seconds, pipeline.records / seconds
    await pipeline.stop()
    await counter.stop()
    return result


async def latency(*, port: int, topic: str, rate: float, seconds: float) -> dict[str, Any]:
    """Publish one record at a time, so many a second; how long each takes until another connection has it."""
    total = int(rate * seconds)
    done = asyncio.Event()
    sent: deque[float] = deque()
    times: list[float] = []
    acks: list[float] = []

    def received(count: int) -> None:
        now = time.perf_counter()
        times.extend(now - sent.popleft() for _ in range(count))
        if len(times) == len(acks) == total:
            done.set()

    def acked(frame: FromNode) -> None:
        assert isinstance(frame, Answer), frame
        acks.append(time.perf_counter() - sent_at[frame.id])
        if len(times) == len(acks) == total:
            done.set()

    counter = Counter(topic, "latency", "latest", received)
    await counter.start(port)
    sent_at: dict[int, float] = {}
    publisher = await RawWebSocket.connect("127.0.0.1", port, acked)
    data = memoryview(encode_rows(values(1), None, 1_700_000_000_000))
    result: dict[str, Any] = {}
    with measured(result):
        started = time.perf_counter()
        while len(sent_at) < total:
            due = min(int((time.perf_counter() - started) * rate) + 1, total)
            for number in range(len(sent_at), due):
                frame = message(encode_frame(Publish(number, topic, data, 0)))
                sent_at[number] = time.perf_counter()
                sent.append(sent_at[number])
                publisher.transport.write(frame)
            await asyncio.sleep(0.001)
        async with asyncio.timeout(NOBODY_ANSWERS_SECONDS):
            await done.wait()
    await publisher.close()
    await counter.stop()
    for percent in (50, 99):
        result[f"p{percent}_ms"] = percentile(times, percent) * 1e3
        result[f"ack_p{percent}_ms"] = percentile(acks, percent) * 1e3
    return result


class Crowd:
    """Subscribers that get nothing, until the process ends."""

    def __init__(self) -> None:
        self.subscribers: list[Counter] = []

    async def idle(self, *, port: int, topics: list[str]) -> dict[str, Any]:
        """One more for each of the topics."""
        result: dict[str, Any] = {}
        with measured(result):
            made = [Counter(topic, "idle", "latest", lambda _: None) for topic in topics]
            for first in range(0, len(made), 64):
                await asyncio.gather(*(counter.start(port) for counter in made[first : first + 64]))
        self.subscribers += made
        return result


async def main() -> None:
    """One command a line, one answer a line."""
    crowd = Crowd()
    commands: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
        "http": http, "publish": publish, "fill": fill, "count": count, "live": live, "latency": latency,
        "idle": crowd.idle,
    }  # fmt: skip
    while line := await asyncio.to_thread(sys.stdin.readline):
        name, arguments = json.loads(line)
        print(json.dumps(await commands[name](**arguments)), flush=True)


if __name__ == "__main__":
    uvloop.run(main())

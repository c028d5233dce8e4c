"""A well-behaved client that goes on publishing and receiving while others misbehave, and tells how it fared."""

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
from websockets.asyncio.client import ClientConnection, connect

from sulina.core.delivery.members import SubscriptionKind
from sulina.core.records.rows import decode_rows
from sulina.wire.frames import (
    AckRecords,
    AddCredit,
    Answer,
    Deliver,
    FromClient,
    Subscribe,
    decode_from_node,
    encode_frame,
)
from tests.support.serving import Serving

TOPIC = "witness"
PACE_SECONDS = 0.02
PATIENCE_SECONDS = 20.0  # for one record, before it counts as lost


@dataclass(slots=True)
class Witness:
    """What it saw, once it has stopped."""

    latencies: list[float] = field(default_factory=list)  # from publishing a record to having it, in seconds
    error: BaseException | None = None

    def check(self, *, records_min: int = 3, seconds_max: float = 10.0) -> None:
        """It was served all the time."""
        if self.error is not None:
            raise self.error
        assert len(self.latencies) >= records_min, f"only {len(self.latencies)} records went through"
        assert max(self.latencies) < seconds_max, f"a record took {max(self.latencies):.1f} s"


@contextlib.contextmanager
def witness(node: Serving) -> Iterator[Witness]:
    """A witness in a thread of its own, for the time of a `with`; it has had its first record when the body begins."""
    seen = Witness()
    begun, stop = threading.Event(), threading.Event()

    def work() -> None:
        try:
            asyncio.run(_work(node, seen, begun, stop))
        except BaseException as error:  # noqa: BLE001 - told by `check`
            seen.error = error
        finally:
            begun.set()

    thread = threading.Thread(target=work, name="witness")
    thread.start()
    begun.wait(PATIENCE_SECONDS)
    try:
        yield seen
    finally:
        stop.set()
        thread.join(3 * PATIENCE_SECONDS)
    assert not thread.is_alive(), "the witness hangs"
    seen.check()


async def _work(node: Serving, seen: Witness, begun: threading.Event, stop: threading.Event) -> None:
    name = uuid.uuid4().hex
    path = f"/v1/topics/default/{TOPIC}"
    async with httpx.AsyncClient(base_url=node.url, timeout=PATIENCE_SECONDS) as http:
        (await http.put(path)).raise_for_status()
        async with connect(node.websocket_url, max_size=None) as session:
            subscribe = Subscribe(
                1, 1, f"/default/{TOPIC}", name, kind=SubscriptionKind.EXCLUSIVE, start="latest", credit=100
            )
            await _send(session, subscribe)
            assert isinstance(await _receive(session), Answer)
            number = 0
            while not stop.is_set() or number < 3:
                value = f"{name}-{number}"
                started = asyncio.get_running_loop().time()
                answer = await http.post(f"{path}/records", json={"records": [{"value": value}]})
                assert answer.status_code == 200, answer.text
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await _delivered(session, value.encode())
                seen.latencies.append(asyncio.get_running_loop().time() - started)
                begun.set()
                number += 1
                await asyncio.sleep(PACE_SECONDS)
        (await http.delete(f"{path}/subscriptions/{name}", params={"force": "true"})).raise_for_status()


async def _delivered(session: ClientConnection, value: bytes) -> None:
    """Return when the record has come; it is acked, and so is everything before it."""
    while True:
        frame = await _receive(session)
        assert isinstance(frame, Deliver), frame
        values = [record.value for record in decode_rows(frame.data)]
        await _send(session, AckRecords(0, 1, frame.partition, frame.ranges))
        await _send(session, AddCredit(1, sum(end - start for start, end in frame.ranges)))
        if value in values:
            return


async def _send(session: ClientConnection, frame: FromClient) -> None:
    await session.send(encode_frame(frame))


async def _receive(session: ClientConnection) -> object:
    message = await session.recv()
    assert isinstance(message, bytes)
    return decode_from_node(message)

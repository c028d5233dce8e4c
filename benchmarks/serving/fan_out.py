"""A process of publishers or subscribers: it is told what to do by lines of JSON, and answers with what it measured.

Times are of the monotonic clock, which all processes of a machine share. No publisher runs further ahead of the
subscribers than it is told to: these write how much they have into a small shared file, and it looks there. So nobody
is measured by how much a server can hold for those who are slower than the publisher.
"""

import asyncio
import contextlib
import gc
import json
import mmap
import os
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import uvloop

from benchmarks.serving.pubsub_systems import Sulina, System, at_once, connected

VALUE_BYTES = 100
PROBE = b"probe"  # what is published until everybody has one; it counts for nothing
STALL_SECONDS = 20.0  # without a delivery: then no more is waited for
ROOM_SECONDS = 0.0005
STAMP = struct.Struct(">d")
COUNT = struct.Struct("Q")
SLOTS = 4  # processes with subscribers


class Participant:
    """One process. It is `open` for one measurement after the other."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._done = asyncio.Event()
        self._all_probed = asyncio.Event()

    async def open(self, *, system: str, urls: list[str], settings: dict[str, Any], progress: str, slot: int) -> None:
        """Ready to publish or to subscribe at these servers; the first is the publisher's."""
        self._system: System = await self._stack.enter_async_context(connected(system, urls[0], settings))
        self._urls = urls
        file = os.open(progress, os.O_RDWR)
        self._progress = self._stack.enter_context(mmap.mmap(file, SLOTS * COUNT.size))
        os.close(file)
        self._at = slot * COUNT.size
        COUNT.pack_into(self._progress, self._at, 0)
        self._deliveries, self._target, self._last_at = 0, sys.maxsize, 0.0
        self._subscribers = 0
        self._probed: set[int] = set()
        self._seconds: list[float] | None = None
        self._done.clear()
        self._all_probed.clear()
        gc.collect()
        gc.freeze()

    async def close(self) -> None:
        """Nothing is left of the measurement."""
        await self._stack.aclose()

    # Subscribers

    async def subscribe(self, *, topic: str, subscribers: int, connections: int, is_timed: bool) -> None:
        """So many, over so many connections, which are spread over the servers."""
        self._subscribers = subscribers
        if not subscribers:
            self._all_probed.set()
        self._seconds = [] if is_timed else None
        takes = [partial(self._take, index) for index in range(subscribers)]
        shares = [takes[number::connections] for number in range(min(connections, subscribers))]
        await at_once(
            partial(self._system.subscribe, self._urls[number % len(self._urls)], topic, share)
            for number, share in enumerate(shares)
        )

    async def probed(self, *, seconds: float) -> bool:
        """Whether everybody has something, after so long at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._all_probed.wait()
        return self._all_probed.is_set()

    async def wait(self, *, messages: int) -> dict[str, Any]:
        """Until each subscriber has so many, as far as their sum tells, or until nothing comes any more."""
        self._target = messages * self._subscribers
        while self._deliveries < self._target:
            before = self._deliveries
            self._done.clear()
            try:
                async with asyncio.timeout(STALL_SECONDS):
                    await self._done.wait()
            except TimeoutError:
                if self._deliveries == before:
                    break
        missing = max(self._target - self._deliveries, 0)
        return {"deliveries": self._deliveries, "missing": missing, "last_at": self._last_at, "seconds": self._seconds}

    def _take(self, index: int, payloads: Sequence[bytes]) -> None:
        count = 0
        now = time.monotonic()
        for payload in payloads:
            if len(payload) != VALUE_BYTES:
                self._probed.add(index)
                if len(self._probed) == self._subscribers:
                    self._all_probed.set()
                continue
            count += 1
            if self._seconds is not None:
                self._seconds.append(now - STAMP.unpack_from(payload)[0])
        if count:
            self._deliveries += count
            self._last_at = now
            COUNT.pack_into(self._progress, self._at, self._deliveries)
            if self._deliveries >= self._target:
                self._done.set()

    # Publishers

    async def create(self, *, topic: str) -> None:
        """For everybody."""
        await self._system.create(topic)

    async def probe(self, *, topic: str) -> None:
        """Something that counts for nothing."""
        await self._system.publish(topic, [PROBE])

    async def publish(
        self, *, topic: str, batch: int, batches: int, window: int, ahead: int, subscribers: int
    ) -> dict[str, Any]:
        """So many batches, `window` of them under way at a time, `ahead` of the subscribers at most."""
        payloads = [bytes(VALUE_BYTES)] * batch
        numbers = iter(range(1, batches + 1))

        async def work() -> None:
            for number in numbers:
                await self._room(number * batch, ahead=ahead * batch, subscribers=subscribers)
                await self._system.publish(topic, payloads)

        started_at = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(window):
                tasks.create_task(work())
        return {"started_at": started_at, "seconds": time.monotonic() - started_at}

    async def produce(self, *, topic: str, messages: int, batch: int, ahead: int, subscribers: int) -> dict[str, Any]:
        """One by one, through a batching producer."""
        assert isinstance(self._system, Sulina)
        room = partial(self._room, ahead=ahead * batch, subscribers=subscribers)
        started_at = time.monotonic()
        await self._system.produce(topic, bytes(VALUE_BYTES), messages, batch, room)
        return {"started_at": started_at, "seconds": time.monotonic() - started_at}

    async def pace(self, *, topic: str, rate: float, seconds: float) -> dict[str, Any]:
        """One message at a time, so many a second whatever becomes of those before; each says when it left."""
        started = time.monotonic()
        total = int(rate * seconds)
        async with asyncio.TaskGroup() as tasks:
            for number in range(total):
                due = started + number / rate
                await asyncio.sleep(max(due - time.monotonic(), 0))
                payload = STAMP.pack(time.monotonic()).ljust(VALUE_BYTES, b"\0")
                tasks.create_task(self._system.publish(topic, [payload]))
        return {"messages": total}

    async def one_by_one(self, *, topic: str, messages: int, subscribers: int) -> None:
        """Each when everybody has the one before: no two can travel together."""
        for number in range(1, messages + 1):
            await self._system.publish(topic, [bytes(VALUE_BYTES)])
            await self._room(number, ahead=0, subscribers=subscribers)

    async def _room(self, messages: int, *, ahead: int, subscribers: int) -> None:
        """Until publishing so many messages in all would not be too many. There is no event of another process to wait
        for: look again."""
        until = time.monotonic() + STALL_SECONDS
        while (messages - ahead) * subscribers > sum(struct.unpack(f"{SLOTS}Q", self._progress[:])):
            if time.monotonic() > until:
                raise TimeoutError(f"subscribers took too little of {messages} messages in {STALL_SECONDS} s")
            await asyncio.sleep(ROOM_SECONDS)


async def main() -> None:
    """One command a line, one answer a line."""
    participant = Participant()
    while line := await asyncio.to_thread(sys.stdin.readline):
        name, arguments = json.loads(line)
        command: Callable[..., Awaitable[object]] = getattr(participant, name)
        print(json.dumps(await command(**arguments)), flush=True)
    await participant.close()


if __name__ == "__main__":
    uvloop.run(main())

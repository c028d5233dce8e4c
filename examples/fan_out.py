"""One topic, many workers: each gets every message, one of them is slow, and nobody waits for it.

python examples/fan_out.py
python examples/fan_out.py --workers 20 --messages 5000 --url http://127.0.0.1:8080
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence

import sulina

TOPIC = "/default/fan-out"
BATCH = 100
SLOW_SECONDS = 0.01  # that the slow one takes for each batch


class Worker:
    """Counts what it is handed."""

    def __init__(self, name: str, messages: int, pause_seconds: float = 0.0) -> None:
        self.name = name
        self.taken = self.deliveries = 0
        self.seconds = 0.0
        self.done = asyncio.Event()
        self._messages = messages
        self._pause_seconds = pause_seconds
        self._started = time.monotonic()

    async def take(self, messages: Sequence[sulina.Message]) -> None:
        """Count a whole batch. Returning acks it; after raising, this worker gets it again later."""
        await asyncio.sleep(self._pause_seconds)
        self.taken += len(messages)
        self.deliveries += 1
        if self.taken >= self._messages:
            self.seconds = time.monotonic() - self._started
            self.done.set()


async def fan_out(url: str, count: int, messages: int) -> None:
    """Publish to all workers, and show what each of them got."""
    async with sulina.connect(url) as client:
        await client.admin.create_topic(TOPIC)
        workers = [Worker(f"worker-{number}", messages) for number in range(1, count)]
        workers.append(Worker("slow worker", messages, SLOW_SECONDS))
        subscribers = [
            await client.subscribe(TOPIC, worker.take, name=worker.name.replace(" ", "-"), batches=True)
            for worker in workers
        ]
        print(f"{count} workers are subscribed", flush=True)
        started = time.monotonic()
        for first in range(0, messages, BATCH):
            numbers = range(first, min(first + BATCH, messages))
            ack = await client.publish_batch(TOPIC, [{"number": number} for number in numbers])
            ack.raise_for_status()
        print(f"{messages:,} messages were accepted in {time.monotonic() - started:.2f} s")
        await asyncio.gather(*(worker.done.wait() for worker in workers))
        for worker in workers:
            rate = worker.taken / worker.seconds
            print(
                f"{worker.name:12} {worker.taken:8,} messages in {worker.deliveries:4} batches, "
                f"{worker.seconds:5.2f} s, {rate:9,.0f} a second"
            )
        print(f"in all {sum(worker.taken for worker in workers):,} deliveries")
        for subscriber in subscribers:
            await client.unsubscribe(TOPIC, subscriber)


def main() -> int:
    """Run, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--url", default="memory:", help="a node in this process, or http://HOST:PORT (default: memory:)"
    )
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--messages", type=int, default=2000)
    options = parser.parse_args()
    try:
        asyncio.run(fan_out(options.url, options.workers, options.messages))
    except sulina.SulinaError as error:
        print(f"{error} (is there a node? start one with: sulina serve)", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A consumer as anybody would write it, in a process of its own: takes messages with the Python client, and acks them.

`consume.py URL TOPIC START WARM UNTIL`: the clock starts after WARM records, as the client loads its kernels while it
works, and stops after UNTIL records more, or so many seconds when that ends in an `s`. Prints one line when it is
attached, and one with what it measured.
"""

import asyncio
import json
import sys
import time

import uvloop

import sulina

NOBODY_DELIVERS_SECONDS = 120


async def consume(url: str, topic: str, start: str, warm: str, until: str) -> dict[str, float]:
    """The rates before and after the clock started, and the share of a core that it took."""
    records_max = sys.maxsize if until.endswith("s") else int(until)
    seconds_max = float(until[:-1]) if until.endswith("s") else float("inf")
    records = cold = 0
    began = started = cpu = 0.0
    async with (
        asyncio.timeout(NOBODY_DELIVERS_SECONDS),
        sulina.connect(url) as client,
        client.consumer(topic, "client", start=start, credit=200_000) as consumer,
    ):
        print("attached", flush=True)
        async for messages in consumer.batches():
            now = time.perf_counter()
            began = began or now
            if records >= int(warm) and not started:
                started, cpu, cold = now, time.process_time(), records
            records += len(messages)
            for message in messages:
                consumer.ack_soon(message)
            if started and (records >= int(warm) + records_max or now - started >= seconds_max):
                break
    seconds = time.perf_counter() - started
    return {
        "rate": (records - cold) / seconds,
        "cores": (time.process_time() - cpu) / seconds,
        "cold_rate": cold / max(started - began, 1e-9),
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(consume(*sys.argv[1:]))))

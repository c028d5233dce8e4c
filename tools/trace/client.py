"""A client that tools/house_ways.py traces: it consumes, subscribes or publishes, and says so line by line.

It speaks both generations of the Python API: the one with `PubSub`, and the one with a single client. It uses what both
have: `connect`, a durable subscription that is iterated, `subscribe` with a handler, `publish`.
"""

import asyncio
import sys
from typing import Any

import sulina

ANY: Any = sulina  # half of the names are of another generation than the one that is checked


def say(word: str) -> None:
    """Tell the parent."""
    print(word, flush=True)


async def consume(url: str, topic: str) -> None:
    """Ack each message of a durable subscription."""
    async with ANY.connect(url) as client:
        attach = client.consumer if hasattr(client, "consumer") else client.subscribe
        async with attach(topic, "house") as messages:
            say("ready")
            async for message in messages:
                await (messages.ack(message) if hasattr(messages, "nack") else message.ack())
                say("done")


async def subscribe(url: str, topic: str) -> None:
    """Handle each message of a topic, at the node that is asked."""

    async def handle(_message: Any) -> None:
        say("done")

    async with _pubsub(url) as pubsub:
        await pubsub.subscribe(topic, handle)
        say("ready")
        await asyncio.Event().wait()


async def publish(url: str, topic: str) -> None:
    """Publish a message for each line of standard input."""
    async with _pubsub(url) as pubsub:
        say("ready")
        while line := await asyncio.to_thread(sys.stdin.readline):
            ack = await pubsub.publish(topic, {"line": line.strip()})
            say("done" if ack.is_accepted else f"rejected: {ack!r}")


def _pubsub(url: str) -> Any:
    return ANY.PubSub(url) if hasattr(sulina, "PubSub") else ANY.connect(url)


if __name__ == "__main__":
    asyncio.run({"consume": consume, "subscribe": subscribe, "publish": publish}[sys.argv[1]](*sys.argv[2:]))

"""Requests and replies over two topics: a request says where its reply goes, and by which id it is known.

python examples/request_reply.py                                          # both sides, in one process
python examples/request_reply.py server --url http://127.0.0.1:8080       # or each in a terminal of its own
python examples/request_reply.py client --url http://127.0.0.1:8080
"""

import argparse
import asyncio
import contextlib
import secrets
from typing import Any

import sulina

REQUESTS = "/default/sums"
REPLY_SECONDS = 10.0


def header(message: sulina.Message, name: str) -> str:
    """KeyError where there is none."""
    return (dict(message.headers)[name] or b"").decode()


async def serve(pubsub: sulina.PubSub) -> None:
    """Answer requests, for ever."""

    async def answer(request: sulina.Message) -> None:
        reply = {"sum": sum(request.payload["numbers"])}
        # Only who asked is subscribed to that topic. When it has gone meanwhile, the ack says that nobody is there.
        await pubsub.publish(
            header(request, "reply-to"), reply, headers={"correlation-id": header(request, "correlation-id")}
        )

    await pubsub.subscribe(REQUESTS, answer, name="server")
    print("the server waits for requests", flush=True)
    await asyncio.Event().wait()


class Requests:
    """Whoever asks. It has a topic of its own for replies, which keeps nothing."""

    def __init__(self, pubsub: sulina.PubSub) -> None:
        self._pubsub = pubsub
        self._replies = f"/default/replies-{secrets.token_hex(4)}"
        self._waiting: dict[str, asyncio.Future[Any]] = {}

    async def __aenter__(self) -> "Requests":
        await self._pubsub.admin.create_topic(self._replies, delivery="non_reliable")
        self._subscriber = await self._pubsub.subscribe(self._replies, self._replied, name="asker")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pubsub.unsubscribe(self._replies, self._subscriber)
        await self._pubsub.admin.delete_topic(self._replies)

    async def ask(self, numbers: list[int]) -> Any:
        """The reply. TimeoutError."""
        correlation_id = secrets.token_hex(8)
        reply = self._waiting[correlation_id] = asyncio.get_running_loop().create_future()
        try:
            headers = {"reply-to": self._replies, "correlation-id": correlation_id}
            ack = await self._pubsub.publish(REQUESTS, {"numbers": numbers}, headers=headers)
            ack.raise_for_status()
            async with asyncio.timeout(REPLY_SECONDS):
                return await reply
        finally:
            del self._waiting[correlation_id]

    async def _replied(self, message: sulina.Message) -> None:  # a plain function would run in another thread
        reply = self._waiting.get(header(message, "correlation-id"))
        if reply is not None and not reply.done():  # else: too late, or twice
            reply.set_result(message.payload)


async def ask(pubsub: sulina.PubSub) -> None:
    """Some requests, all under way together: replies may come in any order."""
    questions = [list(range(1, last + 1)) for last in (2, 4, 10, 100)]
    async with Requests(pubsub) as requests:
        replies = await asyncio.gather(*(requests.ask(numbers) for numbers in questions))
    for numbers, reply in zip(questions, replies, strict=True):
        print(f"the sum of 1 to {numbers[-1]} is {reply['sum']}", flush=True)


async def run(role: str, url: str) -> None:
    """One side, or both."""
    async with sulina.connect(url) as pubsub:
        await pubsub.admin.create_topic(REQUESTS)
        if role == "server":
            await serve(pubsub)
        elif role == "client":
            await ask(pubsub)
        else:
            server = asyncio.create_task(serve(pubsub))
            await ask(pubsub)
            server.cancel()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", nargs="?", choices=("both", "server", "client"), default="both")
    parser.add_argument(
        "--url", default="memory:", help="a node in this process, or http://HOST:PORT (default: memory:)"
    )
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(options.role, options.url))


if __name__ == "__main__":
    main()

"""Requests and replies over two topics: a request says where its reply goes, and by which id it is known.

python examples/request_reply.py                                          # both sides, in one process
python examples/request_reply.py server --url http://127.0.0.1:8080       # or each in a terminal of its own
python examples/request_reply.py client --url http://127.0.0.1:8080
"""

import argparse
import asyncio
import secrets
import sys
from typing import Any

import sulina

REQUESTS = "/default/sums"
REPLY_SECONDS = 5.0


class NoReply(Exception):
    """Nobody has answered a request."""


def header(message: sulina.Message, name: str) -> str:
    """Return the value of a header."""
    return (dict(message.headers)[name] or b"").decode()


async def serve(client: sulina.Client) -> None:
    """Answer requests, for ever."""

    async def answer(request: sulina.Message) -> None:
        reply = {"sum": sum(request.payload["numbers"])}
        ack = await client.publish(
            header(request, "reply-to"), reply, headers={"correlation-id": header(request, "correlation-id")}
        )
        if not ack.is_accepted:  # only the asker is subscribed to that topic, and it has gone meanwhile
            print(f"nobody took the reply: {ack.reason}")

    await client.subscribe(REQUESTS, answer, name="server")
    print("the server waits for requests", flush=True)
    await asyncio.Event().wait()


class Requests:
    """Asks, and has a best-effort topic of its own for the replies."""

    def __init__(self, client: sulina.Client) -> None:
        self._client = client
        self._replies = f"/default/replies-{secrets.token_hex(4)}"
        self._waiting: dict[str, asyncio.Future[Any]] = {}

    async def __aenter__(self) -> "Requests":
        await self._client.admin.create_topic(self._replies, delivery="non_reliable")
        self._subscriber = await self._client.subscribe(self._replies, self._replied, name="asker")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.unsubscribe(self._replies, self._subscriber)
        await self._client.admin.delete_topic(self._replies)

    async def ask(self, numbers: list[int]) -> Any:
        """Ask for a sum, and return the reply."""
        correlation_id = secrets.token_hex(8)
        reply = self._waiting[correlation_id] = asyncio.get_running_loop().create_future()
        try:
            headers = {"reply-to": self._replies, "correlation-id": correlation_id}
            ack = await self._client.publish(REQUESTS, {"numbers": numbers}, headers=headers)
            ack.raise_for_status()
            try:
                async with asyncio.timeout(REPLY_SECONDS):
                    return await reply
            except TimeoutError:
                raise NoReply(f"no reply within {REPLY_SECONDS:g} s") from None
        finally:
            del self._waiting[correlation_id]

    async def _replied(self, message: sulina.Message) -> None:  # a plain function would run in another thread
        reply = self._waiting.get(header(message, "correlation-id"))
        if reply is not None and not reply.done():  # else: too late, or twice
            reply.set_result(message.payload)


async def ask(client: sulina.Client) -> None:
    """Send some requests at once: replies may come in any order."""
    questions = [list(range(1, last + 1)) for last in (2, 4, 10, 100)]
    async with Requests(client) as requests:
        replies = await asyncio.gather(*(requests.ask(numbers) for numbers in questions))
    for numbers, reply in zip(questions, replies, strict=True):
        print(f"the sum of 1 to {numbers[-1]} is {reply['sum']}", flush=True)


async def run(role: str, url: str) -> None:
    """Run one side, or both."""
    async with sulina.connect(url) as client:
        await client.admin.create_topic(REQUESTS)
        if role == "server":
            await serve(client)
        elif role == "client":
            await ask(client)
        else:
            server = asyncio.create_task(serve(client))
            await ask(client)
            server.cancel()


def main() -> int:
    """Run, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", nargs="?", choices=("both", "server", "client"), default="both")
    parser.add_argument(
        "--url", default="memory:", help="a node in this process, or http://HOST:PORT (default: memory:)"
    )
    options = parser.parse_args()
    try:
        asyncio.run(run(options.role, options.url))
    except NoReply as error:
        print(f"{error}: is there a server? start one with: {sys.argv[0]} server --url {options.url}", file=sys.stderr)
        return 1
    except sulina.SulinaError as error:
        print(f"{error} (is there a node? start one with: sulina serve)", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

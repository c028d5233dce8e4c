"""A chat in terminals. With a node running (`sulina serve`), in one terminal and then in another:

    python examples/chat.py ada
    python examples/chat.py bob

Everybody is a subscriber of one topic and gets all that is said from then on. End with ctrl-D or ctrl-C.
"""

import argparse
import asyncio
import os
import secrets
import sys

import sulina

TOPIC = "/default/chat"


def lines_typed() -> asyncio.StreamReader:
    """Return the lines of standard input as they are typed. No thread waits for them, so ctrl-C ends at once."""
    lines, loop = asyncio.StreamReader(), asyncio.get_running_loop()

    def take() -> None:
        if data := os.read(0, 1 << 16):
            lines.feed_data(data)
        else:
            loop.remove_reader(0)
            lines.feed_eof()

    try:
        loop.add_reader(0, take)
    except PermissionError:  # a file: it has all its lines already
        lines.feed_data(sys.stdin.buffer.read())
        lines.feed_eof()
    return lines


async def chat(url: str, topic: str, name: str) -> None:
    """Chat until the end of standard input."""
    me = f"{name}-{secrets.token_hex(4)}"  # there may be two of that name

    def hear(message: sulina.Message) -> None:
        """Print what others say. Returning acks it."""
        said = message.payload
        if said["by"] != me:
            print(f"{said['name']} {said['text']}", flush=True)

    async with sulina.connect(url) as client:
        await client.admin.create_topic(topic)  # one that exists stays as it is
        subscriber = await client.subscribe(topic, hear, name=me)

        async def say(text: str) -> None:
            ack = await client.publish(topic, {"by": me, "name": name, "text": text}, key=name)
            if not ack.is_accepted:
                print(f"(nobody hears that: {ack.reason}, {ack.message})", file=sys.stderr)

        await say("has come")
        print(f"you are {name} in {topic}; end with ctrl-D", flush=True)
        typed = lines_typed()
        while line := await typed.readline():
            if text := line.decode().strip():
                await say(f"says: {text}")
        await say("has left")
        await client.unsubscribe(topic, subscriber)


def main() -> int:
    """Run, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="what others see")
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="of a node, or of several with commas between")
    parser.add_argument("--topic", default=TOPIC)
    options = parser.parse_args()
    try:
        asyncio.run(chat(options.url, options.topic, options.name))
    except sulina.SulinaError as error:
        print(f"{error} (is there a node? start one with: sulina serve)", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

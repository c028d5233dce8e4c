"""`sulina consume` and `sulina tail`: records of a topic, as they are or as they come."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators

from sulina.cli import records
from sulina.cli.records import Format, PrintableRecord
from sulina.cli.remote import HERE, Remote, topic_name
from sulina.cli.subscription import Mode
from sulina.core.log.position import Position
from sulina.errors import InvalidInput, NotReliable, SubscriptionNotFound

if TYPE_CHECKING:
    from sulina.client import Client, Reader

QUIET_SECONDS = 0.2  # after so long without a record, `--no-follow` looks whether there is one left

Positive = Annotated[int, Parameter(validator=validators.Number(gte=1))]


def consume(
    topic: str,
    /,
    *,
    start: Annotated[str, Parameter(show_default="earliest")] = "earliest",
    partition: Annotated[tuple[int, ...], Parameter(alias="-p", show_default=False)] = (),
    count: Annotated[Positive | None, Parameter(alias="-n")] = None,
    follow: Annotated[bool, Parameter(negative="--no-follow")] = True,
    subscription: Annotated[str | None, Parameter(alias="-s")] = None,
    mode: Annotated[Mode | None, Parameter(show_default="as it is, exclusive for a new one")] = None,
    format_: Annotated[Format, Parameter(name="--format")] = "text",
    remote: Remote = HERE,
) -> None:
    """Read a topic from some point on, or take part in a subscription.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    start
        earliest, latest, offset:N, version:N, timestamp:MS or timestamp:ISO; counts for a subscription that is new.
    partition
        Only this one; may be repeated. A subscription has all.
    count
        End after so many records.
    follow
        Wait for records to come; otherwise end where the topic ends.
    subscription
        Its name; made if there is none.
    mode
        Who among the consumers of the subscription gets a record.
    format_
        `text` to look at, `json` a line each, `raw` nothing but values.
    """
    name = topic_name(topic)
    start = str(Position.parse(start))
    if subscription and partition:
        raise InvalidInput("--partition is for readers; a subscription has all partitions")
    show = records.printer("json" if remote.json else format_)

    async def work(client: "Client") -> None:
        if subscription:
            return await _subscribe(client, name, subscription, mode, start, count, follow, show)
        reader = client.read(name, start=start, partitions=list(partition) or None, follow=follow)
        return await _print(reader, count, show)

    remote.run(work)


def tail(
    topic: str,
    /,
    *,
    lines: Annotated[int, Parameter(alias="-n", validator=validators.Number(gte=0))] = 10,
    follow: Annotated[bool, Parameter(negative="--no-follow")] = True,
    format_: Annotated[Format, Parameter(name="--format")] = "text",
    remote: Remote = HERE,
) -> None:
    """Show the newest records of a topic, then those that come.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    lines
        How many of those that are there.
    follow
        Wait for records to come.
    format_
        `text` to look at, `json` a line each, `raw` nothing but values.
    """
    name = topic_name(topic)
    show = records.printer("json" if remote.json else format_)

    async def work(client: "Client") -> None:
        ends: dict[int, int] = {}
        for newest in await _newest(client, name, lines, ends):
            show(newest)
        records.flush()
        if follow:
            await _follow(client, name, ends, show)

    remote.run(work)


async def _print(source: "Reader", count: int | None, show: Callable[[PrintableRecord], None]) -> None:
    """Every record of `source`, pushed out as they come."""
    left = count
    async with source as reader:
        while left != 0 and (taken := await reader.take(left)):
            for record in taken:
                show(record)
            records.flush()
            if left is not None:
                left -= len(taken)


async def _subscribe(
    client: "Client",
    topic: str,
    subscription: str,
    mode: Mode | None,
    start: str,
    count: int | None,
    follow: bool,
    show: Callable[[PrintableRecord], None],
) -> None:
    """Print, then ack: a record that was not printed is delivered again, to whoever comes next."""
    left = count
    credit = min(count or 1000, 1000)
    chosen: str = mode or "exclusive"
    if mode is None:
        with contextlib.suppress(SubscriptionNotFound, NotReliable):
            chosen = (await client.admin.subscription(topic, subscription)).mode
    async with client.consumer(topic, subscription, mode=chosen, start=start, credit=credit) as messages:
        while left != 0:
            try:
                async with asyncio.timeout(None if follow else QUIET_SECONDS):
                    taken = await messages.take(left)
            except TimeoutError:
                if await _is_drained(client, topic, subscription):
                    return
                continue
            for message in taken:
                show(message)
            records.flush()
            await messages.ack(*taken)
            if left is not None:
                left -= len(taken)


async def _is_drained(client: "Client", topic: str, subscription: str) -> bool:
    """Whether nothing is left that could come: what is not acked is with other consumers."""
    info = await client.admin.subscription(topic, subscription)
    return sum(cursor.lag - cursor.in_flight for cursor in info.cursors) <= 0


async def _newest(client: "Client", topic: str, lines: int, ends: dict[int, int]) -> list[PrintableRecord]:
    """The newest `lines` records of all partitions, by their time. `ends` gets where each partition ended."""
    info = await client.admin.topic(topic)
    newest: list[PrintableRecord] = []
    for number in range(info.settings.partitions):
        part = await client.admin.partition(topic, number)
        ends[number] = part.end_offset
        start = max(part.start_offset, part.end_offset - lines)
        if start == part.end_offset:
            continue
        async with client.read(topic, start=f"offset:{start}", partitions=[number], follow=False) as reader:
            newest += [record async for record in reader if record.offset < part.end_offset]
        newest = sorted(newest, key=lambda record: (record.timestamp_ms, record.partition, record.offset))[-lines:]
    return newest


async def _follow(
    client: "Client", topic: str, starts: dict[int, int], show: Callable[[PrintableRecord], None]
) -> None:
    """The records of all partitions from these offsets on, as they come."""
    async with asyncio.TaskGroup() as tasks:
        for number, start in starts.items():
            reader = client.read(topic, start=f"offset:{start}", partitions=[number], follow=True)
            tasks.create_task(_print(reader, None, show), name=f"tail-{number}")

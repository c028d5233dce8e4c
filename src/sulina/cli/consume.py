"""Commands `sulina consume` and `sulina tail`: print the records of a topic."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators

from sulina.cli.flags.remote import HERE, Remote, topic_name
from sulina.cli.subscription import Mode
from sulina.cli.terminal import records
from sulina.cli.terminal.records import Format, PrintableRecord
from sulina.core.log.position import Position
from sulina.errors import InvalidInput, NotReliable, SubscriptionNotFound

if TYPE_CHECKING:
    from sulina.client import Client, Reader

QUIET_SECONDS = 0.2  # without a record for this long, `--no-follow` checks whether any is left

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
    """Print the records of a topic from a position on, or as a consumer of a subscription.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    start
        First position (of a new subscription): earliest, latest, offset:N, version:N, timestamp:MS or timestamp:ISO.
    partition
        Read only this partition; may be repeated. Not with --subscription.
    count
        Stop after this number of records.
    follow
        Wait for new records; otherwise stop at the end of the topic.
    subscription
        Consume as a consumer of this subscription; created if it does not exist.
    mode
        How records are distributed among the consumers of the subscription.
    format_
        `text` for people, `json` one document per line, `raw` values only.

    Raises:
        InvalidInput: both --partition and --subscription are given.
    """
    name = topic_name(topic)
    start = str(Position.parse(start))
    if subscription and partition:
        raise InvalidInput("--partition cannot be used with --subscription: a subscription has all partitions")
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
    """Print the newest records of a topic, then new ones as they arrive.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    lines
        Number of existing records to print.
    follow
        Wait for new records.
    format_
        `text` for people, `json` one document per line, `raw` values only.
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
    """Print every record of `source` as it arrives."""
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
    """Print records, then ack them: one that was not printed is delivered again to the next consumer."""
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
    """Return whether no record is left to deliver: those without an ack are in flight to other consumers."""
    info = await client.admin.subscription(topic, subscription)
    return sum(cursor.lag - cursor.in_flight for cursor in info.cursors) <= 0


async def _newest(client: "Client", topic: str, lines: int, ends: dict[int, int]) -> list[PrintableRecord]:
    """Return the newest `lines` records of all partitions by time, and put the end of each partition into `ends`."""
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
    """Print the records of all partitions from these offsets on, as they arrive."""
    async with asyncio.TaskGroup() as tasks:
        for number, start in starts.items():
            reader = client.read(topic, start=f"offset:{start}", partitions=[number], follow=True)
            tasks.create_task(_print(reader, None, show), name=f"tail-{number}")

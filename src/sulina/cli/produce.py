"""Command `sulina produce`: publish lines, files or generated records to a topic.

Lines are published as they arrive: a batch has the lines that were read while the one before it was sent, `--batch` at
most. Several batches are under way at once, in order.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from io import FileIO
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter, validators

from sulina.cli import terminal
from sulina.cli.flags.remote import HERE, Remote, topic_name
from sulina.cli.terminal.lines import InputLines
from sulina.core.records.record import Headers
from sulina.core.records.serializer import TEXT_HEADERS
from sulina.errors import InvalidInput, SulinaError

if TYPE_CHECKING:
    from sulina.client import Client, PublishPart, Record

UNDER_WAY_MAX = 16  # batches
_GENERATOR = Group("Generator", help="Publish generated records instead of input lines.")

Positive = Annotated[int, Parameter(validator=validators.Number(gte=1))]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LineFormat:
    """How a line becomes a record: the key, separator and headers that all records of a command share."""

    key: bytes | None
    separator: bytes | None
    headers: tuple[tuple[str, bytes], ...]

    def message(self, line: bytes, key: bytes | None = None) -> "Record":
        from sulina.client import Record

        value = line
        if self.separator:
            key, found, value = line.partition(self.separator)
            if not found:
                shown = line[:40].decode(errors="replace")
                raise InvalidInput(f"line {shown!r} has no key: --key-separator {self.separator.decode()!r} not found")
        return Record(value, key if key is not None else self.key, (*_serializer(value), *self.headers))


@dataclass(slots=True)
class _ProducedTotals:
    """Counts of the records that were acknowledged."""

    records: int = 0
    value_bytes: int = 0
    batches: int = 0
    started: float = field(default_factory=time.monotonic)
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)  # first and last, by partition

    def summary(self, topic: str) -> dict[str, Any]:
        seconds = time.monotonic() - self.started
        return {
            "topic": topic,
            "records": self.records,
            "bytes": self.value_bytes,
            "batches": self.batches,
            "seconds": round(seconds, 3),
            "partitions": [
                {"partition": number, "first_offset": first, "last_offset": last}
                for number, (first, last) in sorted(self.offsets.items())
            ],
        }


def produce(
    topic: str,
    /,
    file: Annotated[str | None, Parameter(alias="-f")] = None,
    *,
    whole: bool = False,
    key: Annotated[str | None, Parameter(alias="-k")] = None,
    key_separator: str | None = None,
    header: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    partition: int | None = None,
    batch: Positive = 100,
    count: Annotated[Positive | None, Parameter(group=_GENERATOR)] = None,
    rate: Annotated[float | None, Parameter(group=_GENERATOR, validator=validators.Number(gt=0))] = None,
    size: Annotated[int, Parameter(group=_GENERATOR, validator=validators.Number(gte=16))] = 100,
    remote: Remote = HERE,
) -> None:
    """Publish records to a topic, by default one for each line of standard input.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    file
        Read this file instead of standard input.
    whole
        Publish the whole input as one record.
    key
        Key of every record. Records with the same key stay in order, in one partition.
    key_separator
        Split each line into key and value at this separator. `\\t` is a tab.
    header
        NAME=VALUE header of every record; may be repeated.
    partition
        Publish to this partition, instead of choosing it by key or in turn.
    batch
        Largest number of records in one batch. The records of one partition are appended together or not at all.
    count
        Number of records to generate.
    rate
        Generated records per second. Default: as fast as they are acknowledged.
    size
        Size of each generated value in bytes.

    Raises:
        InvalidInput: options that exclude each other, or input that cannot be read.
    """
    name = topic_name(topic)
    if (rate is not None or size != 100) and count is None:
        raise InvalidInput("--rate and --size need --count, the number of records to generate")
    if count is not None and (file or whole or key_separator):
        raise InvalidInput("--count generates records, so it cannot be used with --file, --whole or --key-separator")
    shape = _LineFormat(
        key=None if key is None else key.encode(),
        separator=key_separator.replace(r"\t", "\t").encode() if key_separator else None,
        headers=tuple(_header(text) for text in header),
    )
    totals = _ProducedTotals()
    with contextlib.ExitStack() as stack:
        if count is not None:
            source = _generated(count, rate, size, batch, shape)
        else:
            source = _read(stack.enter_context(_input(file)), whole, batch, shape)
        try:
            remote.run(lambda client: _publish_all(client, name, partition, source, totals, count, remote.json))
        except SulinaError as error:
            if totals.records:
                error.add_note(f"{terminal.counted(totals.records, 'record')} acknowledged before the error")
            raise
    _tell(totals, name, as_json=remote.json)


def _tell(totals: _ProducedTotals, topic: str, *, as_json: bool) -> None:
    summary = totals.summary(topic)
    if as_json:
        return terminal.print_json(summary)
    seconds = max(summary["seconds"], 0.001)
    places = ", ".join(f"{number}: {first} to {last}" for number, (first, last) in sorted(totals.offsets.items()))
    return terminal.say(
        f"{terminal.counted(totals.records, 'record')} to {topic} in {summary['seconds']:.1f} s "
        f"({totals.records / seconds:,.0f} a second)" + (f"; offsets by partition {places}" if places else "")
    )


def _serializer(value: bytes) -> Headers:
    """Return the headers that make a value text for its consumers; none, where it is not UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return ()
    return TEXT_HEADERS


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidInput(f"--header {text!r} is not NAME=VALUE")
    return name, value.encode()


@contextlib.contextmanager
def _input(path: str | None) -> Iterator[FileIO]:
    # Unbuffered: a thread that waits in a buffer's lock would keep the interpreter from ending.
    if path is None or path == "-":
        if sys.stdin.isatty():
            terminal.say("type one record per line; Ctrl-D ends the input")
        with FileIO(0, closefd=False) as standard:
            yield standard
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(FileIO(path))
        except OSError as error:
            raise InvalidInput(f"--file {path}: {error.strerror}") from None
        yield file


async def _publish_all(
    client: "Client",
    topic: str,
    partition: int | None,
    source: "AsyncIterator[list[Record]]",
    totals: _ProducedTotals,
    expected: int | None,
    as_json: bool,
) -> None:
    """Publish every batch of `source`, several at once; they are sent, and their answers handled, in order.

    Each record chooses its own partition, so that a batch is split by partition.
    """
    from sulina.client import PublishAck, SplitFailed

    totals.started = time.monotonic()
    under_way: deque[tuple[asyncio.Task[PublishAck], list[Record]]] = deque()
    with _progress(expected, quiet=as_json) as advance:

        async def settle_first() -> None:
            task, messages = under_way[0]
            try:
                ack = await task
            except SplitFailed as failed:
                _count(totals, failed.parts, messages)
                raise
            under_way.popleft()
            _count(totals, ack.parts, messages)
            ack.raise_for_status()
            advance(len(messages))

        async def settle_all() -> None:
            while under_way:
                await settle_first()

        try:
            try:
                async for messages in source:
                    task = asyncio.create_task(client.publish_batch(topic, messages, partition=partition, split=True))
                    under_way.append((task, messages))
                    while len(under_way) >= UNDER_WAY_MAX or (under_way and under_way[0][0].done()):
                        await settle_first()
            except InvalidInput:  # a bad line; the records before it count
                await settle_all()
                raise
            await settle_all()
        finally:
            for task, _ in under_way:
                task.cancel()
            outcomes = await asyncio.gather(*(task for task, _ in under_way), return_exceptions=True)
            for (_, messages), outcome in zip(under_way, outcomes, strict=True):
                if isinstance(outcome, PublishAck):
                    _count(totals, outcome.parts, messages)


def _count(totals: _ProducedTotals, parts: "Sequence[PublishPart]", messages: "list[Record]") -> None:
    for part in parts:
        if not part.is_accepted:
            continue
        totals.batches += 1
        totals.records += part.count
        totals.value_bytes += sum(len(messages[number].value or b"") for number in part.records)
        if part.base_offset is not None:
            first, last = totals.offsets.get(part.partition, (part.base_offset, part.base_offset))
            totals.offsets[part.partition] = min(first, part.base_offset), max(last, part.base_offset + part.count - 1)


@contextlib.contextmanager
def _progress(expected: int | None, *, quiet: bool) -> Iterator[Any]:
    """Yield a function that advances a progress bar; it does nothing outside a terminal."""
    if expected is None or quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    with Progress(*columns, console=terminal.console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=expected, rate="")
        started = time.monotonic()
        acked = 0

        def advance(records: int) -> None:
            nonlocal acked
            acked += records
            seconds = max(time.monotonic() - started, 0.001)
            bar.update(task, completed=acked, rate=f"{acked / seconds:,.0f} records/s")

        yield advance


async def _generated(
    count: int, rate: float | None, size: int, batch: int, shape: _LineFormat
) -> "AsyncIterator[list[Record]]":
    """Yield batches of values of `size` bytes that begin with their number. With a rate, batches are small."""
    filler = os.urandom(size).hex().encode()[: size - 16]
    step = batch if rate is None else max(1, min(batch, int(rate / 100)))
    started = time.monotonic()
    for first in range(0, count, step):
        if rate is not None:
            await asyncio.sleep(max(0.0, started + first / rate - time.monotonic()))
        numbers = range(first, min(first + step, count))
        yield [shape.message(b"%015d " % number + filler, key=shape.key) for number in numbers]


async def _read(stream: FileIO, whole: bool, batch: int, shape: _LineFormat) -> "AsyncIterator[list[Record]]":
    """Yield batches of lines as they arrive, or the whole input as one record."""
    if whole:
        yield [shape.message(await asyncio.to_thread(stream.readall))]
        return
    lines = InputLines(stream)
    try:
        while got := await lines.take(batch):
            yield [shape.message(line) for line in got]
    finally:
        lines.stop()

"""`sulina topic create|list|show|delete|producers|subscribers|lookup|unload|move|cancel-move`."""

import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Group, Parameter

from sulina.cli import moving, terminal
from sulina.cli.policy import NOTHING_SAID, PolicyFlags, policy_text
from sulina.cli.remote import HERE, Remote, check_broker, topic_name
from sulina.errors import InvalidInput, InvalidSettings, LogIncomplete, TopicNotFound

if TYPE_CHECKING:
    from sulina.client import Client
    from sulina.core.topic import Schema
    from sulina.wire.messages import PartitionInfo, TopicInfo, UnloadInfo

app = App(
    name="topic",
    help="Create, list, show, delete, look up, unload and move topics; list their producers and subscribers.",
    group_commands=Group("Commands"),
)


@app.command
def create(
    topic: str,
    /,
    *,
    partitions: Annotated[int | None, Parameter(show_default="1")] = None,
    delivery: Annotated[Literal["reliable", "non_reliable"] | None, Parameter(show_default="reliable")] = None,
    schema: str | None = None,
    schema_kind: Literal["json", "avro", "arrow"] = "json",
    policy: PolicyFlags = NOTHING_SAID,
    remote: Remote = HERE,
) -> None:
    """Create a topic; one that exists gets the new policy and schema, where the rules allow it.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    partitions
        How many; records with one key stay in one of them.
    delivery
        `reliable` is a log, `non_reliable` passes records on and forgets them.
    schema
        A file with the schema of the values: JSON Schema, Avro's JSON, or an Arrow schema in IPC form.
    schema_kind
        What the file is.
    """
    name = topic_name(topic)
    value_schema = _schema(schema, schema_kind) if schema else None

    async def make(client: "Client") -> "TopicInfo":
        """What is not said stays as it is, if the topic exists."""
        from sulina.core.topic import Policy, TopicSettings

        said = policy.policy()
        try:
            known = (await client.admin.topic(name)).settings
        except TopicNotFound:
            known = TopicSettings()
        return await client.admin.create_topic(
            name,
            partitions=partitions or known.partitions,
            delivery=delivery or known.delivery,
            policy=known.policy if said == Policy() else said,
            schema=value_schema or known.value_schema,
        )

    info = remote.run(make)
    if remote.json:
        return terminal.print_json(info)
    return terminal.done(f"{info.topic} has {terminal.counted(info.settings.partitions, 'partition')}")


@app.command(name="list")
def list_(*, namespace: str | None = None, remote: Remote = HERE) -> None:
    """List the topics.

    Parameters
    ----------
    namespace
        Only those of this namespace.
    """
    topics = remote.run(lambda client: client.admin.topics(namespace=namespace))
    if remote.json:
        return terminal.print_json(topics)
    if not topics:
        return terminal.say("there are no topics; create one with `sulina topic create /default/orders`")
    rows = [
        (
            info.topic,
            info.settings.partitions,
            info.settings.delivery,
            info.settings.value_schema.kind,
            info.state,
            len(info.subscriptions),
        )
        for info in topics
    ]
    return terminal.print_table(
        ("topic", "partitions", "delivery", "schema", "state", "subscriptions"),
        rows,
        right=("partitions", "subscriptions"),
    )


@app.command
def show(topic: str, /, *, remote: Remote = HERE) -> None:
    """Show one topic: its settings, its partitions, its subscriptions.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    """
    name = topic_name(topic)

    async def ask(client: "Client") -> "tuple[TopicInfo, list[PartitionInfo]]":
        info = await client.admin.topic(name)
        if info.settings.delivery != "reliable":
            return info, []
        return info, [await client.admin.partition(name, number) for number in range(info.settings.partitions)]

    info, partitions = remote.run(ask)
    if remote.json:
        return terminal.print_json({"topic": info, "partitions": partitions})
    schema = info.settings.value_schema
    terminal.print_facts(
        {
            "topic": info.topic,
            "delivery": info.settings.delivery,
            "state": info.state,
            "schema": f"{schema.kind} {info.schema_id}" if schema.kind != "bytes" else schema.kind,
            "policy": policy_text(info.policy),
            "subscriptions": ", ".join(info.subscriptions) or None,
        }
    )
    if partitions:
        columns = ("partition", "state", "start offset", "end offset", "version", "epoch", "size", "segments", "error")
        terminal.print_table(columns, [_partition_row(part) for part in partitions], right=columns[2:8])
    return None


def _partition_row(part: "PartitionInfo") -> tuple[Any, ...]:
    size = terminal.bytes_text(part.size_bytes)
    return (
        part.partition,
        part.state,
        part.start_offset,
        part.end_offset,
        part.version,
        part.epoch,
        size,
        len(part.segments),
        part.error or "",
    )


@app.command
def delete(
    topic: str,
    /,
    *,
    force: bool = False,
    yes: Annotated[bool, Parameter(alias="-y")] = False,
    remote: Remote = HERE,
) -> int | None:
    """Delete a topic and all its records, for good.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    force
        Also while consumers are attached.
    yes
        Do not ask.
    """
    name = topic_name(topic)
    if not yes and not remote.json and not terminal.is_confirmed(f"Delete {name} and all its records?"):
        terminal.say("nothing was deleted")
        return 1
    remote.run(lambda client: client.admin.delete_topic(name, force=force))
    if remote.json:
        terminal.print_json({"deleted": name})
    else:
        terminal.done(f"{name} is deleted")
    return None


@app.command
def producers(topic: str, /, *, remote: Remote = HERE) -> None:
    """List who publishes to a topic over a session, since when, and at which broker.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    """
    from datetime import UTC, datetime

    name = topic_name(topic)
    found = remote.run(lambda client: client.admin.producers(name))
    if remote.json:
        return terminal.print_json(found)
    if not found:
        return terminal.say(f"{name} has no producers that are connected; what comes by HTTP is not listed")
    rows = [
        (
            info.producer,
            info.broker_id,
            f"{datetime.fromtimestamp(info.since_ms / 1000, UTC).astimezone():%Y-%m-%d %H:%M:%S}",
            "" if info.is_connected else "broker is gone",
        )
        for info in found
    ]
    return terminal.print_table(("producer", "broker", "since", "state"), rows, rare=("state",))


@app.command
def subscribers(topic: str, /, *, remote: Remote = HERE) -> None:
    """List who is sent all that is published to a topic, at which node, and who is suspended, and why.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    """
    name = topic_name(topic)
    found = remote.run(lambda client: client.admin.subscribers(name))
    if remote.json:
        return terminal.print_json(found)
    if not found:
        return terminal.say(f"{name} has no subscribers; `sulina subscription list {name}` shows what has cursors")
    rows = [(info.node, info.name, info.partition, info.status, info.reason, info.offset) for info in found]
    columns = ("node", "name", "partition", "status", "reason", "offset")
    return terminal.print_table(columns, rows, right=("partition", "offset"), rare=("reason",))


@app.command
def lookup(topic: str, /, *, remote: Remote = HERE) -> None:
    """Show which broker serves which partition.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    """
    name = topic_name(topic)
    found = remote.run(lambda client: client.admin.placement(name))
    if remote.json:
        return terminal.print_json(found)
    rows = [
        (place.partition, place.state, place.broker_id, place.url, place.epoch, place.waits_for or "")
        for place in found.partitions
    ]
    columns = ("partition", "state", "broker", "url", "epoch", "waits for")
    return terminal.print_table(columns, rows, right=("partition", "epoch"), rare=("waits for",))


@app.command
def unload(
    topic: str,
    /,
    *,
    partition: int | None = None,
    force: bool = False,
    give_up: bool = False,
    yes: Annotated[bool, Parameter(alias="-y")] = False,
    wait: Annotated[bool, Parameter(negative="--no-wait")] = True,
    remote: Remote = HERE,
) -> int:
    """Let a topic leave its brokers in good order; others take it over, those with the least to do.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    partition
        Only this one.
    force
        Also while consumers are attached: they follow. Of what waits for a lost broker, give up what only that one has.
    give_up
        Go on without records that were reported and are missing from disk and archive. They are lost for good.
    yes
        Do not ask before something is given up.
    wait
        Show how it goes until it is served again.
    """
    going = _Going(topic_name(topic), None, partition, force, remote, give_up=give_up)
    return going.run(is_confirmed=yes, waits=wait)


@app.command
def move(
    topic: str,
    /,
    *,
    to: str,
    partition: int | None = None,
    force: bool = False,
    yes: Annotated[bool, Parameter(alias="-y")] = False,
    wait: Annotated[bool, Parameter(negative="--no-wait")] = True,
    remote: Remote = HERE,
) -> int:
    """Move a topic to another broker, while producers and consumers go on.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    to
        The broker that is to have it.
    partition
        Only this one.
    force
        Also while consumers are attached: they follow. Of what waits for a lost broker, give up what only that one has.
    yes
        Do not ask before something is given up.
    wait
        Show how it goes until it is served there.
    """
    return _Going(topic_name(topic), to, partition, force, remote).run(is_confirmed=yes, waits=wait)


@app.command(name="cancel-move")
def cancel_move(topic: str, /, *, partition: int | None = None, remote: Remote = HERE) -> None:
    """Take back an unload or a move that has not been carried out; the topic stays where it is.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    partition
        Only this one.
    """
    name = topic_name(topic)
    cancelled = remote.run(lambda client: client.admin.cancel_moves(name, partition=partition))
    if remote.json:
        return terminal.print_json({"unloads": cancelled})
    if not cancelled:
        return terminal.done(f"nothing of {name} is about to move")
    return terminal.done(f"{terminal.counted(len(cancelled), 'partition')} of {name} stay where they are")


class _Going:
    """An unload or a move, from the question to the result."""

    def __init__(
        self,
        topic: str,
        to: str | None,
        partition: int | None,
        force: bool,
        remote: Remote,
        *,
        give_up: bool = False,
    ) -> None:
        self._topic, self._to, self._partition, self._force = topic, to, partition, force
        self._give_up = give_up
        self._remote = remote

    def run(self, *, is_confirmed: bool, waits: bool) -> int:
        """The exit code: 0 when it has arrived, or was asked for and nobody waits."""
        if self._force and not is_confirmed:
            lost = self._remote.run(self._find_lost)
            if lost and not _is_given_up(lost):
                terminal.say("nothing was moved")
                return 1
        if self._give_up and not is_confirmed:
            missing = self._remote.run(self._find_missing)
            if missing and not _is_given_up_for_good(missing):
                terminal.say("nothing was given up")
                return 1
        moves = self._remote.run(lambda client: self._ask(client, waits=waits))
        if not moves and not self._remote.json:
            terminal.done(f"there is nothing to move: {self._to or 'no broker'} has {self._topic} already")
            return 0
        code = moving.conclude(moves, as_json=self._remote.json)
        return code if waits else 0

    async def _find_lost(self, client: "Client") -> "list[UnloadInfo]":
        """The partitions that wait for a broker that alone has all of them."""
        found = await client.admin.moves(self._topic)
        return [info for info in found if info.step == moving.RECOVERING and self._partition in (None, info.partition)]

    async def _find_missing(self, client: "Client") -> list[str]:
        """Return what is missing from the partitions that are closed for it."""
        texts = []
        for place in (await client.admin.placement(self._topic)).partitions:
            if self._partition in (None, place.partition):
                try:
                    await client.admin.partition(self._topic, place.partition)
                except LogIncomplete as missing:
                    texts.append(str(missing))
        return texts

    async def _ask(self, client: "Client", *, waits: bool) -> list[moving.PartitionMove]:
        if self._to is not None:
            await check_broker(client, self._to)
        before, since = await client.admin.placement(self._topic), time.monotonic()
        asked = await client.admin.move_topic(
            self._topic,
            force=self._force,
            to=self._to,
            partition=self._partition,
            give_up=self._give_up,
            wait=False,
        )
        moves = moving.begun(asked, before)
        if waits and moves:
            await moving.watch(client, self._topic, moves, since=since, is_silent=self._remote.json)
        return moves


def _is_given_up(lost: "list[UnloadInfo]") -> bool:
    """Show what would be lost for good, and ask. InvalidInput where nobody can answer."""
    return _is_given_up_for_good([moving.lost_text(info) for info in lost])


def _is_given_up_for_good(texts: list[str]) -> bool:
    if not terminal.can_ask():
        error = InvalidInput(
            f"nobody is there to be asked whether this may be given up for good: {', and '.join(texts)}"
        )
        error.add_note("start the broker again, or say --yes to give it up")
        raise error
    for text in texts:
        terminal.say(text)
    return terminal.is_confirmed("Give that up for good?")


def _schema(path: str, kind: str) -> "Schema":
    """The schema in a file. InvalidSettings."""
    import base64

    import msgspec

    from sulina.core.topic import Schema, SchemaKind

    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise InvalidSettings(f"--schema {path}: {error.strerror}") from None
    if kind == SchemaKind.ARROW:
        return Schema(kind=SchemaKind.ARROW, definition=base64.b64encode(data).decode())
    try:
        return Schema(kind=SchemaKind(kind), definition=msgspec.json.decode(data))
    except msgspec.DecodeError as error:
        raise InvalidSettings(f"--schema {path}: not JSON: {error}") from None

"""Commands `sulina topic create|list|show|delete|producers|subscribers|lookup|unload|move|cancel-move`."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Group, Parameter

from sulina.cli import terminal
from sulina.cli.flags.policy import NOTHING_SAID, PolicyFlags, policy_text
from sulina.cli.flags.remote import HERE, Remote, topic_name
from sulina.cli.terminal.moves import MoveView, lost_text
from sulina.core.cluster.entries import MoveEnd
from sulina.errors import InvalidInput, InvalidSettings, LogIncomplete, SulinaError, TopicNotFound

if TYPE_CHECKING:
    from sulina.client import Client
    from sulina.core.topic import Policy, Schema
    from sulina.wire.messages import PartitionInfo, TopicInfo, UnloadInfo

app = App(
    name="topic",
    help="Create, list, show, delete and move topics; show their owners, producers and subscribers.",
    group_commands=Group("Commands"),
)


Force = Annotated[
    bool,
    Parameter(
        help="Move even if consumers are attached (they reconnect). If a partition is recovering, discard the records "
        "that exist only on the lost broker."
    ),
]
Yes = Annotated[bool, Parameter(alias="-y", help="Do not ask for confirmation.")]
Wait = Annotated[
    bool, Parameter(negative="--no-wait", help="Show the progress until the next owners serve the partitions.")
]


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
    """Create a topic, or change the policy and schema of an existing one.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    partitions
        Number of partitions. Records with the same key go to the same partition.
    delivery
        `reliable` stores records in a log; `non_reliable` (best effort) delivers them without storing them.
    schema
        File with the schema of the values: JSON Schema, Avro schema, or Arrow schema in IPC format.
    schema_kind
        Kind of schema in the file.
    """
    name = topic_name(topic)
    value_schema = _schema(schema, schema_kind) if schema else None

    async def make(client: "Client") -> "tuple[TopicInfo | None, TopicInfo]":
        """Create the topic; an existing one keeps the settings that are not given. Return it as it was, and is."""
        from sulina.core.topic import Policy, TopicSettings

        said = policy.policy()
        try:
            before = await client.admin.topic(name)
        except TopicNotFound:
            before = None
        known = TopicSettings() if before is None else before.settings
        return before, await client.admin.create_topic(
            name,
            partitions=partitions or known.partitions,
            delivery=delivery or known.delivery,
            policy=known.policy if said == Policy() else said,
            schema=value_schema or known.value_schema,
        )

    before, info = remote.run(make)
    if remote.json:
        return terminal.print_json(info)
    return terminal.done(_created_text(before, info))


def _created_text(before: "TopicInfo | None", info: "TopicInfo") -> str:
    """Return what became of a topic: it was created, changed, or was there already with these settings."""
    partitions = terminal.counted(info.settings.partitions, "partition")
    if before is None:
        return f"created {info.topic} with {partitions}"
    changed = []
    if before.policy != info.policy:
        changed.append(_policy_change(before.policy, info.policy))
    if before.schema_id != info.schema_id:
        changed.append(f"schema from {_schema_text(before)} to {_schema_text(info)}")
    if not changed:
        return f"{info.topic} exists already with {partitions} and these settings; nothing was changed"
    return f"updated {info.topic} with {partitions}: {'; '.join(changed)}"


def _policy_change(before: "Policy", after: "Policy") -> str:
    from msgspec.structs import asdict

    old, new = asdict(before), asdict(after)
    return ", ".join(f"{name} from {old[name]} to {new[name]}" for name in old if old[name] != new[name])


def _schema_text(info: "TopicInfo") -> str:
    kind = info.settings.value_schema.kind
    return f"{kind} {info.schema_id}" if kind != "bytes" else str(kind)


@app.command(name="list")
def list_(*, namespace: str | None = None, remote: Remote = HERE) -> None:
    """List the topics.

    Parameters
    ----------
    namespace
        List only the topics of this namespace.
    """
    topics = remote.run(lambda client: client.admin.topics(namespace=namespace))
    if remote.json:
        return terminal.print_json(topics)
    if not topics:
        return terminal.say("no topics; create one with `sulina topic create /default/orders`")
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
    """Show the settings, partitions and subscriptions of a topic.

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
    terminal.print_facts(
        {
            "topic": info.topic,
            "delivery": info.settings.delivery,
            "state": info.state,
            "schema": _schema_text(info),
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
    yes: Yes = False,
    remote: Remote = HERE,
) -> int | None:
    """Delete a topic and all its records. This cannot be undone.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    force
        Delete even if consumers are attached.
    """
    name = topic_name(topic)
    if not yes and not remote.json and not terminal.is_confirmed(f"Delete {name} and all its records?"):
        terminal.say("nothing was deleted")
        return 1
    remote.run(lambda client: client.admin.delete_topic(name, force=force))
    if remote.json:
        terminal.print_json({"deleted": name})
    else:
        terminal.done(f"deleted {name}")
    return None


@app.command
def producers(topic: str, /, *, remote: Remote = HERE) -> None:
    """List the connected producers of a topic, since when, and at which broker.

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
        return terminal.say(f"{name} has no connected producers; publishes over HTTP are not listed")
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
    """List the subscribers of a topic: their node, their status, and why one is suspended.

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
        return terminal.say(f"{name} has no subscribers; `sulina subscription list {name}` lists its subscriptions")
    rows = [(info.node, info.name, info.partition, info.status, info.reason, info.offset) for info in found]
    columns = ("node", "name", "partition", "status", "reason", "offset")
    return terminal.print_table(columns, rows, right=("partition", "offset"), rare=("reason",))


@app.command
def lookup(topic: str, /, *, remote: Remote = HERE) -> None:
    """Show which broker owns each partition of a topic.

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
    force: Force = False,
    give_up: Annotated[
        bool,
        Parameter(
            help="If a partition is closed because acknowledged records are missing from disk and archive, discard "
            "them and open it. This cannot be undone."
        ),
    ] = False,
    yes: Yes = False,
    wait: Wait = True,
    remote: Remote = HERE,
) -> int:
    """Move a topic's partitions off their current brokers; the leader assigns them to the least loaded ones.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    partition
        Move only this partition.
    """
    command = _MoveCommand(topic_name(topic), None, partition, force, remote, give_up=give_up)
    return command.run(is_confirmed=yes, waits=wait)


@app.command
def move(
    topic: str,
    /,
    *,
    to: str,
    partition: int | None = None,
    force: Force = False,
    yes: Yes = False,
    wait: Wait = True,
    remote: Remote = HERE,
) -> int:
    """Move a topic to another broker. Producers and consumers continue.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    to
        ID of the broker to move it to.
    partition
        Move only this partition.
    """
    return _MoveCommand(topic_name(topic), to, partition, force, remote).run(is_confirmed=yes, waits=wait)


@app.command(name="cancel-move")
def cancel_move(topic: str, /, *, partition: int | None = None, remote: Remote = HERE) -> None:
    """Cancel a move that has not been carried out; the topic stays where it is.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    partition
        Cancel only the move of this partition.
    """
    name = topic_name(topic)
    cancelled = remote.run(lambda client: client.admin.cancel_moves(name, partition=partition))
    if remote.json:
        return terminal.print_json({"unloads": cancelled})
    if not cancelled:
        return terminal.done(f"nothing to cancel: no partition of {name} is about to move")
    return terminal.done(f"cancelled the move of {terminal.counted(len(cancelled), 'partition')} of {name}")


class _MoveCommand:
    """An unload or a move, from the confirmation to the result."""

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
        """Move the partitions, and return the exit code: 0 if they have moved, or if the command does not wait."""
        if self._force and not is_confirmed:
            lost = self._remote.run(self._find_lost)
            if lost and not _is_given_up(lost):
                terminal.say("nothing was moved")
                return 1
        if self._give_up and not is_confirmed:
            missing = self._remote.run(self._find_missing)
            if missing and not _is_given_up_for_good(missing):
                terminal.say("nothing was discarded")
                return 1
        view = MoveView(is_silent=self._remote.json or not waits)
        self._remote.run(lambda client: self._move(client, view, waits=waits))
        if not view.moves and not self._remote.json:
            owner = f"{self._to} owns" if self._to else "no broker owns"
            terminal.done(f"nothing to move: {owner} {self._topic}" + (" already" if self._to else ""))
            return 0
        code = view.conclude(as_json=self._remote.json)
        return code if waits else 0

    async def _find_lost(self, client: "Client") -> "list[UnloadInfo]":
        """Return the recovering partitions: only the disk of a lost broker has all their records."""
        found = await client.admin.moves(self._topic)
        return [info for info in found if info.step == MoveEnd.RECOVERING and self._partition in (None, info.partition)]

    async def _find_missing(self, client: "Client") -> list[str]:
        """Return what is missing from the partitions that are closed because records are missing."""
        texts = []
        for place in (await client.admin.placement(self._topic)).partitions:
            if self._partition in (None, place.partition):
                try:
                    await client.admin.partition(self._topic, place.partition)
                except LogIncomplete as missing:
                    texts.append(str(missing))
        return texts

    async def _move(self, client: "Client", view: MoveView, *, waits: bool) -> None:
        """Ask for the moves and, if the command waits, show them until they have ended."""
        with terminal.live(view.table, is_silent=not waits or self._remote.json) as draw:

            def show(moves: "list[UnloadInfo]") -> None:
                view.see(moves)
                draw()

            try:
                moves = await client.admin.move_topic(
                    self._topic,
                    force=self._force,
                    to=self._to,
                    partition=self._partition,
                    give_up=self._give_up,
                    wait=waits,
                    on_progress=show,
                )
            except asyncio.CancelledError:
                if view.moves:
                    terminal.say(f"the move continues; `sulina topic lookup {self._topic}` shows the owners")
                raise
            except SulinaError as error:
                if view.moves:
                    error.add_note(f"the move may continue; `sulina topic lookup {self._topic}` shows the owners")
                raise
        view.see(moves)


def _is_given_up(lost: "list[UnloadInfo]") -> bool:
    """Show which records would be lost, and return whether the user agrees.

    Raises:
        InvalidInput: standard input is not a terminal, so that nobody can agree.
    """
    return _is_given_up_for_good([lost_text(info) for info in lost])


def _is_given_up_for_good(texts: list[str]) -> bool:
    if not terminal.can_ask():
        error = InvalidInput(f"discarding records needs a confirmation: {'; '.join(texts)}")
        error.add_note("start the broker again, or discard these records with --yes")
        raise error
    for text in texts:
        terminal.say(text)
    return terminal.is_confirmed("Discard these records? This cannot be undone.")


def _schema(path: str, kind: str) -> "Schema":
    """Return the schema in a file.

    Raises:
        InvalidSettings: the file cannot be read, or is not JSON.
    """
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
        raise InvalidSettings(f"--schema {path} is not JSON: {error}") from None

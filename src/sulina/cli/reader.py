"""Commands `sulina reader list|show|delete`."""

import time
from typing import TYPE_CHECKING

from cyclopts import App, Group

from sulina.cli import terminal
from sulina.cli.flags.remote import HERE, Remote, topic_name

if TYPE_CHECKING:
    from sulina.wire.messages import ReaderInfo

app = App(name="reader", help="List, show and delete registered readers.", group_commands=Group("Commands"))


@app.command(name="list")
def list_(topic: str | None = None, /, *, remote: Remote = HERE) -> None:
    """List the registered readers, their lag, and when each last reported its position.

    Retention keeps the records that a registered reader still needs, until the reader expires.

    Parameters
    ----------
    topic
        List only the readers of this topic: `/namespace/topic`, or `topic` in the namespace `default`.
    """
    name = None if topic is None else topic_name(topic)
    found = remote.run(lambda client: client.admin.readers(name))
    if remote.json:
        return terminal.print_json(found)
    if not found:
        return terminal.say(f"{name or 'the node'} has no registered readers")
    columns = ("reader", "topic", "kind", "partitions", "lag", "heard of", "state", "description")
    rows = [
        (
            info.reader,
            info.topic,
            info.kind,
            len(info.positions),
            info.lag,
            _ago(info.updated_ms),
            _state(info),
            info.description,
        )
        for info in found
    ]
    return terminal.print_table(columns, rows, right=("partitions", "lag"), rare=("kind", "description"))


@app.command
def show(reader: str, topic: str, /, *, remote: Remote = HERE) -> None:
    """Show the position and lag of a registered reader in each partition.

    Parameters
    ----------
    reader
        Name of the reader.
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    """
    name = topic_name(topic)
    info = remote.run(lambda client: client.admin.reader(reader, name))
    if remote.json:
        return terminal.print_json(info)
    terminal.print_facts(
        {
            "reader": info.reader,
            "topic": info.topic,
            "kind": info.kind or None,
            "description": info.description or None,
            "lag": info.lag,
            "heard of": _ago(info.updated_ms),
            "expires after": terminal.seconds_text(info.expires_seconds),
            "state": _state(info),
        }
    )
    columns = ("partition", "position", "start offset", "end offset", "lag", "heard of")
    rows = [
        (at.partition, at.offset, at.start_offset, at.end_offset, at.lag, _ago(at.updated_ms)) for at in info.positions
    ]
    return terminal.print_table(columns, rows, right=columns[1:5])


@app.command
def delete(reader: str, topic: str, /, *, remote: Remote = HERE) -> None:
    """Delete a registered reader. From then on, retention may remove records that only it needed.

    Parameters
    ----------
    reader
        Name of the reader.
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    """
    name = topic_name(topic)
    remote.run(lambda client: client.admin.delete_reader(reader, name))
    if remote.json:
        return terminal.print_json({"deleted": reader, "topic": name})
    return terminal.done(f"deleted reader {reader} of {name}")


def _ago(updated_ms: int) -> str:
    return f"{terminal.seconds_text(max(0.0, time.time() - updated_ms / 1000))} ago"


def _state(info: "ReaderInfo") -> str:
    return "expired" if info.is_expired else "live"

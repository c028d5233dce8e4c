"""Command `sulina events`: the events of a node, live."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, validators

from sulina.cli import terminal
from sulina.cli.flags.remote import HERE, Remote, topic_name

if TYPE_CHECKING:
    from rich.text import Text

    from sulina.client import Client
    from sulina.wire.messages import PubSubEvent

SHOWN_MAX = 400  # characters of one field

# By the last word of the event's type: success, failure, attention.
_STYLES = {
    **dict.fromkeys(
        ("accepted", "added", "attached", "created", "flushed", "resumed", "started", "succeeded"), "green"
    ),
    **dict.fromkeys(("damaged", "dropped", "failed", "lost", "refused", "rejected", "unreachable"), "red"),
    **dict.fromkeys(("deleted", "detached", "missed", "queued", "removed", "stopped", "suspended"), "yellow"),
}


def events(
    *,
    type_: Annotated[tuple[str, ...], Parameter(name="--type", alias="-t", show_default=False)] = (),
    topic: str | None = None,
    count: Annotated[int | None, Parameter(alias="-n", validator=validators.Number(gte=1))] = None,
    remote: Remote = HERE,
) -> None:
    """Show the events of a node live: publishes, deliveries, subscribers, topics.

    In a cluster these are the events of the one broker that the command is connected to.

    Parameters
    ----------
    type_
        Show only events of this type, for example `delivery_failed`; may be repeated.
    topic
        Show only events of this topic.
    count
        Stop after this number of events.
    """
    name = None if topic is None else topic_name(topic)

    async def watch(client: "Client") -> None:
        from sulina.client.events import MISSED

        left = count
        async with client.events(type_) as happened:
            if not remote.json:
                terminal.say(f"listening to {client.url}; Ctrl-C stops it")
            async for event in happened:
                if event.type != MISSED:  # comes with every filter
                    if name not in (None, event.topic):
                        continue
                    left = None if left is None else left - 1
                _show(event, as_json=remote.json)
                if left == 0:
                    return

    remote.run(watch)


def _show(event: "PubSubEvent", *, as_json: bool) -> None:
    if as_json:
        terminal.print_json(event)
    else:
        terminal.console().print(line(event), soft_wrap=True)


def line(event: "PubSubEvent") -> "Text":
    """Return an event as `12:00:00.250  delivery_failed  /default/orders  partition=0 node=b1 …`."""
    from rich.text import Text

    moment = datetime.fromtimestamp(event.at, UTC).astimezone()
    text = Text.assemble(
        (f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}", "dim"),
        "  ",
        (_printable(event.type), _STYLES.get(event.type.rpartition("_")[2], "")),
    )
    if event.topic is not None:
        text.append("  ").append(_printable(event.topic), "cyan")
    between = "  "
    for name, value in event.fields.items():
        text.append(f"{between}{_printable(name)}=", "dim").append(_value(value))
        between = " "
    return text


def _value(value: Any) -> str:
    """Return a field's value as text, in quotes if it is empty or has blanks."""
    text = _printable("-" if value is None else str(value).lower() if isinstance(value, bool) else str(value))
    return f'"{text}"' if not text or " " in text else text


def _printable(text: str) -> str:
    """Return text as one printable line: clients choose the names and reasons in events."""
    shown = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown)

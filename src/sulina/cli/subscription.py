"""Commands `sulina subscription list|show|create|seek|delete`."""

from typing import TYPE_CHECKING, Literal

from cyclopts import App, Group

from sulina.cli import terminal
from sulina.cli.flags.remote import HERE, Remote, topic_name

if TYPE_CHECKING:
    from sulina.wire.messages import SubscriptionInfo

Mode = Literal["exclusive", "failover", "shared", "key_shared"]

app = App(
    name="subscription", help="Create, list, show, seek and delete subscriptions.", group_commands=Group("Commands")
)


@app.command(name="list")
def list_(topic: str, /, *, remote: Remote = HERE) -> None:
    """List the subscriptions of a topic.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    """
    name = topic_name(topic)
    found = remote.run(lambda client: client.admin.subscriptions(name))
    if remote.json:
        return terminal.print_json(found)
    if not found:
        return terminal.say(f"{name} has no subscriptions; create one with `sulina subscription create {name} NAME`")
    rows = [(info.subscription, info.mode, len(info.consumers), info.lag) for info in found]
    return terminal.print_table(("subscription", "mode", "consumers", "lag"), rows, right=("consumers", "lag"))


@app.command
def show(topic: str, subscription: str, /, *, remote: Remote = HERE) -> None:
    """Show the consumers, cursors and lag of a subscription.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    subscription
        Name of the subscription.
    """
    name = topic_name(topic)
    _show(remote.run(lambda client: client.admin.subscription(name, subscription)), as_json=remote.json)


@app.command
def create(
    topic: str,
    subscription: str,
    /,
    *,
    mode: Mode = "exclusive",
    start: str = "latest",
    remote: Remote = HERE,
) -> None:
    """Create a subscription, which remembers how far its consumers have come in a topic.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    subscription
        Name of the subscription.
    mode
        How records are distributed among its consumers.
    start
        First position: earliest, latest, offset:N, version:N, timestamp:MS or timestamp:ISO.
    """
    name = topic_name(topic)
    _show(
        remote.run(lambda client: client.admin.create_subscription(name, subscription, mode=mode, start=start)),
        as_json=remote.json,
    )


@app.command
def seek(
    topic: str, subscription: str, position: str, /, *, partition: int | None = None, remote: Remote = HERE
) -> None:
    """Move the cursors of a subscription: back to read again, forward to skip.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    subscription
        Name of the subscription.
    position
        earliest, latest, offset:N, version:N, timestamp:MS or timestamp:ISO.
    partition
        Move only the cursor of this partition.
    """
    name = topic_name(topic)
    _show(
        remote.run(lambda client: client.admin.seek(name, subscription, position, partition=partition)),
        as_json=remote.json,
    )


@app.command
def delete(topic: str, subscription: str, /, *, force: bool = False, remote: Remote = HERE) -> None:
    """Delete a subscription and its cursors. The records stay in the topic.

    Parameters
    ----------
    topic
        `/namespace/topic`, or `topic` in the namespace `default`.
    subscription
        Name of the subscription.
    force
        Delete even if consumers are attached.
    """
    name = topic_name(topic)
    remote.run(lambda client: client.admin.delete_subscription(name, subscription, force=force))
    if remote.json:
        return terminal.print_json({"deleted": subscription, "topic": name})
    return terminal.done(f"deleted subscription {subscription} of {name}")


def _show(info: "SubscriptionInfo", *, as_json: bool) -> None:
    if as_json:
        return terminal.print_json(info)
    terminal.print_facts(
        {
            "subscription": info.subscription,
            "topic": info.topic,
            "mode": info.mode,
            "lag": info.lag,
            "consumers": ", ".join(info.consumers) or None,
        }
    )
    columns = ("partition", "cursor", "end offset", "lag", "in flight", "acked beyond")
    rows = [
        (
            cursor.partition,
            cursor.offset,
            cursor.end_offset,
            cursor.lag,
            cursor.in_flight,
            sum(end - start for start, end in cursor.acked),
        )
        for cursor in info.cursors
    ]
    return terminal.print_table(columns, rows, right=columns[1:])

"""`sulina broker list|drain|activate`."""

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group, Parameter

from sulina.cli import moving, terminal
from sulina.cli.remote import HERE, Remote
from sulina.errors import SulinaError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sulina.client import Client
    from sulina.wire.messages import BrokerInfo, ClusterInfo

POLL_SECONDS = 0.25
COLUMNS = ("broker", "state", "leader", "url", "partitions", "topics", "connections", "published", "up")
RIGHT = ("partitions", "topics", "connections", "published", "up")

app = App(name="broker", help="List, drain and activate the brokers of a cluster.", group_commands=Group("Commands"))


@app.command(name="list")
def list_(*, remote: Remote = HERE) -> None:
    """List the brokers: whether each is there, what it has, how busy it is."""
    cluster = remote.run(lambda client: client.admin.cluster())
    if remote.json:
        return terminal.print_json(cluster.brokers)
    return terminal.print_table(COLUMNS, [row(info) for info in cluster.brokers], right=RIGHT)


@app.command
def drain(
    broker: str,
    /,
    *,
    wait: Annotated[bool, Parameter(negative="--no-wait")] = True,
    remote: Remote = HERE,
) -> int:
    """Move everything away from a broker, and give it nothing more: before it is taken down, say.

    It stays so, also after a restart, until it is activated.

    Parameters
    ----------
    broker
        Its name.
    wait
        Show how it goes until nothing is left.
    """
    draining = _DrainProgress(broker, is_silent=remote.json)
    info = remote.run(lambda client: draining.run(client, waits=wait))
    if remote.json:
        terminal.print_json(info)
    elif wait:
        terminal.done(
            f"{broker} is drained: {terminal.counted(draining.first, 'partition')} moved away "
            f"in {draining.seconds:.1f} s; `sulina broker activate {broker}` takes it back"
        )
    else:
        terminal.done(f"{broker} drains; `sulina broker list` shows how far it is")
    return 0


@app.command
def activate(broker: str, /, *, remote: Remote = HERE) -> None:
    """Give a broker partitions again.

    Parameters
    ----------
    broker
        Its name.
    """
    info = remote.run(lambda client: client.admin.activate_broker(broker))
    if remote.json:
        return terminal.print_json(info)
    return terminal.done(f"{broker} is {info.state}; `sulina cluster rebalance` gives it its share at once")


def row(info: "BrokerInfo") -> tuple[Any, ...]:
    """A broker in a table."""
    return (
        info.broker_id,
        info.state,
        "leader" if info.is_leader else "",
        info.url,
        info.partitions,
        info.topics,
        info.connections,
        f"{terminal.bytes_text(round(info.published_bytes_per_second))}/s",
        None if info.uptime_seconds is None else terminal.seconds_text(info.uptime_seconds),
    )


class _DrainProgress:
    """A broker that is being emptied, as it is seen."""

    def __init__(self, broker: str, *, is_silent: bool) -> None:
        self._broker, self._is_silent = broker, is_silent
        self._left = self.first = 0
        self._notes: list[str] = []
        self.seconds = 0.0

    async def run(self, client: "Client", *, waits: bool) -> "BrokerInfo":
        """The broker as it is at the end."""
        info = await client.admin.drain_broker(self._broker)
        self._left = self.first = info.partitions
        if not waits:
            return info
        started = time.monotonic()
        try:
            with moving.drawing(self._show, is_silent=self._is_silent) as draw:
                while info.partitions:
                    await asyncio.sleep(POLL_SECONDS)
                    cluster = await client.admin.cluster()
                    info = next(each for each in cluster.brokers if each.broker_id == self._broker)
                    self.seconds = time.monotonic() - started
                    self._see(cluster, info)
                    draw()
        except asyncio.CancelledError:
            terminal.say("it goes on by itself; see `sulina broker list`")
            raise
        except SulinaError as error:
            error.add_note("it goes on by itself; see `sulina broker list`")
            raise
        return info

    def _see(self, cluster: "ClusterInfo", info: "BrokerInfo") -> None:
        self.first = max(self.first, info.partitions)
        others = [each for each in cluster.brokers if each.state == "active" and each.broker_id != self._broker]
        notes = [] if others else ["there is no other active broker: nothing can move; start or activate one"]
        notes += [
            f"{unload.topic} partition {unload.partition}: {unload.error}"
            for unload in cluster.unloads
            if unload.error and unload.from_broker == self._broker
        ]
        is_new = notes != self._notes or info.partitions != self._left
        self._notes, self._left = notes, info.partitions
        if is_new and not self._is_silent and not sys.stderr.isatty():
            terminal.say(f"{self.seconds:6.1f} s  {terminal.counted(self._left, 'partition')} left")
            for note in notes:
                terminal.say(note)

    def _show(self) -> "RenderableType":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_row(
            Text(f"{self._broker} drains"),
            ProgressBar(total=self.first, completed=self.first - self._left, width=40),
            Text(f"{self._left} of {terminal.counted(self.first, 'partition')} left, {self.seconds:.0f} s"),
        )
        return Group(line, *(Text(note, style="yellow") for note in self._notes))

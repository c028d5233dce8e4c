"""Commands `sulina broker list|drain|activate`."""

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group, Parameter

from sulina.cli import terminal
from sulina.cli.flags.remote import HERE, Remote
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
    """List the brokers with their state, partitions and load."""
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
    """Move all partitions away from a broker and assign it no new ones, for example before maintenance.

    The broker stays drained, also after a restart, until it is activated.

    Parameters
    ----------
    broker
        ID of the broker.
    wait
        Show the progress until the broker owns no partition.
    """
    draining = DrainProgress(broker, is_silent=remote.json)
    info = remote.run(lambda client: draining.run(client, waits=wait))
    if remote.json:
        terminal.print_json(info)
    elif wait:
        terminal.done(
            f"drained {broker}: {terminal.counted(draining.first, 'partition')} moved away "
            f"in {draining.seconds:.1f} s; `sulina broker activate {broker}` undoes it"
        )
    else:
        terminal.done(f"draining {broker}; `sulina broker list` shows the progress")
    return 0


@app.command
def activate(broker: str, /, *, remote: Remote = HERE) -> None:
    """Let a drained broker own partitions again.

    Parameters
    ----------
    broker
        ID of the broker.
    """
    info = remote.run(lambda client: client.admin.activate_broker(broker))
    if remote.json:
        return terminal.print_json(info)
    return terminal.done(f"{broker} is {info.state}; `sulina cluster rebalance` moves partitions to it at once")


def row(info: "BrokerInfo") -> tuple[Any, ...]:
    """Return a broker as a row of the table."""
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


class DrainProgress:
    """The progress of a drain, read from the cluster's state and shown."""

    def __init__(self, broker: str, *, is_silent: bool) -> None:
        self._broker, self._is_silent = broker, is_silent
        self.left = self.first = 0
        self._notes: list[str] = []
        self.seconds = 0.0

    async def run(self, client: "Client", *, waits: bool) -> "BrokerInfo":
        """Drain the broker, and return its state at the end."""
        info = await client.admin.drain_broker(self._broker)
        self.left = self.first = info.partitions
        if not waits:
            return info
        started = time.monotonic()
        try:
            with terminal.live(self.show, is_silent=self._is_silent) as draw:
                while info.partitions:
                    await asyncio.sleep(POLL_SECONDS)
                    cluster = await client.admin.cluster()
                    info = next(each for each in cluster.brokers if each.broker_id == self._broker)
                    self.seconds = time.monotonic() - started
                    self._see(cluster, info)
                    draw()
        except asyncio.CancelledError:
            terminal.say("the drain continues; `sulina broker list` shows the progress")
            raise
        except SulinaError as error:
            error.add_note("the drain continues; `sulina broker list` shows the progress")
            raise
        return info

    def _see(self, cluster: "ClusterInfo", info: "BrokerInfo") -> None:
        self.first = max(self.first, info.partitions)
        others = [each for each in cluster.brokers if each.state == "active" and each.broker_id != self._broker]
        notes = [] if others else ["no other broker is active, so nothing can move: start or activate one"]
        notes += [
            f"{unload.topic} partition {unload.partition}: {unload.error}"
            for unload in cluster.unloads
            if unload.error and unload.from_broker == self._broker
        ]
        is_new = notes != self._notes or info.partitions != self.left
        self._notes, self.left = notes, info.partitions
        if is_new and not self._is_silent and not sys.stderr.isatty():
            terminal.say(f"{self.seconds:6.1f} s  {terminal.counted(self.left, 'partition')} left")
            for note in notes:
                terminal.say(note)

    def show(self) -> "RenderableType":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_row(
            Text(f"{self._broker} drains"),
            ProgressBar(total=self.first, completed=self.first - self.left, width=40),
            Text(f"{self.left} of {terminal.counted(self.first, 'partition')} left, {self.seconds:.0f} s"),
        )
        return Group(line, *(Text(note, style="yellow") for note in self._notes))

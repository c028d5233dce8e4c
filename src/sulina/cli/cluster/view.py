"""The screen of `sulina cluster start`: commands to try, brokers, events."""

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sulina.cli import terminal
from sulina.cli.cluster.chronicle import Chronicle
from sulina.cli.cluster.local import LocalCluster
from sulina.cli.flags.remote import DEFAULT_URL

if TYPE_CHECKING:
    from sulina.cli.cluster.local import BrokerChild
    from sulina.wire.messages import BrokerInfo

WIDTH_MAX = 110
_COLOURS = {"active": "green", "draining": "yellow", "unreachable": "red"}


def next_steps(cluster: LocalCluster, program: str) -> RenderableType:
    """Return commands to try and pages to open. `program` is the word that starts this program."""
    first, last = cluster.brokers[0], cluster.brokers[-1]
    steps = [
        (f"export SULINA_URL={first.url}", "let commands find this cluster"),
        (f"{program} topic create orders --partitions 6 --ack archived", "create a topic that survives any broker"),
        (f"{program} produce orders --count 100000 --rate 1000", "publish while you try the rest"),
        (f"{program} topic lookup orders", "show which broker owns each partition"),
        (f"{program} topic move orders --to {last.name} --force", f"move all partitions to {last.name}"),
        (f"{program} broker drain {last.name}", f"move them away from {last.name} again"),
        (f"kill -9 {last.pid}", f"kill {last.name}; the others take its partitions"),
        (f"{program} cluster status", "show brokers, leader and moves"),
        (f"{first.url}/docs", "the HTTP API"),
    ]
    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(style="dim")
    for what, why in steps:
        if what != f"export SULINA_URL={DEFAULT_URL}":
            grid.add_row(what, why)
    return Group(Text("Try in another terminal:", style="bold"), grid, Text())


def screen(cluster: LocalCluster, chronicle: Chronicle, *, is_stale: bool, seconds: float) -> RenderableType:
    """Return the whole screen with the current state."""
    return Panel(
        Group(
            _facts(cluster, chronicle, is_stale=is_stale),
            Text(),
            _brokers(cluster, chronicle),
            Text(),
            _events(chronicle),
        ),
        title=f"[bold]Sulina cluster[/bold] [dim]{cluster.directory}[/dim]",
        subtitle=f"[dim]{terminal.seconds_text(seconds)}, Ctrl-C stops it[/dim]",
        width=WIDTH_MAX,
        padding=(1, 2),
    )


def _facts(cluster: LocalCluster, chronicle: Chronicle, *, is_stale: bool) -> RenderableType:
    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    grid.add_column(style="dim")
    grid.add_column()
    etcd = cluster.etcd
    told = Text(f"{etcd.url}, process {etcd.pid}") if etcd.pid else Text(etcd.ended or "starting", "bold red")
    grid.add_row("etcd", told)
    seen = chronicle.cluster
    if seen is None or is_stale:
        grid.add_row("cluster", Text("no broker answers at the moment", "yellow"))
        return grid
    counts = f"{terminal.counted(seen.partitions, 'partition')} of {terminal.counted(seen.topics, 'topic')}"
    line = Text(counts)
    for count, word, style in (
        (seen.unassigned, "without an owner", "yellow"),
        (seen.recovering, "recovering", "red"),
        (len(seen.unloads), "moving", "yellow"),
    ):
        if count:
            line.append(f", {count} {word}", style)
    grid.add_row("cluster", line)
    return grid


def _brokers(cluster: LocalCluster, chronicle: Chronicle) -> RenderableType:
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("broker", "process", "state", "url", "partitions", "topics", "connections", "published"):
        grid.add_column(
            column, justify="right" if column in ("partitions", "topics", "connections", "published") else "left"
        )
    infos = {info.broker_id: info for info in chronicle.cluster.brokers} if chronicle.cluster else {}
    for child in cluster.brokers:
        grid.add_row(*_row(child, infos.pop(child.name, None)))
    for info in infos.values():  # from an earlier run with more brokers, or started by hand
        grid.add_row(*_row(None, info))
    return grid


def _row(child: "BrokerChild | None", info: "BrokerInfo | None") -> tuple[Text, ...]:
    if child is None:
        process = Text("-", "dim")
    elif child.pid is None:
        process = Text("died" if child.ended else "starting", "bold red")  # the events say why
    else:
        process = Text(str(child.pid))
    name = child.name if child is not None else info.broker_id if info is not None else "?"
    if info is None:
        return Text(name), process, *(Text("-", "dim"),) * 6
    state = Text(info.state, _COLOURS.get(info.state, "default"))
    if info.is_leader:
        state.append(", leads", "bold")
    return (
        Text(name),
        process,
        state,
        Text(info.url or "-", "cyan"),
        Text(str(info.partitions)),
        Text(str(info.topics)),
        Text(str(info.connections)),
        Text(f"{terminal.bytes_text(round(info.published_bytes_per_second))}/s"),
    )


def _events(chronicle: Chronicle) -> RenderableType:
    return Group(*(Text.assemble((f"{seconds:7.1f} s  ", "dim"), text) for seconds, text in chronicle.events))

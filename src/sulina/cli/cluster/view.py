"""How `sulina cluster start` looks: what to try, and one screen that is drawn anew."""

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sulina.cli import terminal
from sulina.cli.cluster.chronicle import Chronicle
from sulina.cli.cluster.local import LocalCluster
from sulina.cli.remote import DEFAULT_URL

if TYPE_CHECKING:
    from sulina.cli.cluster.local import BrokerChild
    from sulina.wire.messages import BrokerInfo

WIDTH_MAX = 110
_COLOURS = {"active": "green", "draining": "yellow", "unreachable": "red"}


def next_steps(cluster: LocalCluster, program: str) -> RenderableType:
    """What to open, and what to type. `program` is how this one is called."""
    first, last = cluster.brokers[0], cluster.brokers[-1]
    steps = [
        (f"export SULINA_URL={first.url}", "so that commands find this cluster"),
        (f"{program} topic create orders --partitions 6 --ack archived", "a topic that outlives any broker"),
        (f"{program} produce orders --count 100000 --rate 1000", "records, while you try the rest"),
        (f"{program} topic lookup orders", "who serves which partition"),
        (f"{program} topic move orders --to {last.name} --force", "all of it to one broker, while records flow"),
        (f"{program} broker drain {last.name}", "and away from it again"),
        (f"kill -9 {last.pid}", f"{last.name} dies; the others take over"),
        (f"{program} cluster status", "all of this in one look"),
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
    """Everything, as it is now."""
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
        grid.add_row("cluster", Text("no broker answers at this moment", "yellow"))
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
    for info in infos.values():  # of an earlier run, with more brokers, or started by hand
        grid.add_row(*_row(None, info))
    return grid


def _row(child: "BrokerChild | None", info: "BrokerInfo | None") -> tuple[Text, ...]:
    if child is None:
        process = Text("-", "dim")
    elif child.pid is None:
        process = Text("died" if child.ended else "starting", "bold red")  # how, the events say
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

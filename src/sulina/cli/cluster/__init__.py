"""Commands `sulina cluster status|rebalance|recover|start`."""

import asyncio
import os
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Group, Parameter, validators

from sulina.cli import terminal
from sulina.cli.broker import COLUMNS, RIGHT, row
from sulina.cli.cluster.recover import recover
from sulina.cli.flags.remote import HERE, Remote

if TYPE_CHECKING:
    from sulina.wire.messages import BrokerInfo, MetadataInfo, UnloadInfo

DEFAULT_DIRECTORY = "./sulina-cluster"
BROKERS_MAX = 50
PORT = 8080
LEASE_SECONDS = 3.0  # soon enough to watch

app = App(
    name="cluster",
    help="Show, rebalance or recover a cluster, or start one to try out.",
    group_commands=Group("Commands"),
)
app.command(recover)


@app.command
def status(*, remote: Remote = HERE) -> None:
    """Show the cluster: its brokers, its leader, partitions without an owner, moves."""
    cluster = remote.run(lambda client: client.admin.cluster())
    if remote.json:
        return terminal.print_json(cluster)
    terminal.print_facts(
        {
            "leader": cluster.leader or "none at the moment",
            "topics": cluster.topics,
            "partitions": cluster.partitions,
            "unassigned": cluster.unassigned or None,
            "recovering": cluster.recovering or None,
            "moving": len(cluster.unloads) or None,
            "metadata": _metadata(cluster.metadata),
        }
    )
    terminal.write(b"\n")
    terminal.print_table(COLUMNS, [row(info) for info in cluster.brokers], right=RIGHT)
    for info in cluster.brokers:
        if info.clock_ahead_seconds:
            terminal.say(_clock_line(info))
    if cluster.unloads:
        terminal.write(b"\n")
        _print_moves(cluster.unloads)
    return None


@app.command
def rebalance(*, remote: Remote = HERE) -> None:
    """Move partitions from the most loaded brokers to the least loaded ones, a few at a time."""
    moves = remote.run(lambda client: client.admin.rebalance()).moves
    if remote.json:
        return terminal.print_json({"moves": moves})
    if not moves:
        return terminal.done("nothing to move: the load of the brokers is even")
    _print_moves(moves)
    return terminal.say("the moves continue in the background; `sulina cluster status` shows the progress")


@app.command
def start(
    *,
    brokers: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=BROKERS_MAX))] = 3,
    data: str = DEFAULT_DIRECTORY,
    port: Annotated[int, Parameter(validator=validators.Number(gte=0, lte=65535))] = PORT,
    lease_seconds: Annotated[float, Parameter(validator=validators.Number(gte=1, lte=600))] = LEASE_SECONDS,
    restart_seconds: Annotated[float | None, Parameter(validator=validators.Number(gte=0))] = None,
    json: bool = False,
) -> None:
    """Start a cluster on this machine to try out, and show its state until Ctrl-C.

    Starts an etcd and several brokers as processes, with a directory as object store. The data is kept, and is there
    again when the cluster is started the next time.

    Parameters
    ----------
    brokers
        Number of brokers.
    data
        Directory for all data.
    port
        Port of the first broker; the others get the next free ports. 0 picks free ports for all.
    lease_seconds
        Time without contact after which a broker is considered dead.
    restart_seconds
        Restart a process this long after it has died. Default: it stays dead.
    json
        Print one line of JSON when the cluster is ready, and nothing else on standard output.
    """
    from sulina.cli.cluster.local import LocalCluster
    from sulina.cli.cluster.run import ClusterRun

    cluster = LocalCluster(
        os.path.abspath(data), brokers=brokers, port=port, lease_seconds=lease_seconds, restart_seconds=restart_seconds
    )
    asyncio.run(ClusterRun(cluster, as_json=json).run())


def _metadata(info: "MetadataInfo | None") -> str | None:
    """Return the size of the metadata store as text; None if it is unknown."""
    if info is None or (info.size_bytes is None and not info.is_full):
        return None
    parts = [] if info.size_bytes is None else [terminal.bytes_text(info.size_bytes)]
    if info.used_bytes is not None:
        parts.append(f"{terminal.bytes_text(info.used_bytes)} in use")
    if info.quota_bytes is not None:
        parts.append(f"quota {terminal.bytes_text(info.quota_bytes)}")
    said = ", ".join(parts)
    return f"FULL: takes no writes, so nothing fails over ({said}); docs/guides/operations.md" if info.is_full else said


def _clock_line(info: "BrokerInfo") -> str:
    off = terminal.seconds_text(abs(info.clock_ahead_seconds))
    if info.clock_ahead_seconds < 0:
        return f"the clock of {info.broker_id} is {off} behind the others: correct it"
    return f"the clock of {info.broker_id} is {off} ahead of the others: correct it; retention does not trust it"


def _print_moves(moves: "list[UnloadInfo]") -> None:
    columns = ("topic", "partition", "from", "to", "step", "error")
    rows = [
        (move.topic, move.partition, move.from_broker, move.to_broker, move.step, move.error or "") for move in moves
    ]
    terminal.print_table(columns, rows, right=("partition",), rare=("error",))

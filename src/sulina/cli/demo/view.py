"""The screen of the demo, and its summary at the end."""

import io
import re
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sulina.cli import terminal
from sulina.cli.demo.node import ChildNode
from sulina.cli.demo.tables import Revenue
from sulina.cli.demo.tally import Tally
from sulina.cli.demo.traffic import PARTITIONS, SUBSCRIPTION, TOPIC
from sulina.cli.flags.remote import DEFAULT_URL

WIDTH_MAX = 100
ONE_MORE = '{"lane": 9, "number": 0, "item": "oars", "amount": 9.5}'  # fits the topic's schema


def screen(node: ChildNode, tally: Tally, tables: list[dict[str, Any]], *, remaining: float | None) -> RenderableType:
    """Return the whole screen with the current state."""
    ending = "Ctrl-C ends" if remaining is None else "over" if remaining <= 0 else f"{remaining:.0f} s"
    body = Group(
        _facts(node, tally),
        Text(),
        _partitions(tally),
        Text(),
        _recent(tally),
        Text(),
        *_tables(tables),
        _events(tally),
    )
    return Panel(
        body,
        title=f"[bold]Sulina[/bold] [dim]{TOPIC}[/dim]",
        subtitle=f"[dim]{ending}[/dim]",
        width=WIDTH_MAX,
        padding=(1, 2),
    )


def line(node: ChildNode, tally: Tally) -> str:
    """Return the current state in one line."""
    state = f"serving at {node.url}" if node.is_serving else "killed, starting again"
    return (
        f"{tally.seconds:5.1f} s  {tally.acked.total:,} acked ({tally.acked.now():,.0f}/s)  "
        f"{tally.consumed.total:,} consumed ({tally.consumed.now():,.0f}/s)  lag {tally.missing()}  "
        f"p50 {_ms(tally.percentile_ms(0.5))}  p99 {_ms(tally.percentile_ms(0.99))}  {state}"
    )


def verdict(node: ChildNode, tally: Tally, answer: list[Revenue], faults: list[str]) -> RenderableType:
    """Return what the demo has shown, or the faults that it has found."""
    if faults:
        return Group(*(Text.assemble(("✗ ", "bold red"), fault) for fault in faults))
    again = tally.delivered.repeated
    lines = [
        f"{tally.acked.total:,} records acknowledged, each on disk before its ack",
        "all delivered in order, without a gap"
        + (f"; {again} were redelivered, and recognised by their offset" if again else ""),
        f"publish to delivery: {_ms(tally.percentile_ms(0.5))} p50, {_ms(tally.percentile_ms(0.99))} p99 "
        "(without the restart)",
    ]
    if node.starts > 1:
        lines.insert(
            1,
            f"kill -9 in the middle: nothing lost, nothing stored twice; an ack took {tally.longest_ack_seconds:.1f} s "
            "at most",
        )
    if answer:
        lines.append("bronze, silver and gold Delta Lake tables have every record once; the gold table:")
    told: list[RenderableType] = [Text.assemble(("✓ ", "bold green"), text) for text in lines]
    if answer:
        rows = [(row.item, f"{row.orders:,}", f"{row.revenue:,.2f}") for row in answer]
        told += [Text(), terminal.make_table(("item", "orders", "revenue"), rows, right=("orders", "revenue")), Text()]
    return Group(*told)


def next_steps(url: str, program: str, pipeline: Path | None) -> RenderableType:
    """Return commands to try and pages to open. `program` is the word that starts this program."""
    steps = [
        (f"{url}/docs", "the HTTP API"),
        (f"{url}/metrics", "metrics for Prometheus"),
        (f"export SULINA_URL={url}", "let commands find this node"),
        (f"{program} tail orders", "print the newest records, then new ones"),
        (f"{program} topic show orders", "show offsets, versions, segments"),
        (f"{program} subscription show orders {SUBSCRIPTION}", "show cursors and lag"),
        (f"echo '{ONE_MORE}' | {program} produce orders", "publish one more record"),
        (f"{program} serve", "start a node of your own, in ./sulina-data"),
    ]
    if pipeline is not None:
        steps.append((f"{program} pipeline run {pipeline}", "keep the tables up to date"))
    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(style="dim")
    for what, why in steps:
        if what != f"export SULINA_URL={DEFAULT_URL}":
            grid.add_row(what, why)
    return Group(Text("Open, or try in another terminal:", style="bold"), grid)


def _facts(node: ChildNode, tally: Tally) -> RenderableType:
    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    grid.add_column(style="dim")
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(style="dim")
    state = Text("serving", "green") if node.is_serving else Text("killed, starting again", "bold red")
    grid.add_row("node", Text(node.url, "cyan"), state, f"process {node.pid}")
    grid.add_row(
        "producers",
        f"{tally.acked.total:,} acked",
        f"{tally.acked.now():,.0f} a second",
        f"longest wait for an ack {tally.longest_ack_seconds:.2f} s",
    )
    grid.add_row(
        "consumer",
        f"{tally.consumed.total:,} received",
        f"{tally.consumed.now():,.0f} a second",
        f"{tally.delivered.repeated} redelivered",
    )
    grid.add_row(
        "end to end",
        f"{_ms(tally.percentile_ms(0.5))} p50",
        f"{_ms(tally.percentile_ms(0.99))} p99",
        "publish, fsync, commit, delivery",
    )
    return grid


def _partitions(tally: Tally) -> RenderableType:
    rows = []
    for number in range(PARTITIONS):
        end, seen = tally.acked_ends.get(number, 0), tally.delivered.next_offset.get(number, 0)
        rows.append((number, f"{end:,}", f"{seen:,}", f"{max(0, end - seen):,}"))
    columns = ("partition", "acked to offset", "received to offset", "lag")
    return terminal.make_table(columns, rows, right=columns[1:])


def _tables(tables: list[dict[str, Any]]) -> list[RenderableType]:
    if not tables:
        return []
    rows = [(one["table"], one["stage"], f"{one['rows']:,}", one.get("lag"), one.get("version")) for one in tables]
    columns = ("table", "stage", "rows", "lag", "version")
    return [terminal.make_table(columns, rows, right=columns[2:]), Text()]


def _recent(tally: Tally) -> RenderableType:
    lines = [Text(text, "dim") for text in tally.recent]
    lines += [Text()] * ((tally.recent.maxlen or 0) - len(lines))
    return Group(*lines)


def _events(tally: Tally) -> RenderableType:
    return Group(*(Text.assemble((f"{seconds:5.1f} s  ", "dim"), text) for seconds, text in tally.happened))


def _ms(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:.1f} ms"


def summary(node: ChildNode, tally: Tally, answer: list[Revenue], faults: list[str]) -> dict[str, Any]:
    """Return the result as `--json` prints it."""
    return {
        "is_proven": not faults,
        "faults": faults,
        "topic": TOPIC,
        "acked": tally.acked.total,
        "delivered": tally.delivered.records,
        "redelivered": tally.delivered.repeated,
        "kills": node.starts - 1,
        "latency_ms": {"p50": tally.percentile_ms(0.5), "p99": tally.percentile_ms(0.99)},
        "longest_ack_seconds": round(tally.longest_ack_seconds, 3),
        "revenue": [{"item": row.item, "orders": row.orders, "revenue": row.revenue} for row in answer],
        "events": [{"seconds": round(seconds, 3), "event": text} for seconds, text in tally.happened],
    }


def save_svg(path: str, *parts: RenderableType) -> None:
    """Save a picture of a terminal that shows `parts`, without fonts from elsewhere."""
    console = Console(record=True, force_terminal=True, width=WIDTH_MAX, file=io.StringIO())
    console.print(*parts, sep="\n")
    picture = console.export_svg(title="sulina demo")
    picture = re.sub(r"\s*@font-face\s*{[^}]*}", "", picture)
    Path(path).write_text(re.sub(r"<!-- Generated with Rich[^>]*-->\s*", "", picture))

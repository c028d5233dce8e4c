"""Bar charts as plain SVG: readable on light and on dark, without a script, a font or a library."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.measure import number

WIDTH, LABEL_WIDTH, VALUE_WIDTH, MARGIN = 760, 210, 150, 16
BAR_HEIGHT, BAR_GAP, GROUP_GAP, HEAD_HEIGHT, FOOT_HEIGHT = 18, 4, 16, 60, 22
STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de }
  text { font: 13px system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: #1f2328 }
  .title { font-size: 15px; font-weight: 600 }
  .quiet { fill: #59636e; font-size: 12px }
  .ours { fill: #0969da } .other { fill: #9aa4af } .limit { fill: #c9d1d9 }
  .goal { stroke: #bc4c00; stroke-width: 2 } .goaltext { fill: #bc4c00; font-size: 12px }
  @media (prefers-color-scheme: dark) {
    .card { fill: #161b22; stroke: #30363d }
    text { fill: #e6edf3 } .quiet { fill: #9198a1 }
    .ours { fill: #4493f8 } .other { fill: #6e7681 } .limit { fill: #484f58 }
    .goal { stroke: #f0883e } .goaltext { fill: #f0883e }
  }
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One measured value. `kind` is `ours`, `other` (a peer) or `limit` (what the machine can do)."""

    label: str
    value: float
    kind: str = "ours"


@dataclass(frozen=True, slots=True)
class Group:
    """Bars that are compared with each other; `goal` is a value that ours should reach, or not exceed."""

    label: str
    bars: tuple[Bar, ...]
    goal: float | None = None


def bar_chart(title: str, unit: str, groups: Sequence[Group]) -> str:
    """Draw horizontal bars, group below group, on one scale that begins at 0.

    Raises:
        ValueError: there is nothing to draw, or a value is negative.
    """
    bars = [bar for group in groups for bar in group.bars]
    if not bars or min(bar.value for bar in bars) < 0:
        raise ValueError(f"a chart needs values from 0 on: {title}")
    goals = [group.goal for group in groups if group.goal is not None]
    scale = (WIDTH - LABEL_WIDTH - VALUE_WIDTH) / (max([bar.value for bar in bars] + goals) or 1)
    parts, top = [], HEAD_HEIGHT
    for group in groups:
        drawn, top = _group(group, unit, scale, top)
        parts += drawn
    height = top - GROUP_GAP + FOOT_HEIGHT
    described = "; ".join(
        f"{group.label}, {bar.label}: {number(bar.value)} {unit}" for group in groups for bar in group.bars
    )
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(described)}</desc>",
        f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
        f'<text class="title" x="{MARGIN}" y="26">{escape(title)}</text>',
        f'<text class="quiet" x="{MARGIN}" y="44">{escape(_legend(groups, unit))}</text>',
    ]
    return "\n".join([*head, *parts, "</svg>", ""])


def _legend(groups: Sequence[Group], unit: str) -> str:
    has_goal = any(group.goal is not None for group in groups)
    return f"{unit}; blue is Sulina" + ("; the orange line is the goal" if has_goal else "")


def _group(group: Group, unit: str, scale: float, top: int) -> tuple[list[str], int]:
    parts = []
    if group.label:
        parts.append(f'<text class="quiet" x="{MARGIN}" y="{top + 12}">{escape(group.label)}</text>')
        top += 18
    first = top
    for bar in group.bars:
        width = max(1.0, bar.value * scale)
        middle = top + BAR_HEIGHT - 5
        parts += [
            f'<text x="{LABEL_WIDTH - 8}" y="{middle}" text-anchor="end">{escape(bar.label)}</text>',
            f'<rect class="{bar.kind}" x="{LABEL_WIDTH}" y="{top}" width="{width:.1f}" height="{BAR_HEIGHT}" rx="2"/>',
            f'<text x="{LABEL_WIDTH + width + 6:.1f}" y="{middle}">{number(bar.value)} {escape(unit)}</text>',
        ]
        top += BAR_HEIGHT + BAR_GAP
    if group.goal is not None:
        x = LABEL_WIDTH + group.goal * scale
        parts.append(f'<line class="goal" x1="{x:.1f}" y1="{first - 3}" x2="{x:.1f}" y2="{top - BAR_GAP + 3}"/>')
    return parts, top + GROUP_GAP - BAR_GAP

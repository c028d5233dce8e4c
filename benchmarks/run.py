"""Runs the benchmarks of this directory, or those that are named, and writes their parts of docs/benchmarks.md.

Fails when a benchmark does, not when a goal is missed: the table says so.
"""

import sys

if __name__ == "__main__":
    sys.path.append(f"{sys.path.pop(0)}/..")  # not this directory: its http.py is not what others mean by http

import argparse
import json
import os
import platform
import subprocess
from datetime import UTC, datetime

from benchmarks.measure import Result, number, verdict

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
PAGE = os.path.join(ROOT, "docs", "benchmarks.md")
NOT_BENCHMARKS = {"measure.py", "run.py"}


def run() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less of everything")
    scripts = sorted(name for name in set(os.listdir(HERE)) - NOT_BENCHMARKS if name.endswith(".py"))
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help=f"one of {', '.join(scripts)}; else all")
    given = parser.parse_args()
    if unknown := sorted(set(given.scripts) - set(scripts)):
        parser.error(f"there is no benchmark {unknown[0]}, only {', '.join(scripts)}")
    parts, revision = before(), commit()  # others may commit while we run
    has_failed = False
    for script in given.scripts or scripts:
        load = os.getloadavg()[0]
        command = [sys.executable, os.path.join(HERE, script), "--json", *(["--quick"] if given.quick else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False)
        if done.returncode != 0:
            has_failed = True
            print(f"{script} failed; its part of the page stays as it was", file=sys.stderr)
            continue
        results = [Result(**line) for line in json.loads(done.stdout)]
        parts[script] = part(results, quick=given.quick, load=load, revision=revision)
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(page({name: parts[name] for name in scripts if name in parts}))
    return 1 if has_failed else 0


def before() -> dict[str, str]:
    """The parts of the page as it is."""
    if not os.path.exists(PAGE):
        return {}
    with open(PAGE, encoding="utf-8") as file:
        _head, *parts = file.read().split("\n## ")
    return {name: text.strip() for name, _, text in (part.partition("\n") for part in parts)}


def page(parts: dict[str, str]) -> str:
    """All of it, in Markdown."""
    lines = [
        "# Benchmarks",
        "",
        "Written by `benchmarks/run.py`; do not edit. Limits and peers are measured in the same run, in turns.",
        "A ratio is the median over the rounds. Where others work on the machine too, a ratio can be off either way.",
        "",
        *machine(),
        "",
        "To reproduce: `make bench`, or one of them with `.venv/bin/python benchmarks/log.py [--quick] [--dir DIR]`.",
    ]
    for script, text in parts.items():
        lines += ["", f"## {script}", "", text]
    return "\n".join(lines) + "\n"


def part(results: list[Result], *, quick: bool, load: float, revision: str) -> str:
    """What one benchmark has found."""
    kind = "Quick run" if quick else "Full run"
    lines = [
        f"{kind} of {datetime.now(UTC):%Y-%m-%d}, commit {revision}, load average before it {load:.1f}.",
        "",
        "| name | value | unit | goal | met |",
        "|---|---:|---|---|---|",
    ]
    lines += [
        f"| {row.name} | {number(row.value)} | {row.unit} | {row.goal or ''} | {verdict(row)} |" for row in results
    ]
    return "\n".join(lines)


def machine() -> list[str]:
    """What it ran on, without its name."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return [
        f"- {cpu_model()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB of memory",
        f"- {platform.system()} {platform.release()}, Python {platform.python_version()}",
    ]


def cpu_model() -> str:
    """As the kernel calls it, where it can be asked."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except FileNotFoundError:
        models = []
    return models[0] if models else platform.machine()


def commit() -> str:
    """What the working tree is based on."""
    command = ["git", "rev-parse", "--short", "--quiet", "--verify", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "none yet"


if __name__ == "__main__":
    sys.exit(run())

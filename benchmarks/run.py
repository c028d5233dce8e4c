"""Runs every benchmark of this directory and writes docs/benchmarks.md.

Fails when a benchmark does, not when a goal is missed: the table says so.
"""

import sys

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
    quick = parser.parse_args().quick
    load, revision = os.getloadavg()[0], commit()  # before we add to the one, and others to the other
    results: dict[str, list[Result]] = {}
    failed: list[str] = []
    for script in sorted(set(os.listdir(HERE)) - NOT_BENCHMARKS):
        if not script.endswith(".py"):
            continue
        command = [sys.executable, os.path.join(HERE, script), "--json", *(["--quick"] if quick else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False)
        if done.returncode != 0:
            failed.append(script)
            continue
        results[script] = [Result(**line) for line in json.loads(done.stdout)]
    text = page(results, failed, quick=quick, load=load, revision=revision)
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(text)
    print(text)
    return 1 if failed else 0


def page(results: dict[str, list[Result]], failed: list[str], *, quick: bool, load: float, revision: str) -> str:
    """The page in Markdown."""
    lines = [
        "# Benchmarks",
        "",
        "Written by `benchmarks/run.py`; do not edit. Limits and peers are measured in the same run, in turns.",
        "A ratio is the median over the rounds.",
        "",
        *machine(),
        f"- {'Quick run' if quick else 'Full run'} of {datetime.now(UTC):%Y-%m-%d}, commit {revision}",
        f"- Load average before the run: {load:.1f}. Where others work too, a ratio can be off either way",
        "",
        "To reproduce: `make bench`, or one of them with `.venv/bin/python benchmarks/log.py [--quick] [--dir DIR]`.",
    ]
    for script, rows in results.items():
        lines += ["", f"## {script}", "", "| name | value | unit | goal | met |", "|---|---:|---|---|---|"]
        lines += [
            f"| {row.name} | {number(row.value)} | {row.unit} | {row.goal or ''} | {verdict(row)} |" for row in rows
        ]
    for script in failed:
        lines += ["", f"## {script}", "", "It failed."]
    return "\n".join(lines) + "\n"


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

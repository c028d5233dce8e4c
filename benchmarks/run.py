"""Runs the benchmarks of this directory, or those that are named, and writes docs/benchmarks.md from their figures.

The figures of each benchmark are in docs/benchmarks/NAME.json; the pictures beside them and the page are made of those.
`--render` makes page and pictures again without running anything. Fails when a benchmark does, not when a goal is
missed: missed goals stand first on the page.
"""

import sys

if __name__ == "__main__":
    sys.path.append(f"{sys.path.pop(0)}/..")  # not this directory: its http.py is not what others mean by http

import argparse
import json
import os
import platform
import subprocess
from dataclasses import asdict
from datetime import UTC, datetime

from benchmarks.measure import Result
from benchmarks.page import Run, read_runs, write_page

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
DOCS = os.path.join(ROOT, "docs")
NOT_BENCHMARKS = {"chart.py", "claims.py", "compare.py", "measure.py", "page.py", "run.py"}


def run() -> int:
    """Run the command; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--render", action="store_true", help="run nothing: make page and pictures of the figures")
    scripts = sorted(name for name in set(os.listdir(HERE)) - NOT_BENCHMARKS if name.endswith(".py"))
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help=f"one of {', '.join(scripts)}; else all")
    given = parser.parse_args()
    if unknown := sorted(set(given.scripts) - set(scripts)):
        parser.error(f"there is no benchmark {unknown[0]}, only {', '.join(scripts)}")
    has_failed = False
    if not given.render:
        revision = commit()  # others may commit while we run
        for script in given.scripts or scripts:
            has_failed |= not measure(script, quick=given.quick, revision=revision)
    write_page(DOCS, read_runs(DOCS))
    return 1 if has_failed else 0


def measure(script: str, *, quick: bool, revision: str) -> bool:
    """Run one benchmark and store its figures; False if it failed, and the figures are those of before."""
    load = os.getloadavg()[0]
    command = [sys.executable, os.path.join(HERE, script), "--json", *(["--quick"] if quick else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    if done.returncode != 0:
        print(f"{script} failed; its figures stay as they were", file=sys.stderr)
        return False
    found = Run(
        script=script,
        is_quick=quick,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        commit=revision,
        load_average=round(load, 1),
        machine=machine(),
        results=[Result(**line) for line in json.loads(done.stdout)],
    )
    folder = os.path.join(DOCS, "benchmarks")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, f"{script.removesuffix('.py')}.json"), "w", encoding="utf-8") as file:
        file.write(json.dumps(asdict(found), indent=1) + "\n")
    return True


def machine() -> list[str]:
    """Say what it ran on, without its name."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return [
        f"{cpu_model()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB of memory",
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
    ]


def cpu_model() -> str:
    """Return what the kernel calls the processor, where it can be asked."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except FileNotFoundError:
        models = []
    return models[0] if models else platform.machine()


def commit() -> str:
    """Return the commit that the working tree is based on."""
    command = ["git", "rev-parse", "--short", "--quiet", "--verify", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "none yet"


if __name__ == "__main__":
    sys.exit(run())

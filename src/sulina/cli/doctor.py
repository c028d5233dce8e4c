"""`sulina doctor`: what a node needs of this machine, checked and measured, with what to do where it is not so.

With `--cluster` it judges a cluster instead: `cluster_facts` reads, `diagnosis` has the rules.
"""

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from msgspec import Struct

from sulina.addresses import address_text
from sulina.cli import terminal
from sulina.cli.cluster_flags import ALONE, ClusterFlags
from sulina.cli.remote import DEFAULT_URL
from sulina.config import DEFAULT_BROKER_ID, Settings
from sulina.config import load as load_settings

FSYNC_ROUNDS_MAX = 300
FSYNC_SECONDS_MAX = 1.5
FSYNC_BYTES = 4096
SLOW_MS = 10.0
FREE_BYTES_LOW, FREE_BYTES_NONE = 1 << 30, 100 << 20
CLOCK_SECONDS_MAX = 2.0
OPEN_FILES_LOW = 4096
JAVA_VERSIONS = (17, 21)


class Grade(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class CheckResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One check: what was found, and what to do about it."""

    check: str
    grade: Grade
    found: str
    advice: str | None = None
    figures: dict[str, float] | None = None


def doctor(
    *,
    cluster: bool = False,
    url: Annotated[str | None, Parameter(env_var="SULINA_URL")] = None,
    data: str | None = None,
    http: str | None = None,
    flags: ClusterFlags = ALONE,
    config: str | None = None,
    json: bool = False,
) -> int:
    """Check this machine for what a node needs; with --cluster find out what is wrong with a cluster.

    With --cluster it asks the brokers of --url. With --metadata, --objects and --data it looks into etcd, the archive
    and a data directory too, also when no broker answers. It writes nothing itself; a closed
    partition is asked for once, so its owner opens it if it can.

    Parameters
    ----------
    cluster
        Find out what is wrong with a cluster, instead of with this machine.
    url
        With --cluster: brokers to ask, with commas. Without it those that etcd knows, or http://127.0.0.1:8080.
    data
        The data directory to check, found as `sulina serve` finds it; with --cluster only if it is given.
    http
        HOST:PORT to check, found as `sulina serve` finds it.
    config
        A TOML file, as for `sulina serve`.
    json
        The findings as JSON.
    """
    # Its name and whether it may be reached are no matter of this machine.
    given = {"data": data, "http": http, "insecure": True, "broker_id": DEFAULT_BROKER_ID, **asdict(flags)}
    settings = load_settings(given, file=config)
    findings = []
    for finding in (
        _cluster_findings(settings, url, data) if cluster else (check(settings) for check in _checks(settings))
    ):
        findings.append(finding)
        if not json:
            _show(finding)
    if json:
        terminal.print_json({"is_healthy": _is_healthy(findings), "findings": findings})
    return 0 if _is_healthy(findings) else 1


def _checks(settings: Settings) -> Iterator[Callable[[Settings], CheckResult]]:
    yield from CHECKS
    if settings.etcd is not None or settings.objects is not None:
        from sulina.cli import doctor_cluster

        if settings.etcd is not None:
            yield doctor_cluster.check_etcd
        if settings.objects is not None:
            yield doctor_cluster.check_objects


def _cluster_findings(settings: Settings, url: str | None, data: str | None) -> Iterator[CheckResult]:
    import asyncio

    from sulina.cli import doctor_cluster
    from sulina.cli.cluster_facts import gather
    from sulina.cli.diagnosis import diagnose

    etcd = doctor_cluster.check_etcd(settings) if settings.etcd is not None else None
    urls = [each.strip() for each in (url or "").split(",") if each.strip()]
    if not urls and settings.etcd is None:
        urls = [DEFAULT_URL]
    facts = asyncio.run(gather(settings, urls=urls, data=data, etcd=etcd))
    yield from diagnose(facts)
    asked = {"--metadata": settings.etcd, "--objects": settings.objects, "--data": data}
    if left := [flag for flag, value in asked.items() if value is None]:
        terminal.say(f"not looked at, because not given: {', '.join(left)}")


def _is_healthy(findings: list[CheckResult]) -> bool:
    return all(finding.grade != Grade.FAIL for finding in findings)


def _show(finding: CheckResult) -> None:
    from rich.text import Text

    colour = {Grade.OK: "green", Grade.WARN: "yellow", Grade.FAIL: "red"}[finding.grade]
    line = Text.assemble((f"{finding.grade.upper():<5}", f"bold {colour}"), (f"{finding.check:<13}", "bold"))
    line.append(finding.found)
    terminal.out().print(line, soft_wrap=True)
    if finding.advice:
        terminal.out().print(Text(f"{'':18}{finding.advice}", style="dim"), soft_wrap=True)


def check_python(_settings: Settings) -> CheckResult:
    """The interpreter and the system under it."""
    found = (
        f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    )
    cores = os.cpu_count() or 1
    return CheckResult(check="python", grade=Grade.OK, found=f"{found}, {terminal.counted(cores, 'core')}")


def check_data(settings: Settings) -> CheckResult:
    """Whether the data directory can be written, and how much fits."""
    place = _existing(settings.data)
    try:
        if not place.is_dir():
            raise NotADirectoryError(f"{place} is not a directory")
        with _file_in(place) as number:
            os.write(number, b"sulina")
        free = shutil.disk_usage(place).free
    except OSError as error:
        return CheckResult(
            check="data",
            grade=Grade.FAIL,
            found=f"{settings.data} cannot be written: {error.strerror or error}",
            advice="give this user the right to write there, or choose another with --data",
        )
    new = "" if os.path.isdir(settings.data) else " (will be made)"
    found = f"{settings.data}{new} can be written, {terminal.bytes_text(free)} free"
    figures = {"free_bytes": float(free)}
    if free < FREE_BYTES_LOW:
        grade = Grade.FAIL if free < FREE_BYTES_NONE else Grade.WARN
        advice = "make room, or set retention on the topics"
        return CheckResult(check="data", grade=grade, found=found, advice=advice, figures=figures)
    return CheckResult(check="data", grade=Grade.OK, found=found, figures=figures)


def check_fsync(settings: Settings) -> CheckResult:
    """How long a small write takes to be durable: what every ack waits for."""
    place = _existing(settings.data)
    try:
        with _file_in(place) as number:
            times = _sync_times(number)
    except OSError as error:
        return CheckResult(
            check="fsync",
            grade=Grade.FAIL,
            found=f"a write in {place} cannot be made durable: {error.strerror or error}",
            advice="choose a directory on a local disk with --data",
        )
    p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
    figures = {"p50_ms": round(p50, 3), "p99_ms": round(p99, 3)}
    found = f"{p50:.2f} ms in the middle, {p99:.2f} ms at the 99th percentile"
    if _is_memory(place):
        advice = "this directory is in memory: nothing in it survives a restart; choose a disk with --data"
        return CheckResult(check="fsync", grade=Grade.WARN, found=found, advice=advice, figures=figures)
    if p50 > SLOW_MS:
        advice = f"an ack takes at least {p50:.0f} ms here; batches and many producers at once make up for it"
        return CheckResult(check="fsync", grade=Grade.WARN, found=found, advice=advice, figures=figures)
    return CheckResult(check="fsync", grade=Grade.OK, found=found, figures=figures)


def check_clock(settings: Settings) -> CheckResult:
    """Whether the wall clock, the file system's and the monotonic clock go together."""
    place = _existing(settings.data)
    wall, steady = time.time(), time.monotonic()
    try:
        with _file_in(place) as number:
            os.write(number, b"sulina")
            apart = os.fstat(number).st_mtime - time.time()
    except OSError:
        apart = 0.0  # the check of the directory says so
    time.sleep(0.05)
    jump = (time.time() - wall) - (time.monotonic() - steady)
    figures = {"file_system_seconds": round(apart, 3), "jump_seconds": round(jump, 6)}
    advice = "let a time service set the clock: timestamps, retention by age and leases go by it"
    if time.gmtime(wall).tm_year < 2024:
        found = f"it is not {time.strftime('%Y-%m-%d', time.gmtime(wall))}"
        return CheckResult(check="clock", grade=Grade.FAIL, found=found, advice=advice, figures=figures)
    if abs(apart) > CLOCK_SECONDS_MAX:
        found = f"the file system's clock is {apart:+.1f} s from this machine's"
        return CheckResult(check="clock", grade=Grade.WARN, found=found, advice=advice, figures=figures)
    if abs(jump) > 0.02:
        found = f"the wall clock went {1000 * jump:+.0f} ms from the monotonic one within a moment"
        return CheckResult(check="clock", grade=Grade.WARN, found=found, advice=advice, figures=figures)
    return CheckResult(
        check="clock", grade=Grade.OK, found="wall, file system and monotonic clock agree", figures=figures
    )


def check_port(settings: Settings) -> CheckResult:
    """Whether the port is free, or a node answers there."""
    address = address_text(settings.http_host, settings.http_port)
    family = socket.AF_INET6 if ":" in settings.http_host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.http_host, settings.http_port))
            listener.listen(1)
            return CheckResult(check="port", grade=Grade.OK, found=f"{address} is free")
        except OSError as error:
            reason = error.strerror or str(error)
    if _answers(f"http://{address}/health"):
        return CheckResult(check="port", grade=Grade.OK, found=f"a node answers at http://{address}")
    return CheckResult(
        check="port",
        grade=Grade.FAIL,
        found=f"cannot listen on {address}: {reason}",
        advice="end what uses it, or choose another with --http; port 0 takes any that is free",
    )


def check_open_files(settings: Settings) -> CheckResult:
    """How many files and connections a process may have open."""
    try:
        import resource
    except ImportError:
        return CheckResult(check="open files", grade=Grade.OK, found="no limit is known on this system")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # a node takes what the system grants
    if most == resource.RLIM_INFINITY:
        return CheckResult(check="open files", grade=Grade.OK, found="no limit")
    figures = {"most": float(most)}
    if most < OPEN_FILES_LOW:
        return CheckResult(
            check="open files",
            grade=Grade.WARN,
            found=f"at most {most:,}; a node may hold {settings.limits.connections_max:,} connections and its segments",
            advice="raise the hard limit: `ulimit -Hn`, LimitNOFILE= of systemd, or nofile in limits.conf",
            figures=figures,
        )
    return CheckResult(check="open files", grade=Grade.OK, found=f"at most {most:,}", figures=figures)


def check_java(_settings: Settings) -> CheckResult:
    """Spark needs Java; nothing else does."""
    home = os.environ.get("JAVA_HOME")
    command = os.path.join(home, "bin", "java") if home else "java"
    advice = f"only Spark needs it: install Java {' or '.join(map(str, JAVA_VERSIONS))} to use sulina.spark"
    try:
        told = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return CheckResult(check="java", grade=Grade.WARN, found="there is none", advice=advice)
    version = re.search(r'version "(?:1\.)?(\d+)([^"]*)"', told.stderr + told.stdout)
    if version is None:
        return CheckResult(check="java", grade=Grade.WARN, found="its version is not known", advice=advice)
    number = int(version[1])
    found = f"Java {version[1]}{version[2]}"
    if number not in JAVA_VERSIONS:
        return CheckResult(check="java", grade=Grade.WARN, found=found, advice=advice)
    return CheckResult(check="java", grade=Grade.OK, found=found)


CHECKS: list[Callable[[Settings], CheckResult]] = [
    check_python,
    check_data,
    check_fsync,
    check_clock,
    check_port,
    check_open_files,
    check_java,
]


def _existing(data: str) -> Path:
    """The directory, or the nearest one above it that exists: where it would be made."""
    place = Path(data).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


@contextmanager
def _file_in(place: Path) -> Iterator[int]:
    """A file to try things on, gone afterwards."""
    number, name = tempfile.mkstemp(prefix=".sulina-doctor-", dir=place)
    try:
        yield number
    finally:
        os.close(number)
        os.unlink(name)


def _sync_times(number: int) -> list[float]:
    """Milliseconds of each round, sorted."""
    sync = getattr(os, "fdatasync", os.fsync)
    block = os.urandom(FSYNC_BYTES)
    times: list[float] = []
    end = time.monotonic() + FSYNC_SECONDS_MAX
    while len(times) < FSYNC_ROUNDS_MAX and (time.monotonic() < end or not times):
        os.write(number, block)
        started = time.perf_counter()
        sync(number)
        times.append(1000 * (time.perf_counter() - started))
    return sorted(times)


def _is_memory(place: Path) -> bool:
    """Whether the file system that holds the directory is in memory."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return False
    over = [(len(words[1]), words[2]) for words in mounts if place.is_relative_to(words[1])]
    return bool(over) and max(over)[1] in ("tmpfs", "ramfs")


def _answers(url: str) -> bool:
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False

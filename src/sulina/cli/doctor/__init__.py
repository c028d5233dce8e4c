"""Command `sulina doctor`: checks that this machine can run a node, each with what to do if it fails.

With `--cluster` it diagnoses a cluster instead: `cluster_facts` reads its state, `diagnosis` has the rules.
"""

import os
import platform
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from msgspec import Struct

from sulina.addresses import address_text
from sulina.cli import terminal
from sulina.cli.flags.remote import DEFAULT_URL
from sulina.cli.flags.settings import ALONE, ClusterFlags
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
MOUNTS = Path("/proc/self/mounts")


class Grade(StrEnum):
    """The outcome of a check."""

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
    url: Annotated[
        str | None,
        Parameter(
            env_var="SULINA_URL",
            help="With --cluster: URLs of brokers to ask, comma-separated. Default: the brokers registered in etcd, "
            f"or {DEFAULT_URL}.",
        ),
    ] = None,
    data: str | None = None,
    http: str | None = None,
    flags: ClusterFlags = ALONE,
    config: str | None = None,
    json: bool = False,
) -> int:
    """Check that this machine can run a node; with --cluster, diagnose a cluster.

    With --cluster it asks the brokers of --url. With --metadata, --objects and --data it also reads etcd, the archive
    and a data directory, even if no broker answers. It changes nothing; it only asks for each closed partition once,
    which lets its owner open it if it can.

    Parameters
    ----------
    cluster
        Diagnose a cluster instead of this machine.
    data
        Data directory to check. Default: the one that `sulina serve` would use; none with --cluster.
    http
        HOST:PORT to check. Default: the address that `sulina serve` would use.
    config
        TOML file with settings, as for `sulina serve`.
    json
        Print the findings as JSON.
    """
    # The broker's ID and --insecure do not matter for these checks.
    given = {"data": data, "http": http, "insecure": True, "broker_id": DEFAULT_BROKER_ID, **flags.given()}
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
        from sulina.cli.doctor import stores

        if settings.etcd is not None:
            yield stores.check_etcd
        if settings.objects is not None:
            yield stores.check_objects


def _cluster_findings(settings: Settings, url: str | None, data: str | None) -> Iterator[CheckResult]:
    import asyncio

    from sulina.cli.doctor import stores
    from sulina.cli.doctor.cluster_facts import gather
    from sulina.cli.doctor.diagnosis import diagnose

    etcd = stores.check_etcd(settings) if settings.etcd is not None else None
    urls = [each.strip() for each in (url or "").split(",") if each.strip()]
    if not urls and settings.etcd is None:
        urls = [DEFAULT_URL]
    facts = asyncio.run(gather(settings, urls=urls, data=data, etcd=etcd))
    yield from diagnose(facts)
    asked = {"--metadata": settings.etcd, "--objects": settings.objects, "--data": data}
    if left := [flag for flag, value in asked.items() if value is None]:
        terminal.say(f"not checked, because not given: {', '.join(left)}")


def _is_healthy(findings: list[CheckResult]) -> bool:
    return all(finding.grade != Grade.FAIL for finding in findings)


def _show(finding: CheckResult) -> None:
    from rich.text import Text

    colour = {Grade.OK: "green", Grade.WARN: "yellow", Grade.FAIL: "red"}[finding.grade]
    line = Text.assemble((f"{finding.grade.upper():<5}", f"bold {colour}"), (f"{finding.check:<13}", "bold"))
    line.append(finding.found)
    terminal.console().print(line, soft_wrap=True)
    if finding.advice:
        terminal.console().print(Text(f"{'':18}{finding.advice}", style="dim"), soft_wrap=True)


def check_python(_settings: Settings) -> CheckResult:
    """Report the interpreter and the system."""
    found = (
        f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    )
    cores = os.cpu_count() or 1
    return CheckResult(check="python", grade=Grade.OK, found=f"{found}, {terminal.counted(cores, 'core')}")


def check_data(settings: Settings) -> CheckResult:
    """Check that the data directory can be written, and has room."""
    place = _existing(settings.data)
    try:
        with _file_in(place) as number:
            os.write(number, b"sulina")
        free = shutil.disk_usage(place).free
    except OSError as error:
        return CheckResult(
            check="data",
            grade=Grade.FAIL,
            found=f"cannot write to {settings.data}: {error.strerror or error}",
            advice="give this user write permission, or choose another directory with --data",
        )
    new = "" if os.path.isdir(settings.data) else " (will be created)"
    found = f"{settings.data}{new} is writable, {terminal.bytes_text(free)} free"
    figures = {"free_bytes": float(free)}
    if free < FREE_BYTES_LOW:
        grade = Grade.FAIL if free < FREE_BYTES_NONE else Grade.WARN
        advice = "free disk space, or set a retention for the topics"
        return CheckResult(check="data", grade=grade, found=found, advice=advice, figures=figures)
    return CheckResult(check="data", grade=Grade.OK, found=found, figures=figures)


def check_fsync(settings: Settings) -> CheckResult:
    """Measure how long a small write takes to be durable, which every ack waits for."""
    place = _existing(settings.data)
    try:
        with _file_in(place) as number:
            times = _sync_times(number)
    except OSError as error:
        return CheckResult(
            check="fsync",
            grade=Grade.FAIL,
            found=f"cannot sync a file in {place}: {error.strerror or error}",
            advice="choose a directory on a local disk with --data",
        )
    p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
    figures = {"p50_ms": round(p50, 3), "p99_ms": round(p99, 3)}
    found = f"median {p50:.2f} ms, 99th percentile {p99:.2f} ms"
    if _is_memory(place):
        advice = "this directory is in memory and does not survive a restart; choose one on a disk with --data"
        return CheckResult(check="fsync", grade=Grade.WARN, found=found, advice=advice, figures=figures)
    if p50 > SLOW_MS:
        advice = f"an ack takes at least {p50:.0f} ms here; use larger batches or more producers for throughput"
        return CheckResult(check="fsync", grade=Grade.WARN, found=found, advice=advice, figures=figures)
    return CheckResult(check="fsync", grade=Grade.OK, found=found, figures=figures)


def check_clock(settings: Settings) -> CheckResult:
    """Check that the wall clock, the file system's clock and the monotonic clock agree."""
    place = _existing(settings.data)
    wall, steady = time.time(), time.monotonic()
    try:
        with _file_in(place) as number:
            os.write(number, b"sulina")
            apart = os.fstat(number).st_mtime - time.time()
    except OSError:
        apart = 0.0  # check_data reports this
    time.sleep(0.05)
    jump = (time.time() - wall) - (time.monotonic() - steady)
    figures = {"file_system_seconds": round(apart, 3), "jump_seconds": round(jump, 6)}
    advice = "set the clock by a time service (NTP): timestamps, retention by age and leases depend on it"
    if time.gmtime(wall).tm_year < 2024:
        found = f"the clock is wrong: it shows {time.strftime('%Y-%m-%d', time.gmtime(wall))}"
        return CheckResult(check="clock", grade=Grade.FAIL, found=found, advice=advice, figures=figures)
    if abs(apart) > CLOCK_SECONDS_MAX:
        found = f"the file system's clock differs from this machine's by {apart:+.1f} s"
        return CheckResult(check="clock", grade=Grade.WARN, found=found, advice=advice, figures=figures)
    if abs(jump) > 0.02:
        found = f"the wall clock jumped by {1000 * jump:+.0f} ms during the check"
        return CheckResult(check="clock", grade=Grade.WARN, found=found, advice=advice, figures=figures)
    return CheckResult(
        check="clock", grade=Grade.OK, found="wall, file system and monotonic clock agree", figures=figures
    )


def check_port(settings: Settings) -> CheckResult:
    """Check that the port is free, or that a node answers there."""
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
        advice="stop the process that uses it, or choose another address with --http (port 0 picks a free port)",
    )


def check_open_files(settings: Settings) -> CheckResult:
    """Check how many files and connections a process may have open."""
    try:
        import resource
    except ImportError:
        return CheckResult(check="open files", grade=Grade.OK, found="this system has no known limit")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # a node takes what the system grants
    if most == resource.RLIM_INFINITY:
        return CheckResult(check="open files", grade=Grade.OK, found="no limit")
    figures = {"most": float(most)}
    connections = settings.http_limits.connections_max
    if most < OPEN_FILES_LOW:
        return CheckResult(
            check="open files",
            grade=Grade.WARN,
            found=f"at most {most:,}; a node may hold {connections:,} connections and its segments",
            advice="raise the hard limit: `ulimit -Hn`, LimitNOFILE= of systemd, or nofile in limits.conf",
            figures=figures,
        )
    return CheckResult(check="open files", grade=Grade.OK, found=f"at most {most:,}", figures=figures)


def check_java(_settings: Settings) -> CheckResult:
    """Check for a Java version that Spark runs on; nothing else needs Java."""
    home = os.environ.get("JAVA_HOME")
    command = os.path.join(home, "bin", "java") if home else "java"
    advice = f"install Java {' or '.join(map(str, JAVA_VERSIONS))} for Spark (sulina.spark); nothing else needs it"
    try:
        told = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return CheckResult(check="java", grade=Grade.WARN, found="not found", advice=advice)
    version = re.search(r'version "(?:1\.)?(\d+)([^"]*)"', told.stderr + told.stdout)
    if version is None:
        return CheckResult(check="java", grade=Grade.WARN, found="version unknown", advice=advice)
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
    """Return the directory, or the nearest existing one above it."""
    place = Path(data).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


@contextmanager
def _file_in(place: Path) -> Iterator[int]:
    """Yield the descriptor of a temporary file."""
    number, name = tempfile.mkstemp(prefix=".sulina-doctor-", dir=place)
    try:
        yield number
    finally:
        os.close(number)
        os.unlink(name)


def _sync_times(number: int) -> list[float]:
    """Return the milliseconds of each write and sync, sorted."""
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
    """Return whether the directory is on a file system in memory."""
    try:
        mounts = [line.split() for line in MOUNTS.read_text().splitlines()]
    except OSError:  # only Linux has this file
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

"""Checks of the stores that a cluster shares: etcd and the object store answer fast and correctly."""

import asyncio
import contextlib
import logging
import secrets
import ssl
import time
import urllib.request
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from sulina.cli import terminal
from sulina.cli.doctor import CLOCK_SECONDS_MAX, CheckResult, Grade
from sulina.config import EtcdAddress, Settings
from sulina.core.cluster import history
from sulina.errors import MetadataFailed, SulinaError

if TYPE_CHECKING:
    from sulina.metadata.etcd_settings import EtcdStatus

ROUNDS = 20
SLOW_ETCD_MS, SLOW_OBJECTS_MS = 50.0, 500.0
ETCD_VERSION_MIN = (3, 4)
ANSWER_SECONDS_MAX = 3.0
FULL_ADVICE = (
    "etcd has used up its quota (NOSPACE) and takes no writes, so nothing fails over. A running broker compacts it; "
    "without one, follow `etcd's size` in docs/guides/operations.md"
)
PRESSED_ADVICE = (
    "etcd is nearly full: raise its --quota-backend-bytes, or find out what fills it "
    "(`etcd's size` in docs/guides/operations.md)"
)
TIME_ADVICE = "set the clocks of both machines by a time service (NTP)"


def check_etcd(settings: Settings) -> CheckResult:
    """Check that the members of etcd answer, their version, their size, and how long a read takes."""
    etcd = settings.etcd
    assert etcd is not None
    statuses: list[EtcdStatus] = []
    times: list[float] = []
    faults: list[SulinaError] = []
    for endpoint in etcd.endpoints:
        one = replace(settings, metadata=f"etcd{'s' if etcd.is_tls else ''}://{endpoint}{etcd.prefix}")
        try:
            status, took = asyncio.run(_ask_etcd(one))
        except SulinaError as error:
            faults.append(error)
        else:
            statuses.append(status)
            times += took
    if not statuses:
        return _etcd_away(settings, faults[0])
    p50, p99 = _percentiles(times)
    apart = _etcd_clock(etcd, settings)
    version = min(statuses, key=lambda status: _numbers(status.version)).version
    size_bytes = max(status.db_bytes for status in statuses)
    figures = {
        "p50_ms": p50, "p99_ms": p99, "members": float(len(statuses)), "size_bytes": float(size_bytes)
    }  # fmt: skip
    if apart is not None:
        figures["clock_seconds"] = round(apart, 1)
    found = (
        f"{settings.metadata}: version {version}, {len(statuses)} of {terminal.counted(len(etcd.endpoints), 'member')} "
        f"answer, reads take {p50:.1f} ms (median), {p99:.1f} ms (99th percentile); "
        f"size {terminal.bytes_text(size_bytes)}"
    )
    advice = _etcd_advice(etcd, statuses, p50, apart)
    grade = Grade.WARN if advice else Grade.OK
    if _numbers(version) < ETCD_VERSION_MIN:
        grade, advice = Grade.FAIL, "upgrade etcd: Sulina needs 3.4 or newer"
    if any(status.is_full for status in statuses):
        grade, advice = Grade.FAIL, FULL_ADVICE
    return CheckResult(check="etcd", grade=grade, found=found, advice=advice, figures=figures)


def _etcd_away(settings: Settings, fault: SulinaError) -> CheckResult:
    found = f"{settings.metadata}: {fault}"
    advice = "correct the settings --metadata…"
    if isinstance(fault, MetadataFailed):
        found = f"{settings.metadata} does not answer: {fault.cause}"
        advice = "start etcd, or correct --metadata"
    return CheckResult(check="etcd", grade=Grade.FAIL, found=found, advice=advice)


async def _ask_etcd(settings: Settings) -> "tuple[EtcdStatus, list[float]]":
    from sulina.metadata.etcd import EtcdMetadata
    from sulina.node.cluster import open_metadata

    logging.getLogger("sulina.metadata").setLevel(logging.CRITICAL)  # the finding reports it
    store = await open_metadata(settings, settings.data)
    assert isinstance(store, EtcdMetadata)
    try:
        times = []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            await store.get("/cluster/leader")
            times.append(1000 * (time.perf_counter() - started))
        return await store.status(), times
    finally:
        await store.close()


def _etcd_advice(etcd: EtcdAddress, statuses: "list[EtcdStatus]", p50: float, apart: float | None) -> str | None:
    alarms = sorted({alarm for status in statuses for alarm in status.errors})
    if alarms:
        return f"clear the alarms of etcd: {', '.join(alarms)}"
    if len(statuses) < len(etcd.endpoints):
        here = {status.endpoint for status in statuses}
        away = [endpoint for endpoint in etcd.endpoints if endpoint not in here]
        return f"start the members that do not answer: {', '.join(away)}"
    if any(
        history.is_pressed(is_full=False, used_bytes=one.used_bytes, quota_bytes=one.quota_bytes or None)
        for one in statuses
    ):
        return PRESSED_ADVICE
    if apart is not None and abs(apart) > CLOCK_SECONDS_MAX:
        return f"etcd's clock differs from this machine's by {apart:+.0f} s; {TIME_ADVICE}"
    if p50 > SLOW_ETCD_MS:
        return "every change of owner waits for etcd several times: move it nearer, or to a faster disk"
    return None


def _etcd_clock(etcd: EtcdAddress, settings: Settings) -> float | None:
    """Return by how many seconds etcd's clock is ahead; None if it is unknown."""
    context = None
    if etcd.is_tls:
        try:
            context = ssl.create_default_context(cafile=settings.metadata_ca)
            if settings.metadata_cert is not None:
                context.load_cert_chain(settings.metadata_cert, settings.metadata_key)
        except OSError:
            return None
    url = f"http{'s' if etcd.is_tls else ''}://{etcd.endpoints[0]}/version"
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS_MAX, context=context) as answer:
            told = answer.headers["date"]
        return parsedate_to_datetime(told).timestamp() - time.time() + 0.5  # the header has whole seconds
    except (OSError, TypeError, ValueError):
        return None


def check_objects(settings: Settings) -> CheckResult:
    """Check that the object store can put, get, list, and refuse a second put, and how long a put takes."""
    from sulina.storage.objects import open_objects

    assert settings.objects is not None
    folder = f".sulina-doctor-{secrets.token_hex(8)}"
    try:
        objects = open_objects(settings.objects, endpoint=settings.objects_endpoint)
        try:
            times = []
            for number in range(ROUNDS):
                started = time.perf_counter()
                is_first = objects.put_if_absent(f"{folder}/{number}", b"sulina")
                times.append(1000 * (time.perf_counter() - started))
            is_refused = not objects.put_if_absent(f"{folder}/0", b"another")
            is_same = bytes(objects.get(f"{folder}/0") or b"") == b"sulina"
            [newest, *_] = sorted(objects.list(folder), key=lambda listed: -listed.modified)
            apart = newest.modified - time.time()
        finally:
            with contextlib.suppress(SulinaError):  # the first error says more
                objects.delete_all(folder)
    except SulinaError as error:
        advice = "check --objects, --objects-endpoint and the credentials in the environment"
        if settings.objects.startswith("file:"):
            advice = "choose a directory that this user can write to with --objects"
        return CheckResult(check="objects", grade=Grade.FAIL, found=f"{settings.objects}: {error}", advice=advice)
    p50, p99 = _percentiles(times)
    found = f"{settings.objects}: puts take {p50:.1f} ms (median), {p99:.1f} ms (99th percentile)"
    figures = {"p50_ms": p50, "p99_ms": p99, "clock_seconds": round(apart, 1)}
    if not (is_first and is_refused and is_same):
        return CheckResult(
            check="objects",
            grade=Grade.FAIL,
            found=f"{settings.objects} does not refuse a second put of the same object",
            advice="choose a store with conditional puts (If-None-Match): they fence former owners",
            figures=figures,
        )
    warning = None
    if abs(apart) > CLOCK_SECONDS_MAX:
        warning = f"the store's clock differs from this machine's by {apart:+.0f} s; {TIME_ADVICE}"
    elif p50 > SLOW_OBJECTS_MS:
        warning = "acks of the level `archived`, and moves, wait for it: choose a store that is nearer"
    return CheckResult(
        check="objects", grade=Grade.WARN if warning else Grade.OK, found=found, advice=warning, figures=figures
    )


def _percentiles(times_ms: list[float]) -> tuple[float, float]:
    ordered = sorted(times_ms)
    return round(ordered[len(ordered) // 2], 3), round(ordered[int(len(ordered) * 0.99)], 3)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())

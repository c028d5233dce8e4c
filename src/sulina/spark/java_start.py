"""Options with which Spark's Java starts in less than half the processor's time.

- **Class archive.** Java can map classes that are already parsed and verified instead of reading them. When a driver
  without such an archive has ended, a process in the background makes one in the user's cache
  (`~/.cache/sulina/java`, 200 MB), for this Java and this Spark. Java checks the archive and starts without it if it
  is damaged. `SPARK_SUBMIT_OPTS=-Xshare:off` leaves the archive out, and makes none.
- **Late optimization.** Java compiles what is hot twice: soon and simply, then well. Most of a short job's time went
  into the second. It begins ten times later here; a job that runs for minutes does not notice.
"""

import atexit
import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

OPTIONS = "SPARK_SUBMIT_OPTS"
ARCHIVES_MAX = 3
TRY_SECONDS = 24 * 3600.0  # between two attempts to make an archive
LATE = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000 "
    "-XX:Tier4BackEdgeThreshold=400000"
)
QUIET = "-Xlog:cds*=off -Xlog:dynamic*=off"
CHOSEN = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit")  # what a user, or a test, has decided already
NICE = 19


@contextlib.contextmanager
def quick_java(java: str, spark_home: str) -> Iterator[None]:
    """Let the Java that is started inside this context start quickly. What the user has set wins."""
    given = os.environ.get(OPTIONS, "")
    archive = None if any(word in given for word in CHOSEN) else archive_for(java, spark_home)
    ours = LATE
    if archive is not None and archive.exists():
        ours += f" -XX:SharedArchiveFile={archive} -XX:+VerifySharedSpaces {QUIET}"
    elif archive is not None and is_due(archive):
        atexit.register(make_later, archive, os.getpid())
    with _options(f"{ours} {given}".strip()):
        yield


def archive_for(java: str, spark_home: str) -> Path | None:
    """Return where the archive for this Java and this Spark is, or would be; None: there can be none."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sulina" / "java"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        parts = [Path(java).resolve(strict=True), Path(spark_home).resolve(strict=True) / "jars"]
        about = " ".join(f"{part} {part.stat().st_mtime_ns}" for part in parts)
    except (OSError, RuntimeError):  # there is no home
        return None
    archive = folder / f"{hashlib.sha256(about.encode()).hexdigest()[:16]}.jsa"
    has_space = any(character.isspace() for character in str(archive))
    return archive if os.access(folder, os.W_OK) and not has_space else None


def _tried(archive: Path) -> Path:
    return archive.with_suffix(".tried")


def is_due(archive: Path) -> bool:
    """Return whether nobody has tried to make the archive for a day: where it cannot be made, each try costs."""
    try:
        return time.time() - _tried(archive).stat().st_mtime >= TRY_SECONDS
    except OSError:
        return True


@contextlib.contextmanager
def _options(text: str) -> Iterator[None]:
    before = os.environ.get(OPTIONS)
    os.environ[OPTIONS] = text
    try:
        yield
    finally:
        if before is None:
            del os.environ[OPTIONS]
        else:
            os.environ[OPTIONS] = before


def make_later(archive: Path, driver: int) -> None:
    """Start a process that makes the archive, when the driver ends. It holds nothing of the driver's open."""
    if os.getpid() != driver:
        return
    apart = ("SPARK_REMOTE", "SPARK_MASTER", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", OPTIONS)
    with contextlib.suppress(OSError):
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(archive)],
            env={name: value for name, value in os.environ.items() if name not in apart},
            cwd=archive.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


# In the background


def make(archive: Path) -> None:
    """Make an archive of the classes that small jobs load, unless another process does. It appears whole."""
    with open(archive.with_suffix(".lock"), "w", encoding="utf-8") as lock, tempfile.TemporaryDirectory() as work:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        _tried(archive).touch()
        aside = Path(f"{archive}.aside")
        with _options(f"-XX:ArchiveClassesAtExit={aside} -Xlog:disable"):
            do_small_jobs(work)
        with open(aside, "rb") as file:
            os.fsync(file.fileno())
        aside.replace(archive)
        remove_others(archive)


def do_small_jobs(work: str) -> None:
    """Do what pipelines and audits do: queries, files of Parquet, a stream, tables. Then wait until Java has ended."""
    from pyspark import SparkContext

    from sulina.spark.delta_native import read_delta
    from sulina.spark.session import session

    spark = session("classes", master="local[2]", is_quiet=True)
    spark.range(10).selectExpr("id", "id % 2 as odd").write.parquet(f"{work}/rows")
    rows = spark.readStream.schema("id long, odd long").parquet(f"{work}/rows")
    table = f"{work}/table"
    writer = rows.writeStream.format("sulina-delta").options(path=table, checkpointLocation=f"{work}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    read_delta(spark, table).createOrReplaceTempView("rows")
    spark.sql("select odd, count(*), sum(id) from rows group by odd order by odd").toArrow()
    gateway = SparkContext._gateway  # noqa: SLF001  (PySpark has no other way to end its Java process)
    assert gateway is not None
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def remove_others(archive: Path) -> None:
    """Remove all archives but the newest."""
    others = [other for other in archive.parent.glob("*.jsa") if other != archive]
    others.sort(key=lambda other: other.stat().st_mtime, reverse=True)
    for other in others[ARCHIVES_MAX - 1 :]:
        for path in (other, _tried(other), other.with_suffix(".lock")):
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    os.nice(NICE)
    with contextlib.suppress(AttributeError, OSError):  # of Linux: only what nobody else needs of the processors
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    make(Path(sys.argv[1]))

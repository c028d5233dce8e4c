"""Options with which Spark's Java starts in less than half the processor's time.

- **Class archive.** The first Java that ends without one leaves an archive of all classes that it has loaded in the
  user's cache; later ones map it instead of reading, parsing and verifying them. Java writes it after its program has
  ended, the head last, and ignores an archive that it cannot use, so nothing else is needed to be safe.
- **Late optimization.** Java compiles what is hot twice: soon and simply, then well. Most of a short job's time went
  into the second. It begins ten times later here; a job that runs for minutes does not notice.

`SPARK_SUBMIT_OPTS=-Xshare:off` leaves the archive out.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

OPTIONS = "SPARK_SUBMIT_OPTS"
HEAD_BYTES = 4  # not all of them zero in an archive that was written to its end
ARCHIVES_MAX = 3
LATE = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000 "
    "-XX:Tier4BackEdgeThreshold=400000"
)
QUIET = "-Xlog:cds*=off -Xlog:dynamic*=off"
CHOSEN = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit")  # what a user, or a test, has decided already


@contextlib.contextmanager
def quick_java(java: str, spark_home: str) -> Iterator[None]:
    """Let the Java that is started inside this context start quickly. What the user has set wins."""
    before = os.environ.get(OPTIONS)
    given = before or ""
    ours = LATE if any(word in given for word in CHOSEN) else f"{LATE} {_archive_options(java, spark_home)}"
    os.environ[OPTIONS] = f"{ours} {given}".strip()
    try:
        yield
    finally:
        if before is None:
            del os.environ[OPTIONS]
        else:
            os.environ[OPTIONS] = before


def _archive_options(java: str, spark_home: str) -> str:
    """Return the options that use the archive of this Java and this Spark, or make it; none if there can be none."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sulina" / "java"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        parts = [Path(java).resolve(strict=True), Path(spark_home).resolve(strict=True) / "jars"]
        about = " ".join(f"{part} {part.stat().st_mtime_ns}" for part in parts)
    except OSError:
        return ""
    archive = folder / f"{hashlib.sha256(about.encode()).hexdigest()[:16]}.jsa"
    if any(character.isspace() for character in str(archive)) or not os.access(folder, os.W_OK):
        return ""
    if _is_whole(archive):
        return f"-XX:SharedArchiveFile={archive} {QUIET}"
    _remove_others(folder, archive)
    return f"-XX:ArchiveClassesAtExit={archive} {QUIET}"


def _is_whole(archive: Path) -> bool:
    try:
        with archive.open("rb") as file:
            return any(file.read(HEAD_BYTES))
    except OSError:
        return False


def _remove_others(folder: Path, archive: Path) -> None:
    """Remove all archives but the newest: each has a hundred megabytes or more."""
    with contextlib.suppress(OSError):
        others = [other for other in folder.glob("*.jsa") if other != archive]
        others.sort(key=lambda other: other.stat().st_mtime, reverse=True)
        for other in others[ARCHIVES_MAX - 1 :]:
            other.unlink(missing_ok=True)

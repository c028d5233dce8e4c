"""A home for Spark in which its processes start in half the time. `make test` makes it; tests use it if it is there.

    .venv/bin/python -m tests.support.spark_home

It is the installed PySpark by links, with two differences:

- `pyspark.zip` is missing. Spark would put it before the installed package, and Python compiles it in every process.
- `classes.jsa` holds the classes that Java loads to start a session and run a query, already parsed and verified.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

HOME = Path(sys.prefix).resolve() / f"spark-{version('pyspark')}"
ARCHIVE = HOME / "classes.jsa"
# No Java lives long in tests: what is compiled well comes too late for it.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ZIPS = "python/lib"
KERNELS = (  # tests that together call nearly all of them
    "tests/core/records/test_columns.py::test_batches_of_any_codec_end_to_end_decode_as_records_do",
    "tests/core/records/test_columns.py::test_chunks_strings_large_binaries_and_other_timestamps_are_taken",
    "tests/core/records/test_rows.py::test_any_number_of_rows_is_encoded_and_decoded",
    "tests/core/records/test_rows.py::test_headers_are_encoded_too",
    "tests/core/records/test_rows.py::test_batches_with_holes_between_them_decode_from_the_offset_on",
    "tests/spark/test_decoding_avro.py::test_a_place_inside_of_a_datum_is_named",
)
SECONDS_MAX = 600


def java_options() -> str:
    """Return what Java is started with in tests. What cannot be used of the archive is passed over in silence."""
    return f"{JAVA_OPTIONS} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else JAVA_OPTIONS


def link(package: Path, home: Path) -> None:
    """Link everything of the package but its zips."""
    shutil.rmtree(home, ignore_errors=True)
    (home / "python").mkdir(parents=True)
    for path in [*package.iterdir(), *(package / "python").iterdir()]:
        name = path.relative_to(package)
        if str(name) not in ("python", ZIPS):
            (home / name).symlink_to(path)


def make(home: Path) -> None:
    """Link the home, then start a session there that leaves its classes when it ends.

    Tests and kernels are compiled meanwhile, on the other core: otherwise each process of the first run does it for
    itself.
    """
    from pyspark.find_spark_home import _find_spark_home

    os.environ.pop("SPARK_HOME", None)
    link(Path(_find_spark_home()), home)
    dump = home / "classes.tmp"
    options = f"{JAVA_OPTIONS} -XX:ArchiveClassesAtExit={dump} -Xlog:disable"
    environment = os.environ | {"SPARK_HOME": str(home), "SPARK_SUBMIT_OPTS": options}
    compiling = subprocess.Popen([sys.executable, "-m", __spec__.name, "--compile"], stdout=subprocess.DEVNULL)
    subprocess.run([sys.executable, "-m", __spec__.name, "--run"], env=environment, timeout=SECONDS_MAX, check=True)
    dump.rename(home / ARCHIVE.name)
    compiling.wait(SECONDS_MAX)


def run() -> None:
    """Do what tests do, and wait until Java has ended."""
    from sulina.spark.java_start import do_small_jobs

    with tempfile.TemporaryDirectory() as work:
        do_small_jobs(work)


def compile_all() -> None:
    """Load every test, and run some that use the kernels: what this compiles is kept for all that come later."""
    for words in (["--collect-only"], [*KERNELS]):
        subprocess.run([sys.executable, "-m", "pytest", "-n", "0", *words], stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    if "--run" in sys.argv:
        run()
    elif "--compile" in sys.argv:
        compile_all()
    elif not ARCHIVE.exists() and shutil.which("java"):
        make(HOME)

"""A SparkSession that is set up for topics and tables, wherever it runs.

`local[*]` unless told; a standalone cluster by `master="spark://…"`, a Spark Connect server by `remote="sc://…"`: the
tests run on these three. Other masters (`yarn`, `k8s://…`) are passed to Spark as they are, and nobody has tried them.

Executors need this package and PySpark, in the interpreter that `PYSPARK_PYTHON` names; nothing else. What a user has
set, in `settings` or in `spark-defaults.conf`, is left as it is.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from pyspark import SparkContext
from pyspark.errors import PySparkException, PySparkImportError
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from sulina.addresses import split_address
from sulina.errors import InvalidSettings
from sulina.spark.errors import SparkUnavailable
from sulina.spark.java_start import quick_java
from sulina.spark.python_forks import PythonForks
from sulina.spark.quiet_start import holding_back

LOCAL = "local[*]"
SETTINGS = {
    # Filters on partition, offset, timestamp and version then decide what is read at all.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Checkpoints by plain renames: a micro-batch with nothing to do takes two thirds of the time.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Rows become Arrow for Python in batches of this size. With a bound of bytes too, Spark adds up what all columns
    # hold after each row, which takes more than half of the time of writing a table.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.session.timeZone": "UTC",
    "spark.python.daemon.module": "sulina.spark.daemon",  # whose workers have nothing to import
}
LOOPBACK_SETTINGS = {  # where all that this driver speaks to is on this machine
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
LOCAL_SETTINGS = LOOPBACK_SETTINGS | {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
}
JAVA_MIN = 17
PORTS = {"spark": 7077, "sc": 15002}  # where a URL names none
CONNECT_SECONDS_MAX = 10.0
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def session(
    name: str = "sulina",
    *,
    master: str | None = None,
    remote: str | None = None,
    settings: Mapping[str, str] | None = None,
    is_quiet: bool = False,
) -> SparkSession:
    """Return the session of this process, and create it if the process has no session yet.

    Where neither `master` nor `remote` is given, SPARK_REMOTE or SPARK_MASTER is used. With `is_quiet`, what Java
    prints while it starts is shown only if it fails.

    Raises:
        SparkUnavailable: Java or PySpark is missing, or nothing listens there.
        InvalidSettings: `master` and `remote` contradict each other, or a URL has an address that is not HOST:PORT.
    """
    if master is None and remote is None:
        remote = os.environ.get("SPARK_REMOTE")
    elif master is not None and (remote is not None or "SPARK_REMOTE" in os.environ):
        raise InvalidSettings(
            f"both master {master} and remote {remote or '$SPARK_REMOTE'} are given: set only one of them"
        )
    if remote is not None:
        return _connected(name, remote, settings or {})
    java = check_java()
    chosen = master or os.environ.get("SPARK_MASTER") or LOCAL
    given = settings_for(chosen) | dict(settings or {})
    if is_quiet:
        level = "ERROR" if chosen.startswith("local") else "WARN"  # such as that a cluster has nothing to spare
        given = {"spark.log.level": level, "spark.ui.showConsoleProgress": "false"} | given
    if not chosen.startswith("local"):
        _check_reached(chosen)
    given = {"spark.master": chosen, "spark.app.name": name, **given}
    try:
        holding = holding_back(given) if is_quiet else contextlib.nullcontext()
        with _python(given), quick_java(java, _find_spark_home()), holding:
            spark = SparkSession.builder.config(map={**given}).getOrCreate()
    except PySparkException as error:
        raise SparkUnavailable(f"Spark did not start at {chosen}: {error}") from error
    if chosen.startswith("local"):
        _share_workers(spark.sparkContext)
    return spark


def cloned(spark: SparkSession) -> SparkSession:
    """Return a session with the settings, temporary views and functions of another, which stays as it is."""
    if hasattr(spark, "cloneSession"):  # Spark Connect
        made: SparkSession = spark.cloneSession()
        return made
    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())  # noqa: SLF001 - only Java has it


@contextlib.contextmanager
def _python(settings: Mapping[str, str]) -> Iterator[None]:
    """Set which Python Spark starts: the user's choice; on this machine alone forks; else the driver's own."""
    names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    is_chosen = "PYSPARK_PYTHON" in os.environ or "spark.pyspark.python" in settings
    is_here = settings["spark.master"].startswith("local") and SparkContext._gateway is None  # noqa: SLF001
    forks = PythonForks.shared() if is_here and not is_chosen else None
    before = {name: os.environ.get(name) for name in names}
    if forks is not None:
        os.environ.update(dict.fromkeys(names, forks.script))
    else:
        os.environ.setdefault("PYSPARK_PYTHON", settings.get("spark.pyspark.python", sys.executable))
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    try:
        yield
    finally:
        if forks is not None:
            forks.start()  # only now: until the session is there Java has enough to do
            for name, value in before.items():
                if value is None:  # other programs that this one starts have Python itself
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _share_workers(context: SparkContext) -> None:
    """Let functions of this driver run in the Python processes that Spark has for sources it finds by itself.

    Spark keeps processes apart by the environment they were asked for with. It asks for these with its own path, and
    for those with a seed of hashes, which on one machine all have anyway. A daemon takes seconds to start.
    """
    if context.environment == {"PYTHONHASHSEED": "0"}:  # a user has set nothing else
        java: Any = context._jvm  # noqa: SLF001 - there is no other way to ask
        paths = (java.org.apache.spark.api.python.PythonUtils.sparkPythonPath(), os.environ.get("PYTHONPATH"))
        context.environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def settings_for(master: str) -> dict[str, str]:
    """Return our settings for a master, without those that the user's `spark-defaults.conf` has.

    Raises:
        InvalidSettings: the master's URL has an address that is not HOST:PORT.
    """
    ours = dict(SETTINGS)
    if master.startswith("local"):
        ours |= LOCAL_SETTINGS
    elif {host for host, _port in _hosts(master)} & _LOOPBACK:
        ours |= LOOPBACK_SETTINGS
    theirs = _user_defaults()
    return {key: value for key, value in ours.items() if key not in theirs}


def _user_defaults() -> set[str]:
    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(_find_spark_home(), "conf")
    try:
        with open(os.path.join(folder, "spark-defaults.conf"), encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except OSError:
        return set()
    return {re.split(r"[\s=:]", line, maxsplit=1)[0] for line in lines if line and line[0] not in "#!"}


def _connected(name: str, remote: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session of a Spark Connect server. Only settings of SQL belong to a session, others to the server."""
    _check_reached(remote)
    given = {key: value for key, value in (SETTINGS | dict(settings)).items() if key.startswith("spark.sql.")}
    try:
        return SparkSession.builder.remote(remote).appName(name).config(map={**given}).getOrCreate()
    except PySparkImportError as error:
        raise SparkUnavailable(f"{error}: pip install 'sulina[connect]'") from None
    except PySparkException as error:
        raise SparkUnavailable(f"{remote} does not answer as a Spark Connect server: {error}") from error


def _check_reached(address: str) -> None:
    """Check that something listens there: Spark itself would try for minutes.

    Raises:
        SparkUnavailable: nothing does.
        InvalidSettings: the URL has an address that is not HOST:PORT.
    """
    hosts = list(_hosts(address))
    for host, port in hosts:
        with contextlib.suppress(OSError), socket.create_connection((host, port), CONNECT_SECONDS_MAX):
            return
    if hosts:
        raise SparkUnavailable(f"nobody listens at {address}: is Spark running there?")


def _hosts(address: str) -> Iterator[tuple[str, int]]:
    """Return the hosts of `spark://a:1,b:2` and `sc://a:1/;…`; nothing for other masters."""
    parts = urlsplit(address)
    if parts.scheme in PORTS:
        for one in parts.netloc.split(","):
            yield split_address(one, default_port=PORTS[parts.scheme])


def check_java() -> str:
    """Return the path of a Java that Spark can use.

    Raises:
        SparkUnavailable: no Java was found.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "no java is on the path"
        raise SparkUnavailable(
            f"Spark needs Java {JAVA_MIN} or newer, and {where}: install one (apt-get install "
            f"openjdk-{JAVA_MIN}-jre-headless, brew install openjdk), or set JAVA_HOME"
        )
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    version = said.stderr.partition('"')[2].partition(".")[0]
    if version.isdecimal() and int(version) < JAVA_MIN:
        raise SparkUnavailable(
            f"Spark needs Java {JAVA_MIN} or newer; {java} is {version}: set JAVA_HOME to a newer one"
        )
    return java

"""A SparkSession that is set up for topics and tables, wherever it runs.

`local[*]` unless told; `spark://…`, `yarn`, `k8s://…` by `master`, a Spark Connect server by `remote`. Executors need
the wheel and nothing else. What a user has set already, in code or in `spark-defaults.conf`, is left as it is.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from sulina.spark.errors import SparkUnavailable

LOCAL = "local[*]"
SETTINGS = {
    # Filters on partition, offset, timestamp and version then decide what is read at all.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Checkpoints by plain renames: a micro-batch with nothing to do takes two thirds of the time.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.session.timeZone": "UTC",
    "spark.python.daemon.module": "sulina.spark.daemon",  # whose workers have nothing to import
}
LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
}
JAVA_MIN = 17


def session(
    name: str = "sulina",
    *,
    master: str | None = None,
    remote: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """The session of this process, made if there is none. SparkUnavailable says what is missing."""
    if remote is not None:
        builder = SparkSession.builder.remote(remote).appName(name)
        defaults = {key: value for key, value in SETTINGS.items() if key.startswith("spark.sql.python")}
    else:
        check_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        chosen = master or os.environ.get("SPARK_MASTER") or LOCAL
        builder = SparkSession.builder.master(chosen).appName(name)
        defaults = SETTINGS | (LOCAL_SETTINGS if chosen.startswith("local") else {})
    for key, value in (defaults | dict(settings or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def check_java() -> str:
    """The path of a Java that Spark can use. SparkUnavailable."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on the path"
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

"""A real Spark standalone cluster and a real Spark Connect server: processes on loopback, on ports that are free."""

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from sulina.spark.session import LOOPBACK_SETTINGS
from tests.support import spark_home

HOST = "127.0.0.1"
START_SECONDS = 120.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.05
WORKERS = 2
JAVA_OPTIONS = spark_home.java_options()
CONNECT_STARTED = r"Spark Connect server started at: \S+:(\d+)"


@dataclass(slots=True)
class Java:
    """A process of Spark's, and what it says."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait_for(self, pattern: str) -> str:
        """Until it has said something; what is in the brackets of the pattern."""
        deadline = time.monotonic() + START_SECONDS
        while (found := re.search(pattern, self.log.read_text(errors="replace"))) is None:
            assert self.process.poll() is None, f"it ended:\n{self.log.read_text(errors='replace')[-4000:]}"
            assert time.monotonic() < deadline, f"no {pattern!r}:\n{self.log.read_text(errors='replace')[-4000:]}"
            time.sleep(POLL_SECONDS)
        return found.group(1)

    def stop(self) -> None:
        """Gracefully, if it can be: a worker takes its executors along."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_SECONDS)


def start(
    name: str, folder: Path, python: Mapping[str, str], script: str, *arguments: str, cwd: Path | None = None
) -> Java:
    """One of Spark's own scripts: each becomes the process that it starts."""
    log = folder / f"{name}.log"
    memory = "256m" if script == "spark-class" else "1g"  # a Spark Connect server does the work itself
    environment = {
        "SPARK_DAEMON_MEMORY": memory,
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        "SPARK_LOCAL_DIRS": str(folder),
        **python,
    }
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [f"{_find_spark_home()}/bin/{script}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
            cwd=cwd or folder,
        )
    return Java(process, log)


@dataclass(slots=True)
class Clusters:
    """Where Spark runs."""

    master: Java
    workers: list[Java]
    connect: Java
    master_url: str
    connect_url: str


@contextlib.contextmanager
def connect_alone(folder: Path, python: Mapping[str, str], *, cwd: Path) -> Iterator[str]:
    """The URL of a Spark Connect server without a cluster beside it; `cwd` is where its relative paths begin."""
    java = start("connect", folder, python, "spark-submit", *connect_server(folder), cwd=cwd)
    try:
        yield connect_url(java)
    finally:
        java.stop()


def connect_url(java: Java) -> str:
    """Wait until a Spark Connect server is ready."""
    return f"sc://{HOST}:{java.wait_for(CONNECT_STARTED)}"


@contextlib.contextmanager
def clusters(folder: Path, python: Mapping[str, str]) -> Iterator[Clusters]:
    """All of it, started side by side; whatever happens, its processes are gone afterwards.

    `python` is the environment that says which Python it uses.
    """
    with contextlib.ExitStack() as stack:

        def run(name: str, script: str, *arguments: str) -> Java:
            java = start(name, folder, python, script, *arguments)
            stack.callback(java.stop)
            return java

        place = ("--host", HOST, "--port", "0", "--webui-port", "0")
        master = run("master", "spark-class", "org.apache.spark.deploy.master.Master", *place)
        connect = run("connect", "spark-submit", *connect_server(folder))
        master_url = master.wait_for(r"Starting Spark master at (spark://\S+:\d+)")
        worker = ("spark-class", "org.apache.spark.deploy.worker.Worker", *place, "--cores", "1", "--memory", "1g")
        workers = [
            run(f"worker-{number}", *worker, "--work-dir", str(folder / f"worker-{number}"), master_url)
            for number in range(WORKERS)
        ]
        for one in workers:
            one.wait_for("Successfully (registered) with master")
        yield Clusters(master, workers, connect, master_url, connect_url(connect))


def connect_server(folder: Path) -> list[str]:
    """As docs/guides/spark.md starts one, on a port that is free."""
    settings = LOOPBACK_SETTINGS | {
        "spark.python.daemon.module": "sulina.spark.daemon",
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    given = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    return ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]", *given]

"""One Spark session and one node for all tests of a worker; each test has topics of its own."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import sulina
from sulina.client import SyncClient
from sulina.spark.session import session
from tests.support import serving
from tests.support.forked_python import forks

_numbers = itertools.count()


@pytest.fixture(scope="session")
def spark_python() -> Mapping[str, str]:
    """The environment in which other programs' Java starts forks instead of Python processes, as our session does."""
    return {"PYSPARK_PYTHON": forks().script, "PYSPARK_DRIVER_PYTHON": forks().script}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """On two cores of this machine."""
    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.shuffle.partitions": "1",  # for what a handful of rows needs
        # Each plan runs once, on a handful of rows: compiling it, and planning it again, takes longer than running it.
        # The drivers of test_exactly_once.py and test_where_it_runs.py are as Spark has them.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
    }
    made = session("tests", master="local[2]", settings=settings)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[serving.Serving]:
    """A real node with an archive in a folder."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "objects").mkdir()
    with serving.serving(folder / "data", arguments=["--objects", f"file://{folder}/objects"]) as node:
        yield node


@pytest.fixture(scope="session")
def client(node: serving.Serving) -> Iterator[SyncClient]:
    with sulina.connect_sync(node.url) as client:
        yield client


@pytest.fixture
def topic(client: SyncClient) -> Callable[..., str]:
    """Makes a topic that nobody else has."""

    def make(partitions: int = 1, **settings: object) -> str:
        name = f"/default/spark-{next(_numbers)}"
        settings.setdefault("policy", {"validate": False})  # what does not fit a schema is for the tables to put aside
        client.admin.create_topic(name, partitions=partitions, **settings)  # type: ignore[arg-type]
        return name

    return make


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path)

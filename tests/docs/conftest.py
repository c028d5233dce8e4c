"""Pages, and readers of them in folders that are empty at first."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.forked_python import forks
from tests.support.page_run import PageReader, page_reader

# Each plan runs once, on a handful of rows: compiling it takes longer than running it. As a user may have it.
SPARK_DEFAULTS = """
spark.master local[2]
spark.sql.shuffle.partitions 1
spark.sql.codegen.wholeStage false
spark.sql.codegen.factoryMode NO_CODEGEN
spark.sql.adaptive.enabled false
"""


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment in which programs are forks, and Spark has the settings of tests."""
    conf = tmp_path_factory.mktemp("conf")
    (conf / "spark-defaults.conf").write_text(SPARK_DEFAULTS)
    script = forks().script
    return {"PYSPARK_PYTHON": script, "PYSPARK_DRIVER_PYTHON": script, "SPARK_CONF_DIR": str(conf)}


@pytest.fixture
def make_reader(tmp_path: Path, python: Mapping[str, str]) -> Iterator[Callable[[], PageReader]]:
    """Makes readers, each with a folder of its own."""
    with ExitStack() as readers:
        count = 0

        def make() -> PageReader:
            nonlocal count
            count += 1
            return readers.enter_context(page_reader(tmp_path / f"folder-{count}", tmp_path / f"state-{count}", python))

        yield make

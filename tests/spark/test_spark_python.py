"""Forks that stand for Spark's Python processes in tests behave as these do."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.spark_python import CLIENT, SCRIPT

SECONDS_MAX = 30.0
TELLS = """
import os, sys
print(__name__, os.getcwd(), os.environ["COLOUR"], sys.argv[1:], "pyspark.worker_util" in sys.modules)
print(sys.stdin.read(), file=sys.stderr)
sys.exit(7)
"""
STAYS = """
import os, sys
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def started(
    folder: Path, environment: Mapping[str, str], module: str, text: str, *words: str
) -> "subprocess.Popen[str]":
    (folder / f"{module}.py").write_text(text)
    return subprocess.Popen(
        [sys.executable, "-IS", str(CLIENT), "-m", module, *words],
        cwd=folder,
        env=os.environ | environment | {"COLOUR": "red"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_fork_has_the_arguments_environment_files_and_exit_code_of_who_asked(
    spark_python: Mapping[str, str], tmp_path: Path
) -> None:
    with started(tmp_path, spark_python, "tells", TELLS, "one", "two") as process:
        said, complained = process.communicate("asked", timeout=SECONDS_MAX)
    assert said == f"__main__ {tmp_path} red ['one', 'two'] True\n"
    assert complained == "asked\n"
    assert process.returncode == 7


@pytest.mark.parametrize("how", ["killed", "its input ends"])
def test_a_fork_ends_with_who_asked_for_it(spark_python: Mapping[str, str], tmp_path: Path, how: str) -> None:
    with started(tmp_path, spark_python, "stays", STAYS) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        pid = int(process.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        assert pid != process.pid
        if how == "killed":
            process.kill()
        else:
            process.stdin.close()
        deadline = time.monotonic() + SECONDS_MAX
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline, "it goes on alone"
            time.sleep(0.01)
        assert (process.wait(SECONDS_MAX) == 0) is (how != "killed")


def test_what_is_not_forked_is_python_itself(spark_python: Mapping[str, str]) -> None:
    """The daemon of workers is one of them: what it imports is for tests to see."""
    code = "import sys; print(sys.argv, 'pyspark' in sys.modules)"
    done = subprocess.run(
        [str(SCRIPT), "-c", code, "x"], env=os.environ | spark_python, capture_output=True, text=True, check=True
    )
    assert done.stdout == "['-c', 'x'] False\n"

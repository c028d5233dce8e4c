"""Forks that stand for Spark's Python processes behave as these do, and end with the driver."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sulina.spark.python_forks import CLIENT, PythonForks
from tests.support.forked_python import asking, forks

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


DRIVER = """
import sys
from sulina.spark.python_forks import PythonForks
forks = PythonForks.shared()
forks.start()
print(forks.address, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def server() -> PythonForks:
    return forks()


def started(address: str, folder: Path, module: str, text: str, *words: str) -> "subprocess.Popen[str]":
    """A client that asks for a module of the test's own; from Spark it takes only those that import much."""
    (folder / f"{module}.py").write_text(text)
    return subprocess.Popen(
        [*asking(address), "-m", module, *words],
        cwd=folder,
        env=os.environ | {"COLOUR": "red"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "it goes on alone"
        time.sleep(0.01)


def test_a_fork_has_the_arguments_environment_files_and_exit_code_of_its_client(
    server: PythonForks, tmp_path: Path
) -> None:
    with started(server.address, tmp_path, "tells", TELLS, "one", "two") as process:
        said, complained = process.communicate("asked", timeout=SECONDS_MAX)
    assert said == f"__main__ {tmp_path} red ['one', 'two'] True\n"
    assert complained == "asked\n"
    assert process.returncode == 7


@pytest.mark.parametrize("how", ["killed", "its input ends"])
def test_a_fork_ends_with_its_client(server: PythonForks, tmp_path: Path, how: str) -> None:
    with started(server.address, tmp_path, "stays", STAYS) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        pid = int(process.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        assert pid != process.pid
        if how == "killed":
            process.kill()
        else:
            process.stdin.close()
        wait_gone(pid)
        assert (process.wait(SECONDS_MAX) == 0) is (how != "killed")


@pytest.mark.parametrize("how", ["killed", "its input ends"])
def test_forks_and_their_server_end_with_the_driver(tmp_path: Path, how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdin is not None
        address = driver.stdout.readline().strip()
        with started(address, tmp_path, "stays", STAYS) as process:
            assert process.stdout is not None
            fork = int(process.stdout.readline())
            status = Path(f"/proc/{fork}/status").read_text()
            server = int(status.partition("PPid:")[2].split()[0])
            if how == "killed":
                driver.kill()
            else:
                driver.stdin.close()
            wait_gone(fork)
            wait_gone(server)
            process.wait(SECONDS_MAX)
    assert (not Path(address).exists()) is (how != "killed"), "who ends by itself removes its folder"


def test_what_is_not_forked_is_python_itself_and_so_is_everything_when_the_server_is_gone(
    server: PythonForks, tmp_path: Path
) -> None:
    code = "import sys; print(sys.argv, 'pyspark' in sys.modules)"
    done = subprocess.run([server.script, "-c", code, "x"], capture_output=True, text=True, check=True)
    assert done.stdout == "['-c', 'x'] False\n"
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    (tmp_path / "pyspark" / "daemon.py").write_text("print('run by', __name__)")
    gone = str(tmp_path / "nobody")
    words = [sys.executable, "-IS", str(CLIENT), gone, "-m", "pyspark.daemon"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "run by __main__\n"

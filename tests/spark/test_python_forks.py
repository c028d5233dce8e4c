"""Forks that stand for Spark's Python processes behave as these do, and end with the driver."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from sulina.spark.python_forks import CLIENT, PythonForks
from tests.support.forked_python import asking, forks

SECONDS_MAX = 10.0
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


FORKING_DRIVER = """
import os, signal, sys
from sulina.spark.python_forks import PythonForks
forks = PythonForks.shared()
forks.start()
ended = os.fork()
if ended == 0:
    sys.exit()
os.waitpid(ended, 0)
child = os.fork()
if child == 0:
    os.close(1)
    signal.pause()
print(forks.address, child, forks.server_pid, flush=True)
sys.stdin.read()
"""
DAEMON = """
import os, signal, sys
os.setpgid(0, 0)
worker = os.fork()
if worker == 0:
    signal.pause()
def end(*_):
    os.kill(worker, signal.SIGKILL)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
print(worker, flush=True)
signal.pause()
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
    assert not Path(address).parent.exists()


def test_a_child_of_the_driver_neither_ends_the_server_nor_keeps_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORKING_DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as driver:
        assert driver.stdout is not None
        address, child, server = driver.stdout.readline().split()
        try:
            assert Path(address).exists(), "another child has ended, and removed nothing"
            driver.communicate("", timeout=SECONDS_MAX)
            wait_gone(int(server))
        finally:
            os.kill(int(child), signal.SIGKILL)


def test_a_client_that_says_nothing_holds_up_others_only_for_a_moment(server: PythonForks, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.connect(server.address)
        with started(server.address, tmp_path, "tells", TELLS) as process:
            process.communicate("", timeout=SECONDS_MAX)
    assert process.returncode == 7


def test_a_daemon_takes_its_busy_workers_along(tmp_path: Path) -> None:
    """As Spark's daemon does: a worker is a process of the daemon's group, which it ends when it is asked to end."""
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as driver:
        assert driver.stdout is not None
        address = driver.stdout.readline().strip()
        with started(address, tmp_path, "daemon", DAEMON) as process:
            assert process.stdout is not None
            worker = int(process.stdout.readline())
            driver.kill()
            wait_gone(worker)


def test_a_process_with_another_seed_of_hashes_is_python_itself(server: PythonForks, tmp_path: Path) -> None:
    with patch.dict(os.environ, PYTHONHASHSEED="123"):
        with started(server.address, tmp_path, "hashes", "print(hash('abc'))") as process:
            said, _ = process.communicate("", timeout=SECONDS_MAX)
        plain = subprocess.run([sys.executable, "-c", "print(hash('abc'))"], capture_output=True, text=True, check=True)
    assert said == plain.stdout


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

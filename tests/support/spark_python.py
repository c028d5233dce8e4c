"""Forks in place of the Python processes that a Spark session starts, each of which would import for over a second.

Spark starts one for each streaming query that reads from Python, and some for planning. `forking_python` makes the
session's `PYSPARK_PYTHON` a script that asks a server here, and the server forks: as real a process, with its own
memory, environment and standard files, that only has its imports already. The daemon of workers is a fork only where a
test asks for it: Spark starts up to four of them in each process of a cluster. Nothing is a fork of the drivers that
tests/spark/test_exactly_once.py kills: they show that it works without.
"""

import contextlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_suffix(".sh")
CLIENT = Path(__file__).with_name("spark_python_client.py")
START_SECONDS = 60.0
FILES = 3  # input, output, errors


@contextlib.contextmanager
def forking_python() -> Iterator[dict[str, str]]:
    """Start a server; yield the environment in which a JVM has to start to use it."""
    with tempfile.TemporaryDirectory(prefix="sulina-") as folder:  # the address of a socket has to be short
        yield from _serving(os.path.join(folder, "python"))


def _serving(address: str) -> Iterator[dict[str, str]]:
    reading, writing = os.pipe()
    server = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, address, str(writing)],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"},  # as Spark's own have it
        stdin=subprocess.PIPE,  # held open: it ends when we do
        pass_fds=[writing],
    )
    try:
        os.close(writing)
        with selectors.DefaultSelector() as selector:
            selector.register(reading, selectors.EVENT_READ)
            assert selector.select(START_SECONDS), "the server of forks is not ready"
            assert os.read(reading, 1), "the server of forks ended"
        script = str(SCRIPT)
        yield {
            "PYSPARK_PYTHON": script,
            "PYSPARK_DRIVER_PYTHON": script,
            "SULINA_PYTHON": sys.executable,
            "SULINA_SPARK_PYTHON": address,
        }
    finally:
        os.close(reading)
        assert server.stdin is not None
        server.stdin.close()
        server.wait(START_SECONDS)


# In the other process


def serve(address: str, ready: int) -> None:
    """Fork for each connection until standard input is closed; then end all forks."""
    _import_all()
    running: dict[int, socket.socket] = {}  # process: who asked for it
    selector = selectors.DefaultSelector()
    wake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(address)
        listening.listen()
        for one in (listening, wake, sys.stdin):
            selector.register(one, selectors.EVENT_READ)
        os.write(ready, b".")
        os.close(ready)
        while sys.stdin not in (ready_now := {key.fileobj for key, _ in selector.select()}):
            if wake in ready_now:
                wake.recv(4096)
            for pid, client in list(running.items()):
                if client in ready_now:  # it was killed: so is the fork
                    selector.unregister(client)
                    client.close()
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGTERM)
            _tell_ends(running, selector)
            if listening in ready_now:
                client, _ = listening.accept()
                running[_fork(client)] = client
                selector.register(client, selectors.EVENT_READ)
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _tell_ends(running: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    for pid, client in list(running.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            del running[pid]
            if client.fileno() >= 0:
                selector.unregister(client)
                with contextlib.suppress(OSError), client:
                    client.send(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))


def _fork(client: socket.socket) -> int:
    """Return the process that becomes what a client asks for."""
    size, files, _, _ = socket.recv_fds(client, 4, FILES)
    request = json.loads(client.recv(int.from_bytes(size), socket.MSG_WAITALL))
    pid = os.fork()
    if pid == 0:
        _become(request, files)
    for file in files:
        os.close(file)
    return pid


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Run a module as `python -m module arguments` does, and never return."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for standard, file in enumerate(files):
            os.dup2(file, standard)
        os.closerange(FILES, os.sysconf("SC_OPEN_MAX"))  # what the server has open is not the fork's
        _run(**request)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()  # what the interpreter would do
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _run(arguments: list[str], environment: dict[str, str], cwd: str) -> None:
    option, module, *others = arguments
    assert option == "-m"
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    ours = {str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    sys.path[:] = [cwd, *filter(None, given), *(place for place in sys.path if place not in ours)]
    sys.argv[:] = [module, *others]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _import_all() -> None:
    """Do once what each process would do for itself."""
    import gc

    import pyspark.sql.worker.create_data_source
    import pyspark.sql.worker.data_source_pushdown_filters
    import pyspark.sql.worker.lookup_data_sources
    import pyspark.sql.worker.plan_data_source_read
    import pyspark.sql.worker.python_streaming_sink_runner
    import pyspark.sql.worker.write_into_data_source  # noqa: F401

    import pyspark_sulina_delta  # noqa: F401
    from sulina.spark import daemon

    daemon.load()
    gc.freeze()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))

"""Forks in place of the Python processes that Spark starts on this machine, each of which imports for about a second.

Spark starts one for every step of planning a source or a sink, and one for each streaming query: about ten for a small
pipeline. A server with everything imported forks instead. Each fork is as real a process, with its own memory,
environment and standard files. The server ends with the driver, however that ends, and takes its forks along.

`PythonForks` is the driver's side, `serve` the server, `python_fork_client` what Spark starts.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import runpy
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

CLIENT = Path(__file__).with_name("python_fork_client.py")
END_SECONDS_MAX = 10.0  # of the server
FORKS_END_SECONDS_MAX = 2.0  # after they were asked to
REQUEST_SECONDS_MAX = 2.0
FILES = 3  # input, output, errors
REQUEST_BYTES_MAX = 16 << 20


class PythonForks:
    """A server of forks, and the script that Spark starts as its Python. Scripts wait until the server is started."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._driver = os.getpid()
        self.script = os.path.join(folder, "spark-python")
        self.address = os.path.join(folder, "socket")
        words = shlex.join([sys.executable, "-IS", str(CLIENT), self.address])
        with open(os.open(self.script, os.O_WRONLY | os.O_CREAT, 0o700), "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec {words} "$@"\n')
        self._server: subprocess.Popen[bytes] | None = None
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listening.bind(self.address)  # who connects before the server has imported everything waits
            self._listening.listen()
        except OSError:
            self._listening.close()
            raise

    def start(self) -> None:
        """Start the server, if it does not run yet."""
        with self._listening:
            if self._server is None:
                self._server = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(self._listening.fileno()), self._folder],
                    env={"PYTHONHASHSEED": "0", **os.environ},  # as Spark's own have it
                    stdin=subprocess.PIPE,  # held open: the server ends when we do
                    pass_fds=[self._listening.fileno()],
                    process_group=0,  # Ctrl-C is for the driver, which ends its queries first
                )
                assert self._server.stdin is not None
                os.register_at_fork(after_in_child=self._server.stdin.close)  # else the server would outlive us

    @classmethod
    @functools.cache
    def shared(cls) -> "PythonForks | None":
        """Return the server of this process, to be started; None where it cannot be used.

        That is where a program must not be run from a temporary folder, or the folder's name is too long for a socket.
        """
        if sys.platform == "win32":
            return None
        for parent in (os.environ.get("XDG_RUNTIME_DIR"), None):  # of the first nobody removes what is old
            with contextlib.suppress(OSError):
                folder = tempfile.mkdtemp(prefix="sulina-", dir=parent)
                try:
                    forks = cls(folder)
                except OSError:
                    shutil.rmtree(folder, ignore_errors=True)
                    continue
                if os.access(forks.script, os.X_OK):
                    atexit.register(forks.close)
                    return forks
                forks.close()
        return None

    @property
    def server_pid(self) -> int | None:
        """The process of the server; None: it was not started."""
        return self._server.pid if self._server is not None else None

    def close(self) -> None:
        """End the server and its forks. Does nothing in a process that the driver has forked."""
        if os.getpid() != self._driver:
            return
        self._listening.close()
        if self._server is not None:
            assert self._server.stdin is not None
            self._server.stdin.close()
            self._server.terminate()  # while it imports; after that it takes its forks along first
            try:
                self._server.wait(END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


# In the server


def serve(listening: socket.socket) -> None:
    """Start a fork for each connection until standard input is closed; then end all forks."""
    running: dict[int, socket.socket] = {}  # process: its client
    selector = selectors.DefaultSelector()
    wake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for one in (listening, wake, sys.stdin):
        selector.register(one, selectors.EVENT_READ)
    while sys.stdin not in (ready := {key.fileobj for key, _ in selector.select()}):
        if wake in ready:
            wake.recv(4096)
        for pid, client in list(running.items()):
            if client in ready:  # it was killed: so is the fork
                selector.unregister(client)
                client.close()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        _tell_ends(running, selector)
        if listening in ready:
            client, _ = listening.accept()
            forked = _fork(client)
            if forked is None:
                client.close()
            else:
                running[forked] = client
                selector.register(client, selectors.EVENT_READ)
    signal.set_wakeup_fd(-1)
    _end(list(running))


def _end(forks: list[int]) -> None:
    """End forks. A daemon of workers that is asked to end takes its workers along."""
    for pid in forks:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + FORKS_END_SECONDS_MAX
    while forks and time.monotonic() < deadline:
        forks = [pid for pid in forks if not os.waitpid(pid, os.WNOHANG)[0]]
        time.sleep(0.01)
    for pid in forks:
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)


def _tell_ends(running: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    """Send the exit codes of forks that have ended to their clients."""
    for pid, client in list(running.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            del running[pid]
            if client.fileno() >= 0:
                selector.unregister(client)
                with contextlib.suppress(OSError), client:
                    client.send(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))


def _fork(client: socket.socket) -> int | None:
    """Return the process that becomes what a client asks for; None: the client is gone."""
    files: list[int] = []
    client.settimeout(REQUEST_SECONDS_MAX)
    try:
        size, files, _, _ = socket.recv_fds(client, 4, FILES)
        length = int.from_bytes(size, "big")
        body = client.recv(length, socket.MSG_WAITALL) if length <= REQUEST_BYTES_MAX else b""
        if len(files) < FILES or not body or len(body) < length:
            return None
        pid = os.fork()
        if pid == 0:
            _become(json.loads(body), files)
        with contextlib.suppress(OSError):  # a client that is gone is found later
            client.send(b"+")
        return pid
    except OSError:
        return None
    finally:
        for file in files:
            os.close(file)


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Run a module as `python -m module arguments` does, and never return."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        for standard, file in enumerate(files):
            os.dup2(file, standard)
        _close_others()
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


def _close_others() -> None:
    """Close what the server has open and is not the fork's."""
    try:
        opened = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        os.closerange(FILES, os.sysconf("SC_OPEN_MAX"))
        return
    for file in opened:
        if file >= FILES:
            with contextlib.suppress(OSError):  # the listing itself
                os.close(file)


def _run(arguments: list[str], environment: dict[str, str], cwd: str) -> None:
    option, module, *others = arguments
    assert option == "-m"
    seed = os.environ["PYTHONHASHSEED"]
    if environment.get("PYTHONHASHSEED", seed) != seed:  # hashes of texts would be others
        os.chdir(cwd)
        os.execve(sys.executable, [sys.executable, *arguments], environment)
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    ours = {os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    sys.path[:] = [cwd, *filter(None, given), *(place for place in sys.path if place not in ours)]
    sys.argv[:] = [module, *others]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.modules.pop(module, None)  # it is about to run, not to be imported
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _import_all() -> None:
    """Import what each of Spark's Python processes would import for itself."""
    import pyspark.sql.worker.create_data_source
    import pyspark.sql.worker.data_source_pushdown_filters
    import pyspark.sql.worker.lookup_data_sources
    import pyspark.sql.worker.plan_data_source_read
    import pyspark.sql.worker.python_streaming_sink_runner
    import pyspark.sql.worker.write_into_data_source  # noqa: F401

    import pyspark_sulina_delta  # noqa: F401
    from sulina.spark import daemon

    daemon.load()
    gc.freeze()  # garbage collections of the forks would copy it


if __name__ == "__main__":
    os.set_inheritable(int(sys.argv[1]), False)
    try:
        _import_all()
        serve(socket.socket(fileno=int(sys.argv[1])))
    finally:  # the driver may have been killed
        shutil.rmtree(sys.argv[2], ignore_errors=True)

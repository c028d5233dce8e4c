"""Commands of `sulina` in processes of their own, forked from one that has imported everything already.

A broker is as real a process as one that is started by a command line, with its own memory, files and signals; it only
does not spend a second of the processor's time on imports. `ForkServer` is the side of the tests, `serve` the other.
Other modules with a `main` can be run in the same way.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MESSAGE_BYTES_MAX = 1 << 20
REPLY_SECONDS = 60.0


class Forked:
    """A process, used as a `subprocess.Popen` is."""

    def __init__(self, server: "ForkServer", pid: int, stdout: BinaryIO) -> None:
        self.pid = pid
        self.stdout = stdout
        self._server = server
        self._code: int | None = None

    @property
    def returncode(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        if self._code is None:
            self._code = self._server.codes.get(self.pid)
        return self._code

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code, once there is one. subprocess.TimeoutExpired."""
        if self._code is None:
            self._code = self._server.wait(self.pid, timeout)
        if self._code is None:
            raise subprocess.TimeoutExpired("sulina", timeout or 0.0)
        return self._code

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that forks. It ends with the tests, and so do those that it has forked."""

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        self._changed = threading.Condition()
        self._turn = threading.Lock()  # one request at a time
        self._requests = 0
        self._pids: dict[int, int] = {}  # by the number of the request: an answer that is late is nobody else's
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
            )
        threading.Thread(target=self._listen, name="fork-server", daemon=True).start()
        atexit.register(self.close)

    @classmethod
    @functools.cache
    def shared(cls) -> "ForkServer":
        """Return the one of this process; it is started for the first who asks."""
        return cls()

    def start(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: str,
        stderr: int,
        stdin: int = 0,
        module: str = "sulina.cli",
    ) -> Forked:
        """Run the `main` of a module, by default a command of `sulina`; its standard output is a pipe."""
        reading, writing = os.pipe()
        wanted = {"module": module, "arguments": list(arguments), "environment": dict(environment), "cwd": cwd}
        try:
            with self._turn:
                self._requests = number = self._requests + 1
                request = json.dumps({**wanted, "number": number}).encode()
                assert len(request) < MESSAGE_BYTES_MAX
                socket.send_fds(self._socket, [request], [writing, stderr, stdin])
                with self._changed:
                    assert self._changed.wait_for(lambda: number in self._pids, REPLY_SECONDS), "nothing was forked"
                    pid = self._pids.pop(number)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        return Forked(self, pid, os.fdopen(reading, "rb"))

    def run(self, module: str, *arguments: str, seconds_max: float) -> tuple[int, str, str]:
        """Run the `main` of a module to its end; return its exit code and what it wrote to its output and errors."""
        with tempfile.TemporaryFile() as stderr:
            process = self.start(
                arguments, environment=os.environ, cwd=os.getcwd(), stderr=stderr.fileno(), module=module
            )
            ending = threading.Timer(seconds_max, process.kill)
            ending.start()
            try:
                with process.stdout:
                    out = process.stdout.read()
                code = process.wait(seconds_max)
            finally:
                ending.cancel()
            stderr.seek(0)
            return code, out.decode(), stderr.read().decode()

    def wait(self, pid: int, timeout: float | None) -> int | None:
        """Return the exit code of a process; None when there is none in time."""
        with self._changed:
            self._changed.wait_for(lambda: pid in self.codes, timeout)
            return self.codes.get(pid)

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while message := self._socket.recv(MESSAGE_BYTES_MAX):
                told = json.loads(message)
                with self._changed:
                    if "code" in told:
                        self.codes[told["pid"]] = told["code"]
                    else:
                        self.codes.pop(told["pid"], None)
                        self._pids[told["number"]] = told["pid"]
                    self._changed.notify_all()

    def close(self) -> None:
        """End it, and all that it has forked."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._process.wait(REPLY_SECONDS)
        self._socket.close()


# In the other process


def serve(channel: socket.socket) -> None:
    """Fork for each request, and tell of each end, until the tests have gone."""
    _import_all()
    wake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: set[int] = set()
    selector = selectors.DefaultSelector()
    selector.register(channel, selectors.EVENT_READ)
    selector.register(wake, selectors.EVENT_READ)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the tests have gone
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if wake in ready:
                wake.recv(4096)
            _tell_ends(channel, running)
            if channel not in ready:
                continue
            request, fds, _, _ = socket.recv_fds(channel, MESSAGE_BYTES_MAX, 3)
            if not request:
                break
            wanted = json.loads(request)
            if wanted["module"] not in sys.modules:
                importlib.import_module(wanted["module"])
                _share_memory()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for inherited in (selector, wake, waker, channel):
                    inherited.close()
                _run(wanted, *fds)
            for fd in fds:
                os.close(fd)
            running.add(pid)
            channel.send(json.dumps({"pid": pid, "number": wanted["number"]}).encode())
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def _tell_ends(channel: socket.socket, running: set[int]) -> None:
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            running.discard(pid)
            channel.send(json.dumps({"pid": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def _import_all() -> None:
    """Do once what every broker would do for itself."""
    import uvloop  # noqa: F401

    import sulina.cli.serve
    import sulina.metadata.etcd  # noqa: F401
    from sulina.node.node import use_kernels

    use_kernels()
    _share_memory()


def _share_memory() -> None:
    """Keep what is there out of garbage collections: each would write to all of it, and forks would copy it."""
    gc.collect()
    gc.freeze()


def _run(request: dict[str, Any], stdout: int, stderr: int, stdin: int) -> None:
    """Become the command, and never return."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd, standard in ((stdin, 0), (stdout, 1), (stderr, 2)):
            os.dup2(fd, standard)
            os.close(fd)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["cwd"])
        sys.argv[:] = ["sulina", *request["arguments"]]
        sys.modules[request["module"]].main()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:  # noqa: BLE001
        traceback.print_exc()  # what the interpreter would do
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))

"""The node of the demo: a `sulina serve` process that can be killed."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

import msgspec

from sulina.addresses import split_address
from sulina.config import DEFAULT_HTTP
from sulina.errors import NotServing

READY_SECONDS_MAX = 120.0  # the first time, kernels are compiled
STOP_SECONDS_MAX = 20.0
ANY_PORT = "127.0.0.1:0"


class ChildNode:
    """One data directory and one port, served by one process after another."""

    def __init__(self, data: str, http: str = ANY_PORT) -> None:
        self.data = data
        self.url = ""
        self.is_serving = False
        self.starts = 0
        self.start_seconds = 0.0
        self._http = http
        self._process: asyncio.subprocess.Process | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile(prefix="sulina-demo-log-")  # noqa: SIM115 -- as long as this

    @property
    def pid(self) -> int | None:
        """Return the process ID, or None while it is not running."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the node, and wait until it answers. A restart uses the same port.

        Raises:
            NotServing: it did not start.
        """
        started = time.monotonic()
        command = [sys.executable, "-m", "sulina.cli", "serve", "--json", "--data", self.data, "--http", self._http]
        self._process = process = await asyncio.create_subprocess_exec(
            *command,
            "--log-level=warning",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # a Ctrl-C in the terminal is for the demo, which then stops the node
            env={name: value for name, value in os.environ.items() if not name.startswith("SULINA_")},
            cwd=Path(self.data).parent,  # away from a sulina.toml of the reader's own
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(READY_SECONDS_MAX):
                line = await process.stdout.readline()
        except TimeoutError:
            line = b""
        if not line:
            await self.kill()
            raise NotServing(reason=f"the demo's node did not start: {self._last_words()}")
        self.url = msgspec.json.decode(line)["url"]
        self._http = self.url.removeprefix("http://")
        self.is_serving = True
        self.starts += 1
        self.start_seconds = time.monotonic() - started

    async def kill(self) -> None:
        """Kill the node with SIGKILL: it can neither flush nor say goodbye."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Stop the node with SIGTERM; kill it if that takes too long."""
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await self._end(signal.SIGTERM)
        except TimeoutError:
            await self.kill()

    async def _end(self, number: int) -> None:
        self.is_serving = False
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
        await self._process.wait()
        self._process = None

    def _last_words(self) -> str:
        """Return the last line of its log."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "its log is empty"


def usual_address() -> str:
    """Return the address at which commands look for a node by default, or any port if that one is in use."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(split_address(DEFAULT_HTTP))
            listener.listen(1)
        except OSError:
            return ANY_PORT
    return DEFAULT_HTTP

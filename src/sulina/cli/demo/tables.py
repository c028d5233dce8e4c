"""The tables of the demo: `sulina pipeline run` as a process of its own, beside the traffic.

The gold table is asked how many orders it has: it is right when it has every acked one, and no other.
"""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from sulina.cli.demo.traffic import TOPIC
from sulina.errors import SulinaError
from sulina.spark.errors import SparkFailed

POLL_SECONDS = 0.5
APPEAR_SECONDS_MAX = 420.0  # Spark's first start on a cold and very busy machine; if it ends, that is seen at once
CATCH_UP_SECONDS_MAX = 180.0
STOP_SECONDS_MAX = 30.0
GOLD = "revenue"
DEFINITION = """\
name = "demo"
url = "{url}"
tables = "{tables}"

[[bronze]]                     # the records of the topic, as they are
table = "orders_raw"
topic = "{topic}"

[[silver]]                     # decoded by the topic's schema; what does not fit is put aside, with the reason
table = "orders"
from = "orders_raw"

[[silver.expect]]
name = "the amount is positive"
that = "amount > 0"

[[gold]]                       # the answer to a question, made anew when there are new rows
table = "{gold}"
sql = "select item, count(*) as orders, round(sum(amount), 2) as revenue from orders group by item order by item"
"""


@dataclass(frozen=True, slots=True)
class Revenue:
    """A row of the gold table."""

    item: str
    orders: int
    revenue: float


def why_not() -> str | None:
    """Why there can be no tables on this machine; None if there can."""
    try:
        from sulina.spark.session import check_java
    except ImportError as error:
        return f"{error.name} is missing: pip install 'sulina[spark]'"
    try:
        check_java()
    except SulinaError as error:
        return str(error)
    return None


class DemoPipeline:
    """A pipeline on the demo's topic, for as long as the demo wants it."""

    def __init__(self, root: Path, url: str) -> None:
        self.progress: list[dict[str, Any]] = []  # of each table, as it was told last
        self.tables = root / "tables"
        self.file = root / "pipeline.toml"
        self.file.write_text(DEFINITION.format(url=url, tables=self.tables, topic=TOPIC, gold=GOLD))
        self._log: IO[bytes] = tempfile.TemporaryFile(prefix="sulina-demo-log-")  # noqa: SIM115 -- as long as this
        self._process: asyncio.subprocess.Process | None = None
        self._listener: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return at once: Spark takes its time."""
        command = [sys.executable, "-m", "sulina.cli", "pipeline", "run", str(self.file), "--json"]
        self._process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            cwd=self.file.parent,
            limit=1 << 20,
        )
        self._listener = asyncio.create_task(self._listen(), name="pipeline")

    async def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.progress = msgspec.json.decode(line)["tables"]

    async def wait_for_tables(self) -> None:
        """Until there is an answer in gold. SparkFailed says why there is none."""
        try:
            async with asyncio.timeout(APPEAR_SECONDS_MAX):
                while not await asyncio.to_thread(self._answer):
                    self._check()
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise SparkFailed(
                reason=f"there is no table after {APPEAR_SECONDS_MAX:.0f} s: {self._last_words()}; "
                "try again when the machine has less to do, or with --no-tables"
            ) from None

    async def answer(self, orders: int) -> list[Revenue]:
        """What the gold table says once it has so many orders, or when that takes too long."""
        found: list[Revenue] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_SECONDS_MAX):
                while sum(row.orders for row in found) < orders:
                    self._check()
                    await asyncio.sleep(POLL_SECONDS)
                    found = await asyncio.to_thread(self._answer)
        return found

    def _answer(self) -> list[Revenue]:
        from deltalake import DeltaTable

        uri = str(self.tables / GOLD)
        if not DeltaTable.is_deltatable(uri):
            return []
        return [Revenue(**row) for row in DeltaTable(uri).to_pyarrow_table().to_pylist()]

    def _check(self) -> None:
        if self._process is not None and self._process.returncode is not None:
            raise SparkFailed(
                reason=f"the demo's pipeline has ended: {self._last_words()}; try again, or with --no-tables"
            )

    async def stop(self) -> None:
        """As Ctrl-C would; then with everything that it has started."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        if self._listener is not None:
            self._listener.cancel()
        self._process = None

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

"""The tables of the demo: `sulina pipeline run` as a process of its own, beside the traffic.

The gold table is correct when it counts every acknowledged order, and no other.
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

[[silver]]                     # decoded by the topic's schema; misfits go to a quarantine table, with the reason
table = "orders"
from = "orders_raw"

[[silver.expect]]
name = "the amount is positive"
that = "amount > 0"

[[gold]]                       # the answer to a query, computed again when there are new rows
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
    """Return why this machine cannot make tables; None if it can."""
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
    """A `sulina pipeline run` process on the demo's topic."""

    def __init__(self, root: Path, url: str) -> None:
        self.progress: list[dict[str, Any]] = []  # the last that was printed, for each table
        self.tables = root / "tables"
        self.file = root / "pipeline.toml"
        self.file.write_text(DEFINITION.format(url=url, tables=self.tables, topic=TOPIC, gold=GOLD))
        self._log: IO[bytes] = tempfile.TemporaryFile(prefix="sulina-demo-log-")  # noqa: SIM115 -- as long as this
        self._process: asyncio.subprocess.Process | None = None
        self._listener: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the pipeline, without waiting for Spark."""
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
        """Wait until the gold table has rows.

        Raises:
            SparkFailed: the pipeline has ended, or takes too long.
        """
        try:
            async with asyncio.timeout(APPEAR_SECONDS_MAX):
                while not await asyncio.to_thread(self._answer):
                    self._check()
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise SparkFailed(
                reason=f"the pipeline made no table within {APPEAR_SECONDS_MAX:.0f} s: {self._last_words()}; "
                "try again when the machine is less busy, or use --no-tables"
            ) from None

    async def answer(self, orders: int) -> list[Revenue]:
        """Return the rows of the gold table once it counts this number of orders, or when that takes too long."""
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
                reason=f"the demo's pipeline has ended: {self._last_words()}; try again, or use --no-tables"
            )

    async def stop(self) -> None:
        """Stop the pipeline with SIGTERM, then kill it with all its processes."""
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
        return lines[-1] if lines else "its log is empty"

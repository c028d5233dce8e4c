"""What Spark's checkpoint of a query says: which of its batches are done, and where they ended.

Spark writes down where a batch ends before it runs it, and that it is done after its sink has committed it. So whatever
a batch that is done has read is in the table.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sulina.spark.errors import BatchUnfinished
from sulina.spark.table_location import TableLocation
from sulina.storage.objects import Objects

WAIT_SECONDS = 60.0
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class QueryCheckpoint:
    """The checkpoint of one query, which has one source."""

    uri: str
    table: str  # that the query writes

    def has_begun(self) -> bool:
        """Tell whether there is a batch at all, done or not."""
        return bool(self._numbers("offsets"))

    def remove_torn_start(self) -> None:
        """Remove the files of a driver that was killed while it wrote down its first batch.

        Spark refuses to start batch 0 beside them. A batch exists once its file has its name, so nothing is lost.
        """
        if not self.has_begun():
            self._files.delete_all("offsets")

    def done(self) -> int | None:
        """Return the newest batch that is done; None: no batch is."""
        return max(self._numbers("commits"), default=None)

    def wait_done(self, batch: int | None = None, *, clock: Callable[[], float] = time.monotonic) -> int:
        """Wait until `batch` or a later one is done, and return the newest; None: wait for any.

        Raises:
            BatchUnfinished: no query seems to run.
        """
        deadline = clock() + WAIT_SECONDS
        while (newest := self.done()) is None or newest < (batch or 0):
            has_begun = self.has_begun()
            if not has_begun or clock() >= deadline:
                raise BatchUnfinished(table=self.table, batch=(batch or 0) if has_begun else None)
            time.sleep(POLL_SECONDS)
        return newest

    def end_of(self, batch: int) -> dict[str, Any]:
        """Return where a batch ended, as its source wrote it."""
        data = self._files.get(f"offsets/{batch}")
        assert data is not None, "Spark keeps the offsets of what was done last"
        offset = json.loads(bytes(data).splitlines()[-1])
        assert isinstance(offset, dict)
        return offset

    def newest_end(self) -> dict[str, Any] | None:
        """Return where the newest batch ends, done or not; None: there is no batch."""
        newest = max(self._numbers("offsets"), default=None)
        return self.end_of(newest) if newest is not None else None

    def _numbers(self, folder: str) -> list[int]:
        """Return the batches that have a file in a folder."""
        return [int(one.name) for one in self._files.list(folder) if one.name.isdecimal()]

    @property
    def _files(self) -> Objects:
        return TableLocation.parse(self.uri).objects()

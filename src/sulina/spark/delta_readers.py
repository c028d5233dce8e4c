"""Streams that read a Delta table, and how far each has come: what they have not read yet, a vacuum keeps.

- `_sulina/readers/{name}.json` at the table. A stream writes it when it begins and whenever Spark says that a batch is
  done; that comes a batch late, so a position is never ahead of what was read.
- A reader that was not heard of for `SILENT_DAYS` is taken for gone. To end one earlier, remove its file.
- A position that cannot be read holds back everything: nobody may guess it.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from sulina.core.formats import TABLE_FILE
from sulina.errors import CorruptCommit, InvalidName
from sulina.spark.table_location import TableLocation
from sulina.types import NAME_PATTERN

FOLDER = "_sulina/readers"
SILENT_DAYS = 30
HEARD_SECONDS = 3600.0  # a stream with nothing to do says so often that it is still there
_NAME = re.compile(NAME_PATTERN, re.ASCII)


class TablePosition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All commits up to `version` have been read."""

    version: int
    at_ms: int
    snapshot: int | None = None  # a new stream: all files of this version come next


def check_reader(name: str) -> None:
    """Check the name of a reader.

    Raises:
        InvalidName: it cannot be one.
    """
    if not _NAME.fullmatch(name):
        raise InvalidName(kind="reader", name=name[:60], pattern=_NAME.pattern)


def path_of(name: str) -> str:
    """Return the path of a reader's position."""
    return f"{FOLDER}/{name}.json"


def live_readers(location: TableLocation, now: float) -> dict[str, TablePosition]:
    """Return the readers that wrote their position within `SILENT_DAYS`.

    Raises:
        CorruptCommit: a position cannot be read.
        ArchiveFailed: the store does not answer.
    """
    found = {}
    for listed in location.objects().list(FOLDER):
        data = location.objects().get(f"{FOLDER}/{listed.name}") if listed.name.endswith(".json") else None
        if data is None:
            continue
        try:
            position = TABLE_FILE.decode(data, TablePosition, f"{location.path_or_uri}/{FOLDER}/{listed.name}")
        except msgspec.DecodeError as error:
            raise CorruptCommit(name=f"{location.path_or_uri}/{FOLDER}/{listed.name}", reason=str(error)) from None
        if now * 1000 - position.at_ms < SILENT_DAYS * 86_400_000:
            found[listed.name.removesuffix(".json")] = position
    return found


@dataclass(slots=True)
class ReaderFile:
    """The position of one stream, as it is written."""

    location: TableLocation
    name: str
    clock: Callable[[], float] = time.time
    _written: TablePosition | None = None

    def enter(self, version: int, snapshot: int | None) -> None:
        """Write where the stream begins; later calls renew that now and then."""
        if self._written is None:
            self.write(version, snapshot)
        elif self.clock() * 1000 - self._written.at_ms > HEARD_SECONDS * 1000:
            self.write(self._written.version, self._written.snapshot)

    def write(self, version: int, snapshot: int | None) -> None:
        """Write the position.

        Raises:
            ArchiveFailed: the store does not answer.
        """
        position = TablePosition(version=version, snapshot=snapshot, at_ms=int(self.clock() * 1000))
        self.location.objects().put(path_of(self.name), [TABLE_FILE.encode(position)])
        self._written = position

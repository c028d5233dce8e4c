"""The formats of everything that outlives a process, or passes between processes of different versions.

Each family of files, values or frames has a number. One rule holds for all of them:

- An absent number means format 1. A writer writes the number of this version (`Format.encode`).
- A reader that meets a higher number raises `NewerFormat`, and changes and deletes nothing. It never takes such a thing
  for damage, so nothing is passed over, set aside or written over because of it.
- The number rises only when an older version would misread what is written. A field that older versions may ignore
  needs no higher number.

The number is read before anything else but the checksum. So what surrounds it stays the same in every format: JSON
values are objects with the field `format`; commits and checkpoints are one line of JSON that ends in its checksum.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import msgspec

from sulina.errors import NewerFormat
from sulina.json_values import Hook, json_decoder

T = TypeVar("T")


class _Numbered(msgspec.Struct):
    """A JSON value that says its format."""

    format: Annotated[int, msgspec.Meta(ge=1)] = 1


@dataclass(frozen=True, slots=True)
class Format:
    """A family of files, values or frames, and the newest format of it that this version knows."""

    family: str
    number: int
    carried_by: str  # where the number is
    _prefix: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_prefix", b'{"format":%d' % self.number)

    def check(self, number: int, name: str) -> None:
        """Check that this version knows a format of the thing called `name`.

        Raises:
            NewerFormat: it does not.
        """
        if number > self.number:
            raise NewerFormat(family=self.family, name=name, format=number, newest=self.number)

    def stamp(self, line: bytes) -> bytes:
        """Return a JSON object with the number as its first field."""
        return self._prefix + (b"," if line[1:2] != b"}" else b"") + line[1:]

    def encode(self, value: Any) -> bytes:
        """Return a value as a JSON object that says its format."""
        return self.stamp(msgspec.json.encode(value))

    def decode(self, data: bytes | str | memoryview, kind: type[T], name: str, hook: Hook | None = None) -> T:
        """Read a JSON object that `encode` wrote, or one without a number.

        Raises:
            NewerFormat: a newer version wrote it.
            msgspec.DecodeError, msgspec.ValidationError: it is damaged, or not of this kind.
        """
        data = data.encode() if isinstance(data, str) else bytes(data)
        size = len(self._prefix)
        if data.startswith(self._prefix) and data[size : size + 1] in b",}":
            return json_decoder(kind, hook).decode(b"{" + data[size:].removeprefix(b","))
        number = json_decoder(_Numbered).decode(data).format
        self.check(number, name)
        if b'"format"' in data:
            # The number is said in another way: kinds that take no unknown field must not see it.
            fields = json_decoder(dict[str, msgspec.Raw]).decode(data)
            if fields.pop("format", None) is not None:
                data = msgspec.json.encode(fields)
        return json_decoder(kind, hook).decode(data)


COMMIT = Format("commit format", 1, "the field `format`")
CHECKPOINT = Format(
    "checkpoint format", 1, "the field `format`; a run of txn_ids has that of the checkpoint that names it"
)
BATCH = Format("record batch format", 2, "the byte `magic`, as in Kafka")
STAMP = Format("directory stamp format", 1, "the field `format`")
MEMORY = Format("cluster memory format", 1, "the field `format`")
METADATA = Format("metadata format", 1, "the field `format`")
SQLITE = Format("SQLite format", 1, "SQLite's `user_version`")
SESSION = Format("session protocol", 1, "the query parameter `protocol` of the WebSocket's URL")
PEER = Format("peer protocol", 2, "the field `protocol` of Hello")
HTTP = Format("HTTP interface", 1, "the path: /v1")
SPARK_OFFSETS = Format("Spark offsets format", 1, "the key `format`")
TABLE_FILE = Format("table file format", 1, "the field `format`")
PIPELINE = Format("pipeline file format", 1, "the key `format`")

FORMATS = (
    COMMIT,
    CHECKPOINT,
    BATCH,
    STAMP,
    MEMORY,
    METADATA,
    SQLITE,
    SESSION,
    PEER,
    HTTP,
    SPARK_OFFSETS,
    TABLE_FILE,
    PIPELINE,
)

"""Options of `.option(…)`, read and checked once. An unknown or invalid one raises InvalidSettings."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from sulina.core.log.position import EARLIEST, LATEST
from sulina.errors import InvalidSettings
from sulina.spark.scan import Positions, TopicChoice
from sulina.spark.schema import RAW_COLUMNS
from sulina.types import checked_reader

READ_OPTIONS = (
    "url", "path", "objects", "objectsEndpoint", "topic", "start", "end", "maxRowsPerTrigger",
    "maxBytesPerTrigger", "minPartitions", "failOnDataLoss", "columns", "decode", "mode", "checkCrc", "reader",
)  # fmt: skip


MODES = ("permissive", "quarantine", "failfast")
SPARK_OPTIONS = ("checkpointlocation", "queryname", "outputmode")  # which Spark passes on, and reads itself


class Options:
    """Reads Spark's options, whose names ignore case."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        names = {name.lower(): name for name in known}
        for name in given:
            if name.lower() not in names and name.lower() not in SPARK_OPTIONS:
                close = get_close_matches(name.lower(), list(names), n=1)
                hint = f"; did you mean {names[close[0]]}?" if close else f"; the options are {', '.join(known)}"
                raise InvalidSettings(f"option {name} is unknown{hint}")
        self._values = {names[name.lower()]: value for name, value in given.items() if name.lower() in names}

    def text(self, name: str) -> str | None:
        """Return a text; None: it was not given."""
        value = self._values.get(name)
        return None if value is None else str(value)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of `choices`; the first is the default.

        Raises:
            InvalidSettings: it is another.
        """
        value = (self.text(name) or choices[0]).strip().lower()
        if value not in choices:
            raise InvalidSettings(f"option {name}: {value!r} is unknown; use one of {', '.join(choices)}")
        return value

    def count(self, name: str) -> int | None:
        """Return a number that is at least 1; None: it was not given.

        Raises:
            InvalidSettings: it is not one.
        """
        value = self.text(name)
        if value is None:
            return None
        if not value.strip().isdecimal() or int(value) < 1:
            raise InvalidSettings(f"option {name}: {value!r} is not a whole number of at least 1")
        return int(value)

    def flag(self, name: str, *, otherwise: bool) -> bool:
        """Return whether it is `true`.

        Raises:
            InvalidSettings: it is neither `true` nor `false`.
        """
        return self.choice(name, ("true", "false") if otherwise else ("false", "true")) == "true"

    def names(self, name: str) -> tuple[str, ...] | None:
        """Return words that have commas between them; None: it was not given."""
        value = self.text(name)
        return None if value is None else tuple(part.strip() for part in value.split(",") if part.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLocation:
    """Where topics are: at a broker, or in files that are read without one."""

    url: str | None
    path: str | None
    objects: str | None  # instead of the archive that the broker names; "none": read everything from brokers
    objects_endpoint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a scan or a stream of topics."""

    location: LogLocation
    topics: TopicChoice
    start: Positions
    end: Positions  # exclusive; of a version: after its records
    rows_max: int | None
    bytes_max: int | None
    tasks_min: int | None
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    mode: str | None  # how values are decoded by the schema of their topic; None: they are not
    check_crc: bool  # check every batch again, and read nothing from a cache
    reader: str | None = None  # the name under which a stream registers its positions

    @classmethod
    def of(cls, given: Mapping[str, str], *, is_stream: bool) -> "ReadOptions":
        """Read and check the options.

        Raises:
            InvalidSettings: an option is unknown or wrong.
            InvalidName: a topic or the reader has a name that cannot be one.
        """
        options = Options(given, READ_OPTIONS)
        topic = options.text("topic")
        if topic is None:
            raise InvalidSettings(
                "option topic is missing: set it to /default/orders, to several with commas, or to /shop/*"
            )
        if is_stream and options.text("end") is not None:
            raise InvalidSettings("a stream has no end: option end is for spark.read")
        columns = options.names("columns")
        unknown = set(columns or ()) - set(RAW_COLUMNS)
        if unknown or columns == ():
            raise InvalidSettings(
                f"option columns: {min(unknown, default='')!r} is unknown; the columns are {', '.join(RAW_COLUMNS)}"
            )
        url, path, reader = options.text("url"), options.text("path"), options.text("reader")
        if (url is None) == (path is None):
            raise InvalidSettings(
                "set either option url (of a broker) or option path (of an archive or a data directory), not both"
            )
        if reader is not None and url is None:
            raise InvalidSettings("option reader needs url: positions are registered at a broker")
        return cls(
            location=LogLocation(
                url=url,
                path=path,
                objects=options.text("objects"),
                objects_endpoint=options.text("objectsEndpoint"),
            ),
            topics=TopicChoice.parse(topic),
            start=Positions.parse(options.text("start"), LATEST if is_stream else EARLIEST),
            end=Positions.parse(options.text("end"), LATEST),
            rows_max=options.count("maxRowsPerTrigger"),
            bytes_max=options.count("maxBytesPerTrigger"),
            tasks_min=options.count("minPartitions"),
            fail_on_data_loss=options.flag("failOnDataLoss", otherwise=True),
            columns=columns or RAW_COLUMNS,
            mode=options.choice("mode", MODES) if options.choice("decode", ("raw", "schema")) == "schema" else None,
            check_crc=options.flag("checkCrc", otherwise=False),
            reader=None if reader is None else checked_reader(reader),
        )

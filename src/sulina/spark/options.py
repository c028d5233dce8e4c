"""What a user may say in `.option(…)`, read once. Whatever is unknown or outside the rules is InvalidSettings."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from sulina.core.log.position import EARLIEST, LATEST, At, Position
from sulina.errors import InvalidSettings
from sulina.spark.scan import Positions, TopicChoice
from sulina.spark.schema import RAW_COLUMNS
from sulina.types import checked_reader

READ_OPTIONS = (
    "url", "path", "objects", "objectsEndpoint", "topic", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "startingVersion", "endingVersion", "maxRowsPerTrigger", "maxBytesPerTrigger", "minPartitions",
    "failOnDataLoss", "columns", "decode", "mode", "checkCrc", "reader",
)  # fmt: skip


MODES = ("permissive", "quarantine", "failfast")
SPARK_OPTIONS = ("checkpointlocation", "queryname", "outputmode")  # which Spark passes on, and reads itself


class Options:
    """Spark's options, whose names have no case."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        names = {name.lower(): name for name in known}
        for name in given:
            if name.lower() not in names and name.lower() not in SPARK_OPTIONS:
                close = get_close_matches(name.lower(), list(names), n=1)
                hint = f"; did you mean {names[close[0]]}?" if close else f"; there are {', '.join(known)}"
                raise InvalidSettings(f"there is no option {name}{hint}")
        self._values = {names[name.lower()]: value for name, value in given.items() if name.lower() in names}

    def text(self, name: str) -> str | None:
        """None: it was not given."""
        value = self._values.get(name)
        return None if value is None else str(value)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of these; the first unless told."""
        value = (self.text(name) or choices[0]).strip().lower()
        if value not in choices:
            raise InvalidSettings(f"option {name}: {value!r} is none of {', '.join(choices)}")
        return value

    def count(self, name: str) -> int | None:
        """A number that is at least 1."""
        value = self.text(name)
        if value is None:
            return None
        if not value.strip().isdecimal() or int(value) < 1:
            raise InvalidSettings(f"option {name}: {value!r} is no number that is 1 or more")
        return int(value)

    def flag(self, name: str, *, otherwise: bool) -> bool:
        """`true` or `false`."""
        return self.choice(name, ("true", "false") if otherwise else ("false", "true")) == "true"

    def names(self, name: str) -> tuple[str, ...] | None:
        """Words with commas between them."""
        value = self.text(name)
        return None if value is None else tuple(part.strip() for part in value.split(",") if part.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where topics are: at a broker, or in files that nobody needs to serve."""

    url: str | None
    path: str | None
    objects: str | None  # instead of the archive that the broker names; "none": read everything from brokers
    objects_endpoint: str | None

    @classmethod
    def of(cls, options: Options) -> "Place":
        url, path = options.text("url"), options.text("path")
        if (url is None) == (path is None):
            raise InvalidSettings("say either url (of a broker) or path (of an archive or a data directory)")
        return cls(
            url=url,
            path=path,
            objects=options.text("objects"),
            objects_endpoint=options.text("objectsEndpoint"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a scan or a stream reads, and how."""

    place: Place
    topics: TopicChoice
    starting: Positions
    ending: Positions
    rows_max: int | None
    bytes_max: int | None
    tasks_min: int | None
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    mode: str | None  # how values are decoded by the schema of their topic; None: they are not
    check_crc: bool  # of every batch, whoever read it, and none from a cache
    reader: str | None = None  # the name under which a stream registers its positions

    @classmethod
    def of(cls, given: Mapping[str, str], *, is_stream: bool) -> "ReadOptions":
        """InvalidSettings, InvalidName."""
        options = Options(given, READ_OPTIONS)
        topic = options.text("topic")
        if topic is None:
            raise InvalidSettings(
                "say which topic: option topic, such as /default/orders, several with commas, or /shop/*"
            )
        if is_stream:
            for name in ("endingOffsets", "endingTimestamp", "endingVersion"):
                if options.text(name) is not None:
                    raise InvalidSettings(f"a stream has no end: option {name} is for spark.read")
        columns = options.names("columns")
        unknown = set(columns or ()) - set(RAW_COLUMNS)
        if unknown or columns == ():
            raise InvalidSettings(
                f"option columns: there is no {min(unknown, default='')!r}, only {', '.join(RAW_COLUMNS)}"
            )
        place, reader = Place.of(options), options.text("reader")
        if reader is not None and place.url is None:
            raise InvalidSettings("option reader needs url: positions are registered at a broker")
        return cls(
            place=place,
            topics=TopicChoice.parse(topic),
            starting=_positions(options, "starting", LATEST if is_stream else EARLIEST),
            ending=_positions(options, "ending", LATEST),
            rows_max=options.count("maxRowsPerTrigger"),
            bytes_max=options.count("maxBytesPerTrigger"),
            tasks_min=options.count("minPartitions"),
            fail_on_data_loss=options.flag("failOnDataLoss", otherwise=True),
            columns=columns or RAW_COLUMNS,
            mode=options.choice("mode", MODES) if options.choice("decode", ("raw", "schema")) == "schema" else None,
            check_crc=options.flag("checkCrc", otherwise=False),
            reader=None if reader is None else checked_reader(reader),
        )


def _positions(options: Options, which: str, otherwise: Position) -> Positions:
    given = {kind: options.text(f"{which}{kind}") for kind in ("Offsets", "Timestamp", "Version")}
    said = {kind: value for kind, value in given.items() if value is not None}
    if len(said) > 1:
        raise InvalidSettings(f"say one of {', '.join(f'{which}{kind}' for kind in said)}")
    if not said:
        return Positions(otherwise)
    ((kind, value),) = said.items()
    if kind == "Offsets":
        return Positions.parse(value, otherwise)
    return Positions(Position.parse(f"{At.TIMESTAMP if kind == 'Timestamp' else At.VERSION}:{value.strip()}"))

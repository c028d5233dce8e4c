"""What a URL says: which records of which topic, and the parameters of a query. Nothing passes unchecked.

Paths are taken apart before they are percent-decoded, so an encoded slash never makes two names of one; what is then
decoded has to be a valid name. A parameter that is unknown, given twice or out of range is an error, not a guess.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import parse_qsl, unquote

from sulina.errors import InvalidName
from sulina.listeners.http_problem import bad_parameter
from sulina.types import PARTITIONS_MAX, TopicName

NUMBER_MAX = 2**63 - 1
QUERY_FIELDS_MAX = 20
_CACHE_ENTRIES_MAX = 20_000
_DIGITS = re.compile(r"0|[1-9][0-9]{0,18}")
_RECORDS_PATH = re.compile(rb"/v1/topics/([^/]+)/([^/]+)(?:/partitions/([^/]+))?/(records|batch)")
_ENCODED_SLASH = re.compile(rb"%2[fF]|%5[cC]|%00|\\")


@dataclass(frozen=True, slots=True)
class Target:
    """Where records go to or come from; None: any partition."""

    topic: TopicName
    text: str  # `/ns/topic`
    partition: int | None
    parameters: dict[str, str] = field(compare=False)  # for traces
    is_batch: bool = False  # …/batch, whose body may be an array of records


class Targets(dict[bytes, Target | None]):
    """Maps each path of records to what it names, found once; another path to None, which is not kept."""

    def __missing__(self, raw_path: bytes) -> Target | None:
        """Find what a path names that was not asked for before.

        Raises:
            InvalidName: a part of it is not a name.
            HttpError: the partition is not a number.
        """
        found = _RECORDS_PATH.fullmatch(raw_path)
        if found is None:
            return None
        namespace, topic = unquote(found[1]), unquote(found[2])
        parameters = {"namespace": namespace, "topic": topic}
        partition = None
        if found[3] is not None:
            partition = read_partition(unquote(found[3]))
            parameters["partition"] = str(partition)
        name = TopicName(namespace, topic)
        target = Target(name, str(name), partition, parameters, is_batch=found[4] == b"batch")
        if len(self) >= _CACHE_ENTRIES_MAX:
            self.clear()
        self[raw_path] = target
        return target


def check_path(raw_path: bytes) -> None:
    """Check that no segment of a path holds a slash: decoded, it would be two segments.

    Raises:
        InvalidName: one does.
    """
    if _ENCODED_SLASH.search(raw_path):
        shown = raw_path.decode("ascii", "replace")
        raise InvalidName(kind="path", name=shown if len(shown) <= 60 else shown[:57] + "...", pattern="no slash in it")


def read_partition(text: str) -> int:
    """Read the number of a partition in a path."""
    if not _DIGITS.fullmatch(text) or int(text) >= PARTITIONS_MAX:
        shown = text if len(text) <= 30 else text[:27] + "..."
        raise bad_parameter("partition", f"partition {shown!r} is not a number from 0 to {PARTITIONS_MAX - 1}")
    return int(text)


ParameterReader = Callable[[str, str], Any]


def number(least: int = 0, most: int = NUMBER_MAX) -> ParameterReader:
    """Return a reader of whole numbers in a range, both ends included."""

    def read(name: str, text: str) -> int:
        if not _DIGITS.fullmatch(text) or not least <= int(text) <= most:
            raise bad_parameter(name, f"{name} must be a whole number from {least} to {most}")
        return int(text)

    return read


def flag(name: str, text: str) -> bool:
    """Read `true` or `false`."""
    if text not in ("true", "false"):
        raise bad_parameter(name, f"{name} must be true or false")
    return text == "true"


def text_up_to(length_max: int) -> ParameterReader:
    """Return a reader of text up to a length."""

    def read(name: str, text: str) -> str:
        if len(text) > length_max:
            raise bad_parameter(name, f"{name} must have at most {length_max} characters")
        return text

    return read


def texts_up_to(count_max: int, length_max: int) -> ParameterReader:
    """Return a reader of texts with commas between them."""

    def read(name: str, text: str) -> frozenset[str]:
        texts = text.split(",")
        if len(texts) > count_max or not all(0 < len(one) <= length_max for one in texts):
            raise bad_parameter(
                name, f"{name} must be 1 to {count_max} texts of 1 to {length_max} characters, with commas between them"
            )
        return frozenset(texts)

    return read


def one_of(kind: type[StrEnum]) -> ParameterReader:
    """Return a reader of one of a few words."""

    def read(name: str, text: str) -> StrEnum:
        try:
            return kind(text)
        except ValueError:
            raise bad_parameter(name, f"{name} must be one of {', '.join(kind)}") from None

    return read


def read_query(query_string: bytes, readers: Mapping[str, ParameterReader]) -> dict[str, Any]:
    """Return the parameters that are given, each read by its reader.

    Raises:
        HttpError: 400, one is wrong; it says which.
    """
    if not query_string:
        return {}
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX
        )
    except ValueError:  # not ASCII, not UTF-8 once decoded, or too many
        raise bad_parameter("query", f"the query must be UTF-8, with at most {QUERY_FIELDS_MAX} fields") from None
    values: dict[str, Any] = {}
    for name, text in pairs:
        reader = readers.get(name)
        if reader is None:
            known = ", ".join(readers) or "none"
            raise bad_parameter(name[:60], f"there is no parameter {name[:60]!r} here; there are: {known}")
        if name in values:
            raise bad_parameter(name, f"{name} is given twice")
        values[name] = reader(name, text)
    return values

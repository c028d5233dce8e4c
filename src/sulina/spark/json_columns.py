"""Columns for a JSON Schema: what each part of a value becomes, by a quick way and by an exact one.

- Quick: msgspec reads text straight into objects of classes made from the schema, and `build` makes columns of them.
- Exact: `convert` takes a value that was read without a schema, and says where it does not fit.
- Quick accepts only what exact does, and gives the same. Whatever quick refuses is tried again exactly.
- What has no type of its own becomes JSON text: spaces and the spelling of numbers are not kept.
- `is_plain` says that quick checks everything that the schema asks for. Where it is not, a validator has a look too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, Literal, Optional, Protocol

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Meta

from sulina.errors import InvalidSettings
from sulina.spark.misfits import Misfit

COLUMNS_MAX = 2000
DEPTH_MAX = 32  # deeper parts of a value are JSON text
REST = "_rest"  # properties that the schema allows and does not name
VALUE = "value"  # the only column of values that are no objects

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_INT64 = Annotated[int, Meta(ge=_INT64_MIN, le=_INT64_MAX)]
# What msgspec checks just as the validator does.
_INTEGER_LIMITS = {"minimum": "ge", "maximum": "le"}
_STRING_LIMITS = {"minLength": "min_length", "maxLength": "max_length"}
_WITH_ZONE = Annotated[datetime, Meta(tz=True)]
_TIME, _DATE = msgspec.json.Decoder(_WITH_ZONE), msgspec.json.Decoder(date)
_NOTES = {
    "title", "description", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly", "$schema", "$id",
    "$defs", "definitions",
}  # fmt: skip
# In these drafts a format is only a note.
_DRAFTS = {"https://json-schema.org/draft/2019-09/schema", "https://json-schema.org/draft/2020-12/schema"}
_DRAFTS_WITH_FORMATS = {"http://json-schema.org/draft-06/schema", "http://json-schema.org/draft-07/schema"}


class Column(Protocol):
    """The column that one part of a value becomes."""

    @property
    def type(self) -> pa.DataType: ...
    @property
    def reads(self) -> Any:
        """Return the type that msgspec reads it as, if it is not null."""

    @property
    def is_nullable(self) -> bool: ...
    @property
    def is_plain(self) -> bool: ...
    def convert(self, value: Any) -> Any:
        """Return what Arrow takes for a value that is not null.

        Raises:
            Misfit: it does not fit.
        """

    def build(self, cells: list[Any]) -> pa.Array:
        """Return a column of what msgspec has read; None where there is no value."""


def json_text(value: Any) -> str | None:
    """Return a value as JSON text; None for null."""
    return None if value is None else msgspec.json.encode(value).decode()


def converted(column: Column, value: Any) -> Any:
    """Return what Arrow takes for a value, which may be null.

    Raises:
        Misfit: it does not fit.
    """
    if value is not None:
        return column.convert(value)
    if not column.is_nullable:
        raise Misfit("is null")
    return None


@dataclass(frozen=True, slots=True)
class JsonScalar:
    """A column of text, numbers, booleans or times."""

    type: pa.DataType
    reads: Any
    taken: Callable[[Any], Any]
    is_nullable: bool = False
    is_plain: bool = True

    def convert(self, value: Any) -> Any:
        return self.taken(value)

    def build(self, cells: list[Any]) -> pa.Array:
        if pa.types.is_timestamp(self.type):  # twice as fast as to give Arrow the times themselves
            spans = [None if cell is None else cell - _EPOCH for cell in cells]
            return pa.array(spans, pa.duration("us")).view(self.type)
        return pa.array(cells, self.type)


@dataclass(frozen=True, slots=True)
class JsonText:
    """A column of anything, as JSON text."""

    reads: Any = Any
    is_nullable: bool = True
    is_plain: bool = False

    @property
    def type(self) -> pa.DataType:
        return pa.string()

    def convert(self, value: Any) -> Any:
        return json_text(value)

    def build(self, cells: list[Any]) -> pa.Array:
        return pa.array(list(map(json_text, cells)), self.type)


@dataclass(frozen=True, slots=True)
class JsonArray:
    """A column of arrays."""

    item: Column
    is_nullable: bool = False
    is_plain: bool = True

    @property
    def type(self) -> pa.DataType:
        return pa.list_(self.item.type)

    @property
    def reads(self) -> Any:
        return list[readable(self.item)]  # type: ignore[misc]

    def convert(self, value: Any) -> Any:
        """Convert the items of an array.

        Raises:
            Misfit: it is not an array, or an item does not fit.
        """
        if not isinstance(value, list):
            raise Misfit("is not an array")
        cells: list[Any] = []
        try:
            cells.extend(converted(self.item, each) for each in value)
        except Misfit as misfit:
            raise misfit.under(f"[{len(cells)}]") from None
        return cells

    def build(self, cells: list[Any]) -> pa.Array:
        lengths = np.fromiter((0 if cell is None else len(cell) for cell in cells), np.int64, len(cells))
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        inner = self.item.build(list(chain.from_iterable(cell for cell in cells if cell is not None)))
        return pa.ListArray.from_arrays(pa.array(offsets), inner, type=self.type, mask=_nulls(cells))


@dataclass(frozen=True, slots=True)
class Property:
    """One property of an object."""

    name: str
    column: Column
    is_required: bool


@dataclass(frozen=True, slots=True)
class JsonObject:
    """An object whose properties are known, some of them at least."""

    properties: tuple[Property, ...]
    has_rest: bool
    quick: Any  # the class that msgspec reads it as: properties are f0, f1, …, and there are no others
    open: Any  # the same, but others are passed over; what is inside has none still
    is_nullable: bool = False
    is_plain: bool = True

    @property
    def fields(self) -> list[pa.Field]:
        named = [pa.field(each.name, each.column.type) for each in self.properties]
        return [*named, pa.field(REST, pa.string())] if self.has_rest else named

    @property
    def type(self) -> pa.DataType:
        return pa.struct(self.fields)

    @property
    def reads(self) -> Any:
        return self.quick

    def convert(self, value: Any) -> Any:
        """Convert the properties of an object.

        Raises:
            Misfit: it is not an object, or a property is missing or does not fit.
        """
        if not isinstance(value, dict):
            raise Misfit("is not an object")
        rest, row = value.copy(), {}
        for each in self.properties:
            name = each.name
            if name in rest:
                try:
                    row[name] = converted(each.column, rest.pop(name))
                except Misfit as misfit:
                    raise misfit.under(step(name)) from None
            elif each.is_required:
                raise Misfit("is missing", step(name))
        if self.has_rest:
            row[REST] = json_text(rest) if rest else None
        elif rest:
            raise Misfit("is not a property of the schema", step(next(iter(rest))))
        return row

    def build(self, cells: list[Any]) -> pa.Array:
        mask = _nulls(cells)
        arrays = []
        for index, each in enumerate(self.properties):
            get = attrgetter(f"f{index}")
            inner = list(map(get, cells)) if mask is None else [None if cell is None else get(cell) for cell in cells]
            arrays.append(each.column.build(inner))
        if self.has_rest:
            arrays.append(pa.nulls(len(cells), pa.string()))
        return pa.StructArray.from_arrays(arrays, fields=self.fields, mask=mask)


def readable(column: Column) -> Any:
    """Return the type that msgspec reads it as, null included where that is allowed."""
    return Optional[column.reads] if column.is_nullable else column.reads  # noqa: UP045


def step(name: str) -> str:
    """Return the step to a property, in a JSON path."""
    return f".{name}" if name.isidentifier() else f"[{json_text(name)}]"


def _nulls(cells: list[Any]) -> pa.Array | None:
    mask = [cell is None for cell in cells]
    return pa.array(mask, pa.bool_()) if any(mask) else None


def columns_of(definition: Any) -> Column:
    """Return what values of this JSON Schema become.

    Raises:
        InvalidSettings: it has too many columns, or two of one name.
    """
    if not isinstance(definition, dict):
        return JsonText()
    return _JsonCompiler(definition).column(definition, (), 0)


class _JsonCompiler:
    """Walks one schema. A reference to a part that it is in already is JSON text: columns have an end."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        draft = root.get("$schema")
        draft = draft.removesuffix("#") if isinstance(draft, str) else draft
        self._checks_formats = draft in _DRAFTS_WITH_FORMATS
        self._is_known_draft = draft is None or draft in _DRAFTS | _DRAFTS_WITH_FORMATS
        self._count = 0

    def column(self, schema: Any, references: tuple[str, ...], depth: int) -> Column:
        self._count += 1
        if self._count > COLUMNS_MAX:
            raise InvalidSettings(f"the schema has more than {COLUMNS_MAX} columns, once its references are followed")
        if not isinstance(schema, dict) or depth > DEPTH_MAX or ("$id" in schema and schema is not self._root):
            return JsonText()
        if "$ref" in schema:
            return self._referred(schema, references, depth)
        for word in ("anyOf", "oneOf"):
            if word in schema and "type" not in schema and "properties" not in schema:
                return self._alternative(schema, word, references, depth)
        if "allOf" in schema and "type" not in schema and "properties" not in schema:
            parts = schema["allOf"]
            if isinstance(parts, list) and len(parts) == 1:
                return _plain_if(self.column(parts[0], references, depth + 1), set(schema) <= {*_NOTES, "allOf"})
            return JsonText()
        return self._typed(schema, references, depth)

    def _referred(self, schema: dict[str, Any], references: tuple[str, ...], depth: int) -> Column:
        name = schema["$ref"]
        target = self._resolve(name)
        if target is None or name in references:
            return JsonText()
        return _plain_if(self.column(target, (*references, name), depth + 1), set(schema) <= {*_NOTES, "$ref"})

    def _resolve(self, reference: Any) -> Any:
        """Return the part of the schema that a reference names; None: it is not found by its path."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        part: Any = self._root
        for step_ in reference[1:].split("/")[1:]:
            key = step_.replace("~1", "/").replace("~0", "~")
            if not isinstance(part, dict) or key not in part:
                return None
            part = part[key]
        return part if reference.startswith("#/") else None

    def _alternative(self, schema: dict[str, Any], word: str, references: tuple[str, ...], depth: int) -> Column:
        """Return the column of a choice between one thing and null; any other choice is JSON text."""
        parts = schema[word]
        others = [part for part in parts if not (isinstance(part, dict) and part.get("type") == "null")]
        if len(others) != 1:
            return JsonText()
        found = self.column(others[0], references, depth + 1)
        nulls = [part for part in parts if part is not others[0]]
        is_simple = set(schema) <= {*_NOTES, word} and all(set(part) <= {*_NOTES, "type"} for part in nulls)
        is_one = word == "anyOf" or (not found.is_nullable and len(nulls) < 2)
        return _plain_if(_nullable(found) if nulls else found, is_simple and is_one)

    def _typed(self, schema: dict[str, Any], references: tuple[str, ...], depth: int) -> Column:
        said = schema.get("type")
        names = [said] if isinstance(said, str) else list(said) if isinstance(said, list) else []
        is_nullable = "null" in names
        kinds = [name for name in names if name != "null"]
        if not names and "properties" in schema:
            kinds = ["object"]
        words = set(schema) - _NOTES - {"type"}
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        if choices is not None and not kinds and all(isinstance(each, str | None) for each in choices):
            kinds = ["string"]
            is_nullable = is_nullable or (not names and None in choices)
        if len(kinds) != 1:
            return JsonText()
        found = self._of_kind(kinds[0], schema, words, references, depth)
        return _plain_if(_nullable(found), choices is None) if is_nullable else found

    def _of_kind(
        self, kind: str, schema: dict[str, Any], words: set[str], references: tuple[str, ...], depth: int
    ) -> Column:
        if kind == "object":
            return self._record(schema, words, references, depth)
        if kind == "array":
            item = JsonText() if "prefixItems" in schema else self.column(schema.get("items"), references, depth + 1)
            return JsonArray(item, is_plain=item.is_plain and words <= {"items"} and self._is_known_draft)
        if kind == "string":
            return self._string(schema, words)
        scalar = _SCALARS.get(kind)
        if kind == "integer" and words and (limits := _limits(schema, words, _INTEGER_LIMITS)) is not None:
            reads = Annotated[int, Meta(**{"ge": _INT64_MIN, "le": _INT64_MAX, **limits})]
            return replace(_SCALARS[kind], reads=reads, is_plain=self._is_known_draft)
        return JsonText() if scalar is None else _plain_if(scalar, not words and self._is_known_draft)

    def _string(self, schema: dict[str, Any], words: set[str]) -> Column:
        is_plain = words <= {"format"} and self._is_known_draft and not (words and self._checks_formats)
        scalar = _FORMATS.get(schema.get("format", "")) if isinstance(schema.get("format", ""), str) else None
        if scalar is not None:
            return _plain_if(scalar, is_plain)
        choices = schema.get("enum")
        if words == {"enum"} and choices and all(isinstance(each, str) for each in choices):
            # An enumeration costs msgspec nothing, and saves the validator.
            return replace(_STRING, reads=Literal[tuple(choices)], is_plain=self._is_known_draft)
        if words and (limits := _limits(schema, words, _STRING_LIMITS)) is not None:
            return replace(_STRING, reads=Annotated[str, Meta(**limits)], is_plain=self._is_known_draft)
        return _plain_if(_STRING, is_plain)

    def _record(self, schema: dict[str, Any], words: set[str], references: tuple[str, ...], depth: int) -> Column:
        named = schema.get("properties")
        if not isinstance(named, dict) or not named:
            return JsonText()
        asked = schema.get("required", [])
        required = set(asked) if isinstance(asked, list) else set()
        properties = tuple(
            Property(name, self.column(part, references, depth + 1), name in required) for name, part in named.items()
        )
        has_rest = schema.get("additionalProperties") is not False
        check_names([*named, *([REST] if has_rest else [])])
        is_plain = (
            self._is_known_draft
            and words <= {"properties", "required", "additionalProperties"}
            and required <= set(named)
            and all(each.column.is_plain for each in properties)
        )
        quick, open_ = (_quick_class(properties, is_open=is_open) for is_open in (False, True))
        return JsonObject(properties, has_rest, quick, open_, is_plain=is_plain)


def check_names(names: Sequence[str]) -> None:
    """Check the names of columns, in which Spark ignores case.

    Raises:
        InvalidSettings: one is empty, or two are the same.
    """
    seen: dict[str, str] = {}
    for name in names:
        if not name:
            raise InvalidSettings("the schema has a column without a name")
        other = seen.get(name.lower())
        if other is not None:
            hint = f" ({REST} is for what the schema does not name)" if REST in (name, other) else ""
            raise InvalidSettings(f"columns {other!r} and {name!r} of the schema are one to Spark{hint}")
        seen[name.lower()] = name


def _quick_class(properties: tuple[Property, ...], *, is_open: bool) -> Any:
    fields: list[tuple[str, Any, Any]] = [
        (
            f"f{index}",
            readable(each.column),
            msgspec.field(name=each.name) if each.is_required else msgspec.field(name=each.name, default=None),
        )
        for index, each in enumerate(properties)
    ]
    try:
        return msgspec.defstruct("Quick", fields, kw_only=True, forbid_unknown_fields=not is_open, gc=False)
    except ValueError:  # a name that msgspec does not take: nothing is read quickly
        return _Never


class _Never(msgspec.Struct):
    """A type that no value has."""

    never: Annotated[int, Meta(ge=1, le=0)]


def _limits(schema: dict[str, Any], words: set[str], known: dict[str, str]) -> Any:
    """Return limits as msgspec has them; None: there are others too, or numbers that it does not take."""
    said = {word: schema[word] for word in words}
    if not all(word in known and type(limit) is int and abs(limit) < _INT64_MAX for word, limit in said.items()):
        return None
    return {known[word]: limit for word, limit in said.items()}


def _plain_if(column: Column, is_plain: bool) -> Column:
    assert isinstance(column, JsonScalar | JsonText | JsonArray | JsonObject)
    return column if is_plain or not column.is_plain else replace(column, is_plain=False)


def _nullable(column: Column) -> Column:
    assert isinstance(column, JsonScalar | JsonText | JsonArray | JsonObject)
    return replace(column, is_nullable=True)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Misfit("is not a string")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Misfit("is not a boolean")
    return value


def _integer(value: Any) -> int:
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not is_whole:
        raise Misfit("is not an integer")
    if not -(2**63) <= (number := int(value)) < 2**63:
        raise Misfit("does not fit 64 bits")
    return number


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Misfit("is not a number")
    try:
        return float(value)
    except OverflowError:
        raise Misfit("is too large a number") from None


def _time(value: Any) -> int:
    try:
        span = _TIME.decode(msgspec.json.encode(_text(value))) - _EPOCH
    except msgspec.ValidationError:
        raise Misfit("is not a date-time with a zone, such as 2026-11-30T12:00:00Z") from None
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


def _date(value: Any) -> date:
    try:
        return _DATE.decode(msgspec.json.encode(_text(value)))
    except msgspec.ValidationError:
        raise Misfit("is not a date, such as 2026-11-30") from None


_STRING = JsonScalar(pa.string(), str, _text)
_SCALARS = {
    "integer": JsonScalar(pa.int64(), _INT64, _integer),
    "number": JsonScalar(pa.float64(), float, _number),
    "boolean": JsonScalar(pa.bool_(), bool, _truth),
}
_FORMATS = {
    "date-time": JsonScalar(pa.timestamp("us", "UTC"), _WITH_ZONE, _time),
    "date": JsonScalar(pa.date32(), date, _date),
}

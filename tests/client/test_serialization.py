"""P11: envelopes carry a serializer's id, a type's name and bytes; what nobody can write is refused."""

import contextlib
import datetime
import decimal
import enum
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sulina.client.serialization import (
    USER_ID_MAX,
    SerializationRegistry,
    envelope_of,
    headers_of,
    without_envelope,
)
from sulina.core.delivery.pubsub import Envelope
from sulina.core.records.serializer import SERIALIZER_HEADER, TYPE_HEADER, Serializer
from sulina.errors import InvalidEnvelope, InvalidSettings, NotSerializable


@dataclass(frozen=True)
class Order:
    number: int
    lines: list[str]


class Payment(msgspec.Struct, frozen=True):
    amount: decimal.Decimal
    paid_at: datetime.datetime
    token: bytes


class Refund(Payment, frozen=True):
    reason: str


class Colour(enum.StrEnum):
    RED = "red"


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


PAYMENT = Payment(decimal.Decimal("12.50"), datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC), b"\x00\xff")
PAYMENT_SCHEMA = {
    "type": "record",
    "name": "Payment",
    "fields": [
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "paid_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "token", "type": "bytes"},
    ],
}


@pytest.fixture
def registry() -> SerializationRegistry:
    return SerializationRegistry()


def there_and_back(registry: SerializationRegistry, value: object) -> Any:
    """As a record carries it."""
    envelope = registry.serialize(value)
    return registry.deserialize(envelope_of(envelope.data, headers_of(envelope)))


@pytest.mark.parametrize(
    ("value", "expected", "serializer_id"),
    [
        (b"\x00\xff", b"\x00\xff", Serializer.BYTES),
        (bytearray(b"x"), b"x", Serializer.BYTES),
        (memoryview(b"xyz")[::2], b"xz", Serializer.BYTES),
        ("grüße", "grüße", Serializer.TEXT),
        (Colour.RED, "red", Serializer.TEXT),
        ({"a": [1, None, 2.5, True]}, {"a": [1, None, 2.5, True]}, Serializer.JSON),
        ((1, 2), [1, 2], Serializer.JSON),
        (Order(1, ["x"]), {"number": 1, "lines": ["x"]}, Serializer.JSON),
        (7, 7, Serializer.JSON),
        (None, None, Serializer.JSON),
    ],
)
def test_p11_what_needs_no_registration(
    registry: SerializationRegistry, value: object, expected: object, serializer_id: int
) -> None:
    assert registry.serialize(value).serializer_id == serializer_id
    assert there_and_back(registry, value) == expected


def test_p11_an_envelope_names_a_type_only_where_the_reader_needs_it(registry: SerializationRegistry) -> None:
    assert registry.serialize(b"x") == Envelope(Serializer.BYTES, "", b"x")
    assert registry.serialize("x") == Envelope(Serializer.TEXT, "", b"x")
    assert registry.serialize(1) == Envelope(Serializer.JSON, "", b"1")
    batch = pa.RecordBatch.from_pydict({"n": [1]})
    assert registry.serialize(batch).type_name == "RecordBatch"
    assert registry.serialize(pa.Table.from_batches([batch])).type_name == "Table"


@pytest.mark.parametrize("rows", [0, 3])
def test_arrow_comes_back_as_the_kind_that_it_was(registry: SerializationRegistry, rows: int) -> None:
    batch = pa.RecordBatch.from_pydict({"n": pa.array(range(rows), pa.int32())})
    for value in (batch, pa.Table.from_batches([batch])):
        back = there_and_back(registry, value)
        assert type(back) is type(value)
        assert back.equals(value)


def test_a_table_of_many_batches_is_no_record_batch(registry: SerializationRegistry) -> None:
    batch = pa.RecordBatch.from_pydict({"n": [1]})
    envelope = registry.serialize(pa.Table.from_batches([batch, batch]))
    assert registry.deserialize(envelope).num_rows == 2
    with pytest.raises(InvalidEnvelope):
        registry.deserialize(Envelope(Serializer.ARROW, "RecordBatch", envelope.data))


def test_types_that_are_registered_come_back_as_themselves(registry: SerializationRegistry) -> None:
    registry.register_json(Order)
    registry.register_avro(Payment, schema=PAYMENT_SCHEMA)
    registry.register(
        Point, serializer_id=100, type_name="point", dumps=lambda p: b"%d" % p.x, loads=lambda data: Point(int(data))
    )
    registry.register(
        uuid.UUID,
        serializer_id=100,
        type_name="uuid",
        dumps=lambda u: u.bytes,
        loads=lambda data: uuid.UUID(bytes=data),
    )
    assert there_and_back(registry, Order(1, ["x"])) == Order(1, ["x"])
    assert there_and_back(registry, PAYMENT) == PAYMENT
    assert there_and_back(registry, Point(5)).x == 5
    assert there_and_back(registry, uuid.UUID(int=7)) == uuid.UUID(int=7)
    assert registry.serialize(Order(1, [])).type_name.endswith(".Order")
    assert registry.serialize(Point(1)) == Envelope(100, "point", b"1")


def test_a_subclass_is_another_type(registry: SerializationRegistry) -> None:
    registry.register_json(Payment)
    refund = Refund(PAYMENT.amount, PAYMENT.paid_at, PAYMENT.token, "broken")
    assert registry.serialize(refund).type_name == ""
    assert there_and_back(registry, refund)["reason"] == "broken"


def test_json_of_a_type_that_nobody_registered_here_is_plain(registry: SerializationRegistry) -> None:
    other = SerializationRegistry()
    other.register_json(Order, type_name="order")
    assert registry.deserialize(other.serialize(Order(1, ["x"]))) == {"number": 1, "lines": ["x"]}


def test_plain_bytes_have_no_headers_and_need_none(registry: SerializationRegistry) -> None:
    assert headers_of(registry.serialize(b"x")) == ()
    assert envelope_of(b"x", [("mine", b"1")]) == Envelope(0, "", b"x")
    assert headers_of(Envelope(1, "", b"x")) == ((SERIALIZER_HEADER, b"1"),)
    assert headers_of(Envelope(2, "order", b"{}")) == ((SERIALIZER_HEADER, b"2"), (TYPE_HEADER, b"order"))
    assert headers_of(Envelope(0, "blob", b"")) == ((SERIALIZER_HEADER, b"0"), (TYPE_HEADER, b"blob"))
    mine = (("mine", b"1"), (TYPE_HEADER, b"x"), (SERIALIZER_HEADER, None))
    assert without_envelope(mine) == (("mine", b"1"),)


def _refuse(_value: object) -> bytes:
    raise KeyError("no")


@pytest.mark.parametrize("value", [object(), "\ud800", {(1, 2): 3}, [object()], {1, object()}])
def test_p11_what_nobody_can_write_is_not_serializable(registry: SerializationRegistry, value: object) -> None:
    with pytest.raises(NotSerializable, match="cannot be written"):
        registry.serialize(value)


def test_a_cycle_is_not_serializable(registry: SerializationRegistry) -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(NotSerializable):
        registry.serialize(cycle)


@pytest.mark.parametrize(("dumps", "reason"), [(_refuse, "KeyError: 'no'"), (lambda _: "text", "as str, not as bytes")])
def test_a_users_function_that_fails_is_not_serializable(
    registry: SerializationRegistry, dumps: Any, reason: str
) -> None:
    registry.register(Point, serializer_id=100, type_name="point", dumps=dumps, loads=_refuse)  # type: ignore[arg-type]
    with pytest.raises(NotSerializable, match=f"a value of type Point .*{reason}"):
        registry.serialize(Point(1))


def test_a_record_that_does_not_fit_its_avro_schema_is_not_serializable(registry: SerializationRegistry) -> None:
    registry.register_avro(Order, schema=PAYMENT_SCHEMA)
    with pytest.raises(NotSerializable):
        registry.serialize(Order(1, []))


@pytest.mark.parametrize(
    "envelope",
    [
        Envelope(99, "", b"x"),
        Envelope(100, "unknown", b"x"),
        Envelope(Serializer.AVRO, "unknown", b"x"),
        Envelope(Serializer.TEXT, "", b"\xff"),
        Envelope(Serializer.JSON, "", b"{"),
        Envelope(Serializer.JSON, "order", b'{"number": "one"}'),
        Envelope(Serializer.ARROW, "Table", b"not arrow"),
        Envelope(Serializer.AVRO, "payment", b"\x04"),
        Envelope(100, "point", b"five"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_an_invalid_envelope(registry: SerializationRegistry, envelope: Envelope) -> None:
    registry.register_json(Order, type_name="order")
    registry.register_avro(Payment, schema=PAYMENT_SCHEMA, type_name="payment")
    registry.register(
        Point, serializer_id=100, type_name="point", dumps=lambda p: b"%d" % p.x, loads=lambda data: Point(int(data))
    )
    with pytest.raises(InvalidEnvelope, match=str(envelope.serializer_id)):
        registry.deserialize(envelope)


def test_bytes_that_are_left_over_after_an_avro_record_are_noticed(registry: SerializationRegistry) -> None:
    registry.register_avro(Payment, schema=PAYMENT_SCHEMA)
    envelope = registry.serialize(PAYMENT)
    with pytest.raises(InvalidEnvelope, match="left over"):
        registry.deserialize(Envelope(envelope.serializer_id, envelope.type_name, envelope.data + b"x"))


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([(SERIALIZER_HEADER, b"two")], f"{SERIALIZER_HEADER} is a number, not b'two'"),
        ([(SERIALIZER_HEADER, b"9" * 20)], f"{SERIALIZER_HEADER} is a number"),
        ([(SERIALIZER_HEADER, None)], f"{SERIALIZER_HEADER} is a number, not b''"),
        ([(TYPE_HEADER, b"\xff")], f"{TYPE_HEADER} is not text"),
    ],
)
def test_headers_that_say_nothing_are_an_invalid_envelope(headers: list[tuple[str, bytes | None]], reason: str) -> None:
    with pytest.raises(InvalidEnvelope, match=reason):
        envelope_of(b"x", headers)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([(SERIALIZER_HEADER, b"1")], Envelope(1, "", b"x")),
        ([(SERIALIZER_HEADER, b"1"), (TYPE_HEADER, None)], Envelope(1, "", b"x")),
        ([(TYPE_HEADER, b"blob")], Envelope(0, "blob", b"x")),
        ([(SERIALIZER_HEADER, str(USER_ID_MAX).encode())], Envelope(USER_ID_MAX, "", b"x")),
    ],
)
def test_a_header_that_is_absent_stands_for_bytes_without_a_type(
    headers: list[tuple[str, bytes | None]], expected: Envelope
) -> None:
    assert envelope_of(b"x", headers) == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"serializer_id": 99},
        {"serializer_id": 2**31},
        {"serializer_id": "100"},
        {"type_name": ""},
        {"type_name": "x" * 501},
        {"type_name": "\ud800"},
        {"kind": "point"},
    ],
)
def test_a_registration_outside_the_rules(registry: SerializationRegistry, settings: dict[str, Any]) -> None:
    known: dict[str, Any] = {"serializer_id": 100, "type_name": "point", "dumps": _refuse, "loads": _refuse}
    changed = {"kind": Point} | known | settings
    with pytest.raises(InvalidSettings):
        registry.register(changed.pop("kind"), **changed)


def test_nothing_is_registered_twice(registry: SerializationRegistry) -> None:
    registry.register_json(Order, type_name="order")
    with pytest.raises(InvalidSettings, match="Order is registered already"):
        registry.register_json(Order, type_name="other")
    with pytest.raises(InvalidSettings, match="another type"):
        registry.register_json(Payment, type_name="order")
    with pytest.raises(InvalidSettings):
        registry.register_json(list[Point])
    with pytest.raises(InvalidSettings, match="only types are registered"):
        registry.register_json(int | None)  # type: ignore[arg-type]
    with pytest.raises(InvalidSettings, match="avro"):
        registry.register_avro(Payment, schema={"type": "nothing"})


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


@given(value=_json | st.binary())
def test_what_can_be_written_is_read_as_it_was(value: object) -> None:
    assert there_and_back(SerializationRegistry(), value) == value


@given(serializer_id=st.integers(0, 200), name=st.text(max_size=5), data=st.binary(max_size=50))
def test_no_bytes_raise_anything_else(serializer_id: int, name: str, data: bytes) -> None:
    registry = SerializationRegistry()
    registry.register_json(Order, type_name="o")
    registry.register_avro(Payment, schema=PAYMENT_SCHEMA, type_name="p")
    with contextlib.suppress(InvalidEnvelope):
        registry.deserialize(Envelope(serializer_id, name, data))

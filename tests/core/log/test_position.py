"""Positions as words."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from sulina.core.log.position import At, Position
from sulina.errors import InvalidSettings


@pytest.mark.parametrize(
    "text", ["earliest", "latest", "offset:0", "offset:42", "offset:42@7", "version:7", "timestamp:1700000000000"]
)
def test_a_position_reads_as_it_is_written_p12(text: str) -> None:
    assert str(Position.parse(text)) == text


def test_an_offset_has_an_epoch_where_that_is_known() -> None:
    assert str(Position.at_offset(42, 7)) == "offset:42@7"
    assert str(Position.at_offset(42, 0)) == "offset:42@0"
    assert str(Position.at_offset(42, None)) == str(Position.at_offset(42, -1)) == "offset:42"


def test_the_largest_offset_is_one() -> None:
    assert Position.parse("offset:9223372036854775807") == Position(At.OFFSET, 2**63 - 1)


@pytest.mark.parametrize("milliseconds", [0, 1, 999, 1_079_337_347_472, 1_700_000_000_001, 2_183_226_373_411])
def test_a_timestamp_in_iso_is_exact_to_the_millisecond(milliseconds: int) -> None:
    moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)
    assert Position.parse(f"timestamp:{moment.isoformat()}") == Position(At.TIMESTAMP, milliseconds)
    elsewhere = moment.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert Position.parse(f"timestamp:{elsewhere.isoformat()}") == Position(At.TIMESTAMP, milliseconds)


def test_a_timestamp_may_be_iso() -> None:
    assert Position.parse("timestamp:2023-11-14T22:13:20Z") == Position(At.TIMESTAMP, 1_700_000_000_000)
    assert Position.parse("timestamp:2023-11-14T22:13:20") == Position(At.TIMESTAMP, 1_700_000_000_000)


@pytest.mark.parametrize(
    "text",
    ["", "first", "offset", "offset:", "offset:-1", "offset:1.5",
     "offset:1@", "offset:1@-1", "offset:@1", "offset:1@2@3", "version:1@1", "timestamp:1@1",
     "offset:9223372036854775808", "offset:00000000000000000001", "version:x", "latest:1",
     "timestamp:yesterday", "timestamp:0001-01-01", "offset:١", "OFFSET:1", "x" * 10_000],
)  # fmt: skip
def test_what_is_no_position_is_refused_with_the_words_that_are(text: str) -> None:
    with pytest.raises(InvalidSettings, match="earliest, latest, offset:N") as caught:
        Position.parse(text)
    assert len(str(caught.value)) < 250
    assert repr(text)[1:50] in str(caught.value)

"""A ledger of what was sent and acknowledged, to hold a log to its promises.

Batch number N holds `records_of(N)` records that say their batch, their place in it and how many there are, so a log
can be checked from its contents alone: nothing lost, nothing twice, nothing in part, nothing invented.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sulina.core.log.log_state import Appended
from sulina.core.log.plan import Append
from sulina.core.log.publish_request import PublishRequest
from sulina.core.records.batch import split
from sulina.core.records.record import StoredRecord, decode, encode
from sulina.storage.directory_log import DirectoryLog
from sulina.types import Offset, Version


def records_of(number: int) -> int:
    """How many records batch `number` has."""
    return 1 + number % 4


def batch(
    number: int, *, padding_bytes: int = 0, producer_id: int = -1, producer_epoch: int = -1, base_sequence: int = -1
) -> bytes:
    """Batch `number`."""
    count = records_of(number)
    values = [value_of(number, place, padding_bytes) for place in range(count)]
    records = [StoredRecord(value=value, timestamp_ms=1_000 + number) for value in values]
    return bytes(encode(records, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence))


def value_of(number: int, place: int, padding_bytes: int) -> bytes:
    """The value of a record."""
    return b"%d/%d/%d/" % (number, place, records_of(number)) + bytes([number % 256]) * padding_bytes


def append_of(
    number: int,
    *,
    txn_id: str | None = None,
    expected_version: Version | None = None,
    padding_bytes: int = 0,
    producer_id: int = -1,
    base_sequence: int = -1,
) -> Append:
    """Batch `number` as `DirectoryLog.append` takes it; with a producer id, of the producer's epoch 0."""
    data = batch(
        number,
        padding_bytes=padding_bytes,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=base_sequence,
    )
    return Append(PublishRequest(data, txn_id=txn_id, expected_version=expected_version), split(data))


def contents(log: DirectoryLog, *, max_bytes: int = 4096, version: Version | None = None) -> list[StoredRecord]:
    """Every record that readers of a log see."""
    records: list[StoredRecord] = []
    offset = log.view.start_offset
    while True:
        found = log.read(offset, max_bytes, version)
        if found.next_offset == offset:
            return records
        records += records_in(found.data, from_offset=offset)
        offset = found.next_offset


def records_in(data: memoryview, *, from_offset: Offset = Offset(0)) -> list[StoredRecord]:
    """The records of batches that lie end to end."""
    records: list[StoredRecord] = []
    position = 0
    for header in split(data):
        records += [record for record in decode(data, header, position) if record.offset >= from_offset]
        position += header.size_bytes
    return records


@dataclass(slots=True)
class Ledger:
    """What a log must hold, and what it may hold."""

    sent: set[int] = field(default_factory=set)
    acked: dict[int, Appended] = field(default_factory=dict)
    padding_bytes: int = 0  # of every batch

    def violations(self, records: Iterable[StoredRecord], start: Offset = Offset(0)) -> list[str]:
        """What is wrong with the records of a log that starts at `start`; nothing, if all is well."""
        wrong: list[str] = []
        first_offset: dict[int, int] = {}
        expected = int(start)
        left: list[tuple[int, int, int]] = []  # what must come next
        for record in records:
            assert record.value is not None
            number, place, count = (int(part) for part in record.value.split(b"/")[:3])
            if record.value != value_of(number, place, self.padding_bytes):
                wrong.append(f"offset {record.offset} holds {record.value!r}")
            if record.offset != expected:
                wrong.append(f"offset {record.offset} where {expected} is due")
            expected = record.offset + 1
            if left:
                if (number, place, count) != left.pop(0):
                    wrong.append(f"offset {record.offset} holds {number}/{place}: a batch is torn")
            elif place != 0:
                wrong.append(f"offset {record.offset} begins in the middle of batch {number}")
            else:
                left = [(number, later, count) for later in range(1, count)]
                if number in first_offset:
                    wrong.append(f"batch {number} is at {first_offset[number]} and at {record.offset}")
                first_offset[number] = record.offset
                if number not in self.sent:
                    wrong.append(f"batch {number} was never sent")
        if left:
            wrong.append(f"the log ends in the middle of batch {left[0][0]}")
        for number, appended in self.acked.items():
            if appended.offset_end <= start:
                continue
            if first_offset.get(number) != appended.offset_start:
                where = first_offset.get(number)
                wrong.append(f"batch {number} was acknowledged at {appended.offset_start}, it is at {where}")
        return wrong

"""The bytes of commits and checkpoints (L10)."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sulina.core.log.commit import (
    Add,
    Checkpoint,
    Claim,
    Commit,
    LastCheckpoint,
    Remove,
    Seal,
    checkpoint_name,
    checkpoint_version,
    commit_name,
    commit_version,
    decode,
    encode,
    offset_before,
    timestamp_ms,
    timestamp_text,
)
from sulina.core.log.txn_run import TxnRef, TxnRun
from sulina.errors import CorruptCommit
from sulina.types import Epoch, Offset, Version

ADD = Add(
    origin_id=1,
    origin_seq=78,
    offset_start=Offset(420),
    offset_end=Offset(427),
    segment="00000000000000000400.log",
    position=8192,
    size=384,
    timestamp_max=1_730_993_702_883,
)
COMMIT = Commit(
    version=Version(11),
    timestamp="2025-11-07T18:15:02.883Z",
    txn_id="broker-1:1730993702883:42",
    operations=(
        ADD,
        Remove(segment="00000000000000000000.log", offset_start=Offset(0), offset_end=Offset(400), size=8192),
        Claim(epoch=Epoch(3), broker_id="broker-1"),
        Seal(segment="00000000000000000400.log", offset_end=Offset(427), size=8576),
    ),
    checkpoint_hint=False,
    epoch=Epoch(3),
    start_offset=Offset(400),
    next_offset=Offset(427),
)
CHECKPOINT = Checkpoint(
    version=Version(20),
    timestamp="2025-11-07T18:15:02.883Z",
    last_offset=840,
    start_offset=Offset(0),
    next_offset=Offset(841),
    epoch=Epoch(0),
    segments=(),
    origins=(),
    txns=(),
)


def test_a_commit_has_the_fields_of_the_seed_l10() -> None:
    entry = json.loads(encode(COMMIT))
    assert {"version", "timestamp", "txn_id", "operations", "checkpoint_hint"} <= entry.keys()
    seed = {
        "type": "add",
        "origin_id": 1,
        "origin_seq": 78,
        "offset_start": 420,
        "offset_end": 427,
        "segment": "00000000000000000400.log",
        "position": 8192,
        "size": 384,
    }
    assert seed.items() <= entry["operations"][0].items()


def test_every_operation_can_be_written_and_read_l15() -> None:
    assert decode("x", encode(COMMIT), Commit) == COMMIT


def test_a_checkpoint_has_the_fields_of_the_seed_l10() -> None:
    entry = json.loads(encode(CHECKPOINT))
    assert {"version", "timestamp", "last_offset", "segments", "origins"} <= entry.keys()
    assert decode("x", encode(CHECKPOINT), Checkpoint) == CHECKPOINT


def test_fields_of_a_newer_writer_are_ignored() -> None:
    from crc32c import crc32c

    body = encode(COMMIT).rpartition(b',"crc"')[0] + b',"new_field":[1,2],"another":{"size":1,"crc":2}'
    data = body + b',"crc":%d}\n' % crc32c(body)
    assert decode("x", data, Commit) == COMMIT


def test_what_is_whole_but_no_commit_is_named_l8() -> None:
    hint = encode(LastCheckpoint(version=Version(3)))
    with pytest.raises(CorruptCommit, match=r"^some-name is damaged: .*fields do not: .*timestamp"):
        decode("some-name", hint, Commit)
    with pytest.raises(CorruptCommit, match=rf"^some-name is damaged: .*checksum .*over {len(hint) - 1} bytes"):
        decode("some-name", hint[:-1], LastCheckpoint)


@given(st.integers(min_value=0), st.integers(0, 7))
def test_any_flipped_bit_is_detected_l8(place: int, bit: int) -> None:
    data = bytearray(encode(COMMIT))
    data[place % len(data)] ^= 1 << bit
    with pytest.raises(CorruptCommit):
        decode("x", bytes(data), Commit)


def test_any_torn_file_is_detected_l4() -> None:
    data = encode(COMMIT)
    for length in range(len(data)):
        with pytest.raises(CorruptCommit):
            decode("x", data[:length], Commit)


@given(st.binary())
def test_any_garbage_is_detected_l8(data: bytes) -> None:
    with pytest.raises(CorruptCommit):
        decode("x", data, Commit)
    with pytest.raises(CorruptCommit):
        decode("x", data, Checkpoint)
    with pytest.raises(CorruptCommit):
        decode("x", data, LastCheckpoint)


def test_a_compressed_checkpoint_is_the_same_line_as_gzip_l11() -> None:
    packed = encode(CHECKPOINT, compress=True)
    assert gzip.decompress(packed) == encode(CHECKPOINT)
    assert decode("x", packed, Checkpoint) == CHECKPOINT


def test_a_damaged_compressed_checkpoint_is_detected_l8() -> None:
    packed = encode(CHECKPOINT, compress=True)
    for length in range(2, len(packed)):
        with pytest.raises(CorruptCommit, match=r"^some-name is damaged: .*(cut short|decompressed: .*\d)"):
            decode("some-name", packed[:length], Checkpoint)
    for damaged in (packed + b"x", packed + packed):
        with pytest.raises(CorruptCommit, match=r"^some-name is damaged: .*followed by other bytes"):
            decode("some-name", damaged, Checkpoint)
    torn = bytearray(packed)
    torn[len(packed) // 2] ^= 0xFF
    with pytest.raises(CorruptCommit, match=r"^some-name is damaged: "):
        decode("some-name", bytes(torn), Checkpoint)


def test_a_checkpoint_unpacks_to_no_more_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    packed, size = encode(CHECKPOINT, compress=True), len(encode(CHECKPOINT))
    monkeypatch.setattr("sulina.core.log.commit.DECOMPRESSED_BYTES_MAX", size + 1)
    assert decode("x", packed, Checkpoint) == CHECKPOINT
    monkeypatch.setattr("sulina.core.log.commit.DECOMPRESSED_BYTES_MAX", size - 1)
    with pytest.raises(CorruptCommit, match="too long"):
        decode("x", packed, Checkpoint)


def test_names_sort_as_versions_do() -> None:
    assert commit_name(11) == "00000000000000000011.json"
    assert checkpoint_name(10) == "00000000000000000010.checkpoint.json"
    assert commit_version("00000000000000000011.json") == 11
    assert checkpoint_version("00000000000000000010.checkpoint.json") == 10
    assert min(commit_name(100), checkpoint_name(20), commit_name(9)) == commit_name(9)


@pytest.mark.parametrize(
    "name", ["_last_checkpoint", "00000000000000000011.json.1.2.aside", "11.json", "٣" * 20 + ".json", ""]
)
def test_other_files_are_no_commits(name: str) -> None:
    assert commit_version(name) is None
    assert checkpoint_version(name) is None


def test_timestamps_keep_their_milliseconds() -> None:
    assert timestamp_text(1_730_993_702.883) == "2024-11-07T15:35:02.883Z"
    assert timestamp_ms("2024-11-07T15:35:02.883Z") == 1_730_993_702_883


def test_a_checkpoint_names_its_runs_of_txn_ids_and_does_not_hold_them_l13() -> None:
    run = TxnRun()
    run.add(TxnRef("a", Offset(0), Offset(2), Version(3), 7))
    run.seal()
    checkpoint = replace(CHECKPOINT, txn_runs=(run,))
    written = encode(checkpoint)
    again = decode(checkpoint_name(checkpoint.version), written, Checkpoint)
    assert json.loads(written)["txn_runs"] == [list(run.reference())]
    assert [each.reference() for each in again.txn_runs] == [run.reference()]


def test_a_log_ended_before_a_commit_where_that_began_to_add_s4() -> None:
    claim = Claim(epoch=Epoch(3), broker_id="broker-1")
    adds = [replace(ADD, offset_start=Offset(at), offset_end=Offset(at + 2)) for at in (4, 6)]
    assert offset_before(replace(COMMIT, operations=(claim, *adds), next_offset=Offset(8))) == 4
    assert offset_before(replace(COMMIT, operations=(claim,), next_offset=Offset(8))) == 8

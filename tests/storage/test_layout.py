"""L10: the files of a real log, read without any code of ours: names and fields are those of seed 003."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sulina.core.log.log_state import Appended
from sulina.core.log.segment import SegmentLimits
from sulina.storage.directory_log import LogOptions
from sulina.storage.partition_log import PartitionLog
from sulina.types import PartitionName, TopicName
from tests.support.ledger import batch, records_of

OPTIONS = LogOptions(broker_id="b1", segments=SegmentLimits(segment_bytes_max=900, index_interval_bytes=200))
VERSIONS = 20  # appends, each a commit; version 0 is the first owner's claim
PRODUCERS = (1, 2, 7)
# Of a stored batch, as Kafka's format has it: base offset at 0, producer id at 43, base sequence at 53, count at 57.
BATCH = struct.Struct(">q 35x q 2x i i")


@pytest.fixture
async def answers(tmp_path: Path) -> dict[int, Appended]:
    """A log on disk with several segments and origins; what its appends were answered, by number."""
    answers: dict[int, Appended] = {}
    sequences = dict.fromkeys(PRODUCERS, 0)
    async with await PartitionLog.open(str(directory(tmp_path)), options=OPTIONS) as log:
        for number in range(VERSIONS):
            producer = PRODUCERS[number % 3]
            data = batch(number, producer_id=producer, producer_epoch=0, base_sequence=sequences[producer])
            answers[number] = await log.append(data, txn_id=f"t{number}" if number % 2 else None)
            sequences[producer] += records_of(number)
    return answers


def directory(home: Path) -> Path:
    return home / PartitionName(TopicName("default", "orders"), 3).directory


def read_json(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text())
    assert isinstance(document, dict)
    return document


def commits(home: Path) -> Iterator[dict[str, Any]]:
    for version in range(VERSIONS + 1):
        yield read_json(directory(home) / "_delta_log" / f"{version:020d}.json")


async def test_l10_directories_and_files_have_the_names_of_the_seed(
    answers: dict[int, Appended], tmp_path: Path
) -> None:
    assert directory(tmp_path) == tmp_path / "topic=default.orders-part=3"
    here = sorted(path.name for path in directory(tmp_path).iterdir() if path.name != ".lock")
    # A segment is named after its first offset, which is where some append began.
    bases = sorted({int(name[:20]) for name in here if name.endswith(".log")})
    assert len(bases) >= 3
    assert set(bases) <= {answer.offset_start for answer in answers.values()}
    assert here == sorted([f"{base:020d}{end}" for base in bases for end in (".log", ".index")] + ["_delta_log"])
    stored = {path.name for path in (directory(tmp_path) / "_delta_log").iterdir()}
    checkpoints = {name for name in stored if "checkpoint" in name}
    assert stored - checkpoints == {f"{version:020d}.json" for version in range(VERSIONS + 1)}
    assert "00000000000000000020.checkpoint.json" in checkpoints
    assert checkpoints <= {"00000000000000000010.checkpoint.json", "00000000000000000020.checkpoint.json"}


async def test_l10_commits_have_the_fields_of_the_seed_and_lead_to_the_bytes(
    answers: dict[int, Appended], tmp_path: Path
) -> None:
    first, *rest = commits(tmp_path)
    assert (first["version"], first["operations"][0]["type"]) == (0, "claim")
    names = set()
    for number, commit in enumerate(rest):
        assert set(commit) >= {"version", "timestamp", "txn_id", "operations", "checkpoint_hint"}
        assert (commit["version"], commit["checkpoint_hint"]) == (number + 1, (number + 1) % 10 == 0)
        assert commit["timestamp"].endswith("Z")
        names.add(commit["txn_id"])
        [add] = commit["operations"]
        assert add["type"] == "add"
        answer = answers[number]
        assert (add["offset_start"], add["offset_end"]) == (answer.offset_start, answer.offset_end)
        stored = (directory(tmp_path) / add["segment"]).read_bytes()
        found = stored[add["position"] : add["position"] + add["size"]]
        offset, origin, sequence, count = BATCH.unpack_from(found)
        assert (offset, count) == (add["offset_start"], add["offset_end"] - add["offset_start"])
        assert (origin, sequence) == (add["origin_id"], add["origin_seq"])
        assert len(found) == int.from_bytes(found[8:12]) + 12  # the batch's own length
    assert len(names) == VERSIONS


async def test_l10_a_checkpoint_has_the_fields_of_the_seed_for_every_segment_and_origin(
    answers: dict[int, Appended], tmp_path: Path
) -> None:
    checkpoint = read_json(directory(tmp_path) / "_delta_log" / f"{VERSIONS:020d}.checkpoint.json")
    end = answers[VERSIONS - 1].offset_end
    assert (checkpoint["version"], checkpoint["last_offset"]) == (VERSIONS, end - 1)
    assert checkpoint["timestamp"].endswith("Z")
    files = sorted(path for path in directory(tmp_path).iterdir() if path.suffix == ".log")
    bases = [int(path.name[:20]) for path in files]
    seeds = ("name", "base", "next_offset", "size")
    assert [{field: segment[field] for field in seeds} for segment in checkpoint["segments"]] == [
        {"name": path.name, "base": base, "next_offset": following, "size": path.stat().st_size}
        for path, base, following in zip(files, bases, [*bases[1:], end], strict=True)
    ]
    sent = {
        producer: sum(records_of(number) for number in range(VERSIONS) if PRODUCERS[number % 3] == producer)
        for producer in PRODUCERS
    }
    origins = [(origin["origin_id"], origin["last_seq"]) for origin in checkpoint["origins"]]
    assert sorted(origins) == [(producer, records - 1) for producer, records in sent.items()]

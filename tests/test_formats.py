"""What a newer version has written is refused in one way, and nothing of it is changed or deleted (docs/adr/0027)."""

import zlib
from collections.abc import Callable
from pathlib import Path

import apsw
import msgspec
import pytest
from crc32c import crc32c

from sulina.core import formats
from sulina.core.cluster.entries import Assignment
from sulina.core.delivery.cursor import Cursor
from sulina.core.delivery.readers import ReaderPosition
from sulina.core.formats import FORMATS, Format
from sulina.core.log.commit import commit_name
from sulina.core.log.resume import Stamp
from sulina.core.log.retention import Retention
from sulina.core.log.segment import SegmentLimits
from sulina.core.records.batch import split
from sulina.core.topic import Policy
from sulina.errors import InvalidBatch, NewerFormat, SulinaError, from_code
from sulina.failpoints import no_failpoints
from sulina.listeners.websocket import session_objection
from sulina.metadata.tables import SqliteTables
from sulina.node.recovery import memory_on_disk
from sulina.spark.delta_data_source import StreamOffset
from sulina.spark.delta_lease import take
from sulina.spark.delta_readers import FOLDER, live_readers
from sulina.spark.pipeline.definition import parse
from sulina.spark.planner import for_checkpoint, from_json
from sulina.spark.table_location import TableLocation
from sulina.storage.archive import Archive
from sulina.storage.directory_log import DirectoryLog, LogOptions
from sulina.storage.files import VolatileFiles
from sulina.storage.partition_directory import release_directory, seed
from sulina.storage.slicing import next_slice
from sulina.testing.clock import VirtualClock
from sulina.types import Epoch, Offset, PartitionName, TopicName
from sulina.wire.peer import Hello
from tests.support.ledger import append_of, batch, contents
from tests.support.objects import MemoryObjects

SMALL = LogOptions(segments=SegmentLimits(segment_bytes_max=1500, index_interval_bytes=300), epoch=Epoch(1))
PARTITION = PartitionName(TopicName("default", "orders"), 0)


def raised(data: bytes, family: Format) -> bytes:
    """A commit or checkpoint file as a newer version would have written it: its checksum holds."""
    is_gzip = data.startswith(b"\x1f\x8b")
    line = zlib.decompress(data, wbits=31) if is_gzip else data
    body = line.rpartition(b',"crc":')[0]
    # It has the next number, and things that this version does not know in the place of those that it knows.
    body = body.replace(b'{"format":%d,' % family.number, b'{"format":%d,' % (family.number + 1), 1)
    body = body.replace(b'"version":', b'"versions":', 1)
    line = b'%b,"crc":%d}\n' % (body, crc32c(body))
    return zlib.compress(line, wbits=31) if is_gzip else line


def tree(folder: Path) -> dict[str, bytes]:
    """Every file under a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def a_log(directory: Path, appends: int = 25, *, compress: bool = False) -> None:
    log = opened(directory, compress=compress)
    for number in range(appends):
        log.append([append_of(number, txn_id=f"t{number}")])
        log.checkpoint()
    log.close()


def opened(directory: Path, *, compress: bool = False) -> DirectoryLog:
    log = DirectoryLog(
        str(directory),
        files=VolatileFiles(),
        clock=VirtualClock(),
        options=LogOptions(segments=SMALL.segments, epoch=SMALL.epoch, compress_checkpoints=compress),
    )
    try:
        log.open()
    except BaseException:
        log.close()
        raise
    return log


# One rule


def test_the_number_is_written_first_and_read_back() -> None:
    data = formats.METADATA.encode(Policy(retention_bytes=7))
    assert data == b'{"format":1,"retention_bytes":7}'
    assert formats.METADATA.decode(data, Policy, "it") == Policy(retention_bytes=7)
    assert formats.METADATA.encode(Policy()) == b'{"format":1}'
    assert formats.METADATA.decode(b'{"format":1}', Policy, "it") == Policy()


@pytest.mark.parametrize("data", [b'{"epoch":3,"since_ms":4}', b'{ "epoch":3, "since_ms":4, "format": 1 }'])
def test_an_absent_number_is_format_1_and_it_may_be_said_anywhere(data: bytes) -> None:
    assert formats.METADATA.decode(data, Assignment, "it") == Assignment(epoch=3, since_ms=4)


def test_an_older_format_stays_readable_when_the_number_has_risen() -> None:
    later = Format("later", 3, "the field `format`")
    for data in (b"{}", b'{"format":1}', b'{"format":2}', b'{"format":3}'):
        assert later.decode(data, Policy, "it") == Policy()
    with pytest.raises(NewerFormat):
        later.decode(b'{"format":4}', Policy, "it")


@pytest.mark.parametrize("number", [b"0", b"-1", b'"2"', b"1.5", b"null", b"[2]"])
def test_a_number_that_is_none_is_damage(number: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        formats.METADATA.decode(b'{"epoch":3,"since_ms":4,"format":%b}' % number, Assignment, "it")


def test_the_error_names_the_thing_its_format_the_newest_known_and_the_remedy() -> None:
    with pytest.raises(NewerFormat) as refused:
        formats.METADATA.decode(b'{"format":10,"what":[]}', Assignment, "/cluster/x")
    assert str(refused.value) == (
        "/cluster/x has metadata format 10; this Sulina knows it up to 1. Nothing was changed: upgrade this Sulina"
    )
    again = from_code(refused.value.code, str(refused.value), refused.value.details())
    assert isinstance(again, NewerFormat)
    assert (again.name, again.format, again.newest, again.retryable) == ("/cluster/x", 10, 1, False)


# The families


def newer_commit(home: Path) -> None:
    a_log(home / "log")
    newest = max((home / "log/_delta_log").glob("????????????????????.json"))
    newest.write_bytes(raised(newest.read_bytes(), formats.COMMIT))
    (newest.parent / "0.json.1.1.aside").write_bytes(b"left by a writer that died")


def newer_checkpoint(home: Path, *, compress: bool = False) -> None:
    a_log(home / "log", compress=compress)
    newest = max((home / "log/_delta_log").glob("*.checkpoint.json"))
    newest.write_bytes(raised(newest.read_bytes(), formats.CHECKPOINT))


def newer_stamp(home: Path) -> None:
    stamp = Stamp(topic_id="t1", holder="h")
    seed(str(home / "log"), stamp, None, files=VolatileFiles(), failpoints=no_failpoints)
    (home / "log/.topic").write_bytes(b'{"format":2,"topic":"t1"}')


def newer_memory(home: Path) -> None:
    (home / "cluster-memory.json").write_bytes(b'{"format":2,"seen":1,"entries":2}')


def newer_sqlite(home: Path) -> None:
    SqliteTables(str(home / "metadata"), history_changes_max=10).close()
    db = apsw.Connection(str(home / "metadata"))
    db.pragma("user_version", 2)
    db.close()


def newer_table_file(home: Path) -> None:
    folder = home / FOLDER
    folder.mkdir(parents=True)
    (folder / "someone.json").write_bytes(b'{"format":2,"at":[1]}')


def newer_lease(home: Path) -> None:
    folder = home / "_sulina/maintenance"
    folder.mkdir(parents=True)
    (folder / f"{7:020d}.json").write_bytes(b'{"format":2,"held":[1]}')


def as_said(error: SulinaError | None) -> None:
    if error is not None:
        raise error


Make = Callable[[Path], None]
Open = Callable[[Path], object]
NOTHING: Make = lambda _: None  # noqa: E731
REFUSALS: list[tuple[Format, Make, Open]] = [
    (formats.COMMIT, newer_commit, lambda home: opened(home / "log")),
    (formats.CHECKPOINT, newer_checkpoint, lambda home: opened(home / "log")),
    (formats.CHECKPOINT, lambda home: newer_checkpoint(home, compress=True), lambda home: opened(home / "log")),
    (
        formats.STAMP,
        newer_stamp,
        lambda home: release_directory(
            str(home / "log"), Archive(MemoryObjects(), "a"), topic_id="t1", files=VolatileFiles()
        ),
    ),
    (formats.MEMORY, newer_memory, lambda home: memory_on_disk(str(home))),
    (formats.METADATA, NOTHING, lambda _: Cursor.load("it", b'{"format":2,"offset":7}')),
    (formats.METADATA, NOTHING, lambda _: ReaderPosition.load("it", b'{"format":2,"offset":"7"}')),
    (formats.SQLITE, newer_sqlite, lambda home: SqliteTables(str(home / "metadata"), history_changes_max=10)),
    (formats.SESSION, NOTHING, lambda _: as_said(session_objection(b"protocol=2", "it"))),
    (formats.SPARK_OFFSETS, NOTHING, lambda _: from_json({"format": 2, "/default/orders": {"0": [7]}})),
    (formats.SPARK_OFFSETS, NOTHING, lambda _: StreamOffset.of({"format": 2, "at": 7})),
    (formats.TABLE_FILE, newer_table_file, lambda home: live_readers(TableLocation.parse(str(home)), 0.0)),
    (formats.TABLE_FILE, newer_lease, lambda home: take(TableLocation.parse(str(home)), recorded=7)),
    (formats.PIPELINE, NOTHING, lambda _: parse({"format": 2, "name": "p", "what": 3})),
]
# Told apart by Kafka's magic byte, by the path of a URL, and by the hello in tests/listeners/test_peer.py.
ELSEWHERE = {formats.BATCH, formats.HTTP, formats.PEER}


@pytest.mark.parametrize(("family", "make", "read"), REFUSALS, ids=lambda each: getattr(each, "family", ""))
def test_l18_a_newer_number_is_refused_and_nothing_is_changed(
    family: Format, make: Make, read: Open, tmp_path: Path
) -> None:
    make(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(NewerFormat) as refused:
        read(tmp_path)
    assert (refused.value.family, refused.value.format) == (family.family, family.number + 1)
    after = tree(tmp_path)
    assert {name: after.get(name) for name in before} == before


def test_every_family_is_shown_to_be_refused() -> None:
    assert {family for family, *_ in REFUSALS} | ELSEWHERE == set(FORMATS)


def test_a_batch_of_a_newer_format_is_not_taken() -> None:
    data = bytearray(batch(1))
    data[16] = formats.BATCH.number + 1
    with pytest.raises(InvalidBatch):
        split(bytes(data))


def test_frames_and_paths_state_the_numbers_of_the_list() -> None:
    assert Hello("a", 1, "b").protocol == formats.PEER.number
    assert session_objection(b"", "it") is None
    assert session_objection(b"protocol=1", "it") is None


# What guards against loss


def test_l18_a_newer_checkpoint_is_not_passed_over_as_a_torn_one(tmp_path: Path) -> None:
    newer_checkpoint(tmp_path)
    log = tmp_path / "log/_delta_log"
    newest = max(log.glob("*.checkpoint.json"))
    with pytest.raises(NewerFormat):
        opened(tmp_path / "log")
    newest.write_bytes(newest.read_bytes()[:-9])  # torn it says nothing, and is passed over
    back = opened(tmp_path / "log")
    assert len(contents(back)) == sum(1 + number % 4 for number in range(25))
    back.close()


def test_l18_a_newer_commit_ends_the_log_before_it_is_written_over(tmp_path: Path) -> None:
    """The version that a running owner wants to write is there already, in a format that it does not know."""
    log = opened(tmp_path / "log")
    log.append([append_of(1)])
    mine = tmp_path / "log/_delta_log" / commit_name(log.view.version)
    theirs = mine.with_name(commit_name(log.view.version + 1))
    theirs.write_bytes(raised(mine.read_bytes(), formats.COMMIT))
    [answer] = log.append([append_of(2)])
    assert isinstance(answer, SulinaError)
    assert isinstance(answer.__cause__, NewerFormat)
    assert log.stopped is not None
    log.close()
    assert theirs.read_bytes() == raised(mine.read_bytes(), formats.COMMIT)


def test_l18_nothing_of_an_archive_is_removed_once_a_newer_version_has_written_to_it(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = MemoryObjects(clock)
    log = DirectoryLog(str(tmp_path / "log"), files=VolatileFiles(), clock=clock, options=SMALL)
    log.open()
    archive = Archive(store, "a", clock=clock)
    archive.load()
    archive.claim(Epoch(1), "old", lambda _: "h")
    for number in range(4):
        log.append([append_of(number)])
        new = next_slice(log, archive.view, state=log.commits.take_checkpoint())
        assert new is not None
        archive.store(new)
    log.close()
    newest = f"a/_delta_log/{commit_name(archive.view.version)}"
    following = f"a/_delta_log/{commit_name(archive.view.version + 1)}"
    store.held[following] = (raised(store.held[newest][0], formats.COMMIT), 0.0)
    before = dict(store.held)
    with pytest.raises(NewerFormat):
        archive.retain(Retention(bytes_max=1))
    with pytest.raises(NewerFormat):
        archive.sweep()
    fresh = Archive(store, "a", clock=clock)
    with pytest.raises(NewerFormat):
        fresh.load()
    assert store.held == before


def test_l18_a_newer_state_in_an_archive_is_not_built_on(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = MemoryObjects(clock)
    log = DirectoryLog(str(tmp_path / "log"), files=VolatileFiles(), clock=clock, options=SMALL)
    log.open()
    log.append([append_of(1)])
    archive = Archive(store, "a", clock=clock)
    archive.load()
    archive.claim(Epoch(1), "old", lambda _: "h")
    new = next_slice(log, archive.view, state=log.commits.take_checkpoint())
    assert new is not None
    archive.store(new)
    log.close()
    [state] = [name for name in store.held if name.endswith(".state")]
    store.held[state] = (raised(store.held[state][0], formats.CHECKPOINT), 0.0)
    with pytest.raises(NewerFormat):
        archive.log_checkpoint()


def test_an_index_of_another_format_is_made_again(tmp_path: Path) -> None:
    """An entry is used only if its own checksum holds: no layout can be mistaken for another."""
    a_log(tmp_path / "log")
    for index in (tmp_path / "log").glob("*.index"):
        index.write_bytes(b"\x02" + index.read_bytes())
    log = opened(tmp_path / "log")
    assert len(contents(log)) == sum(1 + number % 4 for number in range(25))
    log.close()


def test_spark_offsets_say_their_format_and_older_ones_without_it_are_read() -> None:
    offsets, epochs = {PARTITION: Offset(17)}, {PARTITION: Epoch(4)}
    stated = for_checkpoint(offsets, epochs)
    assert stated == {"format": 1, "/default/orders": {"0": "17@4"}}
    assert from_json(stated) == (offsets, epochs)
    assert from_json({"/default/orders": {"0": "17@4"}}) == (offsets, epochs)
    assert StreamOffset.of({"version": 3}) == StreamOffset.of({"format": 1, "version": 3})

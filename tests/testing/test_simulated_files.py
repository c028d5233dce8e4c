"""Each fault can happen, and what was synced survives them all.

`images` makes many crash images with fixed seeds. Most tests name the outcomes that all of them together
show: they fail when one never comes, and when one comes that must not.
"""

import errno
import random
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from sulina.testing import SimulatedFile, SimulatedFiles

OLD, NEW = b"o" * 2000, b"n" * 2000


def images(files: SimulatedFiles, count: int = 300) -> Iterator[SimulatedFiles]:
    for seed in range(count):
        yield files.crash(random.Random(seed))


def contents_after_crash(files: SimulatedFiles, path: str, count: int = 300) -> set[bytes | None]:
    """The contents of the file in many images; None where the name is gone."""
    return {image.read(path) if path in image.paths() else None for image in images(files, count)}


def names_after_crash(files: SimulatedFiles) -> set[str]:
    """The sets of paths in many images, each as one line."""
    return {" ".join(image.paths()) for image in images(files)}


def durable(files: SimulatedFiles, path: str, data: bytes) -> SimulatedFile:
    file = files.create(path)
    file.write(0, [data])
    file.sync()
    files.sync_directory("/")
    return file


def everything(files: SimulatedFiles) -> dict[str, bytes]:
    return {path: files.read(path) for path in files.paths()}


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles()


# What a power cut does to contents.


def test_what_was_synced_is_in_every_image(files: SimulatedFiles) -> None:
    file = durable(files, "/a", OLD)
    file.write(500, [NEW])
    file.truncate(2200)
    file.sync()
    assert contents_after_crash(files, "/a") == {OLD[:500] + NEW[:1700]}


def test_an_unsynced_append_can_be_kept_lost_torn_or_zeros(files: SimulatedFiles) -> None:
    durable(files, "/a", OLD).write(2000, [NEW])
    found = contents_after_crash(files, "/a")
    tails = {data[2000:] for data in found if data is not None}
    assert {NEW, b"", bytes(2000)} <= tails
    prefixes = {len(tail) for tail in tails if 0 < len(tail) < 2000 and tail == NEW[: len(tail)]}
    assert any((2000 + length) % 512 for length in prefixes), "a prefix that ends within a sector"
    assert any(len(tail) == 2000 and tail[:48] == bytes(48) and tail[-1:] == b"n" for tail in tails), "a later sector"
    assert all(data is not None and data[:2000] == OLD for data in found), "what was synced is intact"
    assert all(set(tail) <= {0, ord("n")} for tail in tails)


def test_an_unsynced_overwrite_can_leave_stale_sectors(files: SimulatedFiles) -> None:
    durable(files, "/a", OLD).write(0, [NEW])
    found = contents_after_crash(files, "/a")
    assert {OLD, NEW} <= found
    mixed = [data for data in found if data is not None and data not in (OLD, NEW)]
    assert any(data.startswith(b"o") and b"n" in data for data in mixed), "only later sectors"
    assert any(data.startswith(b"n") and data.endswith(b"o") for data in mixed), "only earlier ones"
    assert all(len(data) == 2000 and set(data) == set(b"on") for data in mixed)


def test_sectors_are_those_of_the_file_and_not_of_the_write(files: SimulatedFiles) -> None:
    durable(files, "/a", bytes(2048)).write(500, [b"n" * 1000])
    borders = {
        position
        for data in contents_after_crash(files, "/a")
        if data is not None and data[1499:1500] == b"n"  # so it is no prefix
        for position in range(1, 2048)
        if data[position] != data[position - 1]
    }
    assert borders == {500, 512, 1024, 1500}


def test_a_later_write_can_survive_an_earlier_one(files: SimulatedFiles) -> None:
    file = durable(files, "/a", b"")
    file.write(0, [b"first "])
    file.write(6, [b"second"])
    assert {b"", b"first ", b"first second", bytes(6) + b"second"} <= contents_after_crash(files, "/a")


def test_of_two_writes_to_one_place_the_earlier_never_wins_over_a_kept_later_one(
    files: SimulatedFiles,
) -> None:
    file = durable(files, "/a", b"0")
    file.write(0, [b"1"])
    file.write(0, [b"2"])
    assert contents_after_crash(files, "/a") == {b"0", b"1", b"2"}


def test_an_unsynced_truncate_can_be_lost(files: SimulatedFiles) -> None:
    durable(files, "/a", b"hello").truncate(1)
    assert contents_after_crash(files, "/a") == {b"hello", b"h"}


def test_a_write_after_a_lost_truncate_shows_the_old_tail(files: SimulatedFiles) -> None:
    file = durable(files, "/a", b"hello")
    file.truncate(0)
    file.write(0, [b"J"])
    assert {b"hello", b"J", b"Jello", b""} <= contents_after_crash(files, "/a")


def test_closing_makes_nothing_durable(files: SimulatedFiles) -> None:
    file = durable(files, "/a", b"")
    file.write(0, [b"hello"])
    file.close()
    assert b"" in contents_after_crash(files, "/a")


def test_a_sync_through_one_handle_covers_writes_through_another(files: SimulatedFiles) -> None:
    durable(files, "/a", b"").write(0, [b"hello"])
    files.open("/a").sync()
    assert contents_after_crash(files, "/a") == {b"hello"}


# What a power cut does to names.


def test_a_created_name_can_vanish_until_its_directory_is_synced(files: SimulatedFiles) -> None:
    file = files.create("/a")
    file.write(0, [b"hello"])
    file.sync()
    assert contents_after_crash(files, "/a") == {None, b"hello"}
    files.sync_directory("/")
    assert contents_after_crash(files, "/a") == {b"hello"}


def test_a_name_can_be_durable_without_the_contents(files: SimulatedFiles) -> None:
    files.create("/a").write(0, [b"hello"])
    files.link("/a", "/b")
    files.sync_directory("/")
    found = contents_after_crash(files, "/b")
    assert {b"", b"hello", bytes(5)} <= found
    assert None not in found


def test_syncing_one_directory_does_not_sync_another(files: SimulatedFiles) -> None:
    files.make_directory("/inner")
    files.create("/inner/a")
    files.create("/b")
    files.sync_directory("/")
    assert names_after_crash(files) == {"/b", "/b /inner/a"}


def test_names_are_kept_and_lost_one_by_one(files: SimulatedFiles) -> None:
    files.create("/a")
    files.link("/a", "/b")
    assert names_after_crash(files) == {"", "/a", "/b", "/a /b"}


def test_a_removed_name_can_come_back_with_its_contents(files: SimulatedFiles) -> None:
    durable(files, "/a", b"hello")
    files.remove("/a")
    assert contents_after_crash(files, "/a") == {None, b"hello"}
    files.sync_directory("/")
    assert contents_after_crash(files, "/a") == {None}


def test_a_rename_leaves_the_old_name_or_the_new_one(files: SimulatedFiles) -> None:
    durable(files, "/old", b"new contents")
    durable(files, "/target", b"old contents")
    files.rename("/old", "/target")
    found = {tuple(everything(image).items()) for image in images(files)}
    before = (("/old", b"new contents"), ("/target", b"old contents"))
    after = (("/target", b"new contents"),)
    assert found == {before, after}
    files.sync_directory("/")
    assert {tuple(everything(image).items()) for image in images(files)} == {after}


def test_a_file_renamed_twice_has_exactly_one_of_its_names(files: SimulatedFiles) -> None:
    durable(files, "/a", b"x")
    files.rename("/a", "/b")
    files.rename("/b", "/c")
    assert names_after_crash(files) == {"/a", "/b", "/c"}


def test_a_rename_between_directories_never_leaves_neither_name(files: SimulatedFiles) -> None:
    for name in ("/one", "/two", "/three"):
        files.make_directory(name)
    files.create("/one/a")
    files.sync_directory("/one")
    files.rename("/one/a", "/two/b")
    assert names_after_crash(files) == {"/one/a", "/two/b", "/one/a /two/b"}
    files.rename("/two/b", "/three/c")
    assert "" not in names_after_crash(files)
    files.sync_directory("/one")
    assert names_after_crash(files) == {"/three/c"}


def test_syncing_the_new_directory_makes_the_new_name_durable(files: SimulatedFiles) -> None:
    files.make_directory("/one")
    files.make_directory("/two")
    files.create("/one/a")
    files.sync_directory("/one")
    files.rename("/one/a", "/two/b")
    files.sync_directory("/two")
    assert names_after_crash(files) == {"/two/b", "/one/a /two/b"}


def test_directories_survive_and_are_durable_at_once(files: SimulatedFiles) -> None:
    files.make_directory("/a/b")
    assert all(image.list("/a") == ["b"] for image in images(files, 20))


def test_a_file_whose_name_a_directory_took_does_not_come_back(files: SimulatedFiles) -> None:
    durable(files, "/a", b"")
    files.remove("/a")
    files.make_directory("/a")
    assert names_after_crash(files) == {""}


def test_names_of_one_file_still_share_it_after_a_crash(files: SimulatedFiles) -> None:
    durable(files, "/a", b"hello")
    files.link("/a", "/b")
    files.sync_directory("/")
    for image in (files.crash(random.Random(1)), files.kill()):
        image.open("/a").write(0, [b"J"])
        assert image.read("/b") == b"Jello"


# Images.


def busy(files: SimulatedFiles) -> SimulatedFile:
    """A bit of everything unsynced."""
    file = durable(files, "/a", OLD)
    for position in range(0, 4000, 700):
        file.write(position, [NEW])
    files.create("/b").write(0, [NEW])
    files.link("/b", "/c")
    files.rename("/b", "/d")
    return file


def test_the_same_seed_gives_the_same_image_and_another_seed_another(files: SimulatedFiles) -> None:
    busy(files)
    first, second = ([everything(image) for image in images(files, 30)] for _ in range(2))
    assert first == second
    assert len({repr(image) for image in first}) > 10


def test_the_same_calls_give_the_same_image() -> None:
    twins = SimulatedFiles(), SimulatedFiles()
    for twin in twins:
        busy(twin)
    assert [everything(image) for image in images(twins[0], 30)] == [
        everything(image) for image in images(twins[1], 30)
    ]


@pytest.mark.parametrize(
    "copy", [lambda files: files.crash(random.Random(3)), SimulatedFiles.kill, SimulatedFiles.clone]
)
def test_an_image_and_its_original_do_not_touch_each_other(
    files: SimulatedFiles, copy: Callable[[SimulatedFiles], SimulatedFiles]
) -> None:
    file, clean = busy(files), durable(files, "/clean", b"clean")
    image, sibling = copy(files), copy(files)
    before = everything(image)
    clean.write(0, [b"dirty"])
    clean.sync()
    file.write(0, [b"original"])
    file.sync()
    files.remove("/a")
    files.sync_directory("/")
    assert everything(image) == before
    image.open("/a").write(0, [b"image"])
    image.flip_bit("/a", 0)
    image.open("/a").sync()
    image.create("/new")
    image.sync_directory("/")
    assert everything(sibling) == before
    assert everything(sibling.crash(random.Random(5))).keys() <= {"/a", "/b", "/c", "/d", "/clean"}
    assert "/new" not in files.paths()
    assert "/a" not in files.crash(random.Random(5)).paths()
    assert file.read(0, 8) == b"original"


def test_what_survived_one_crash_survives_the_next(files: SimulatedFiles) -> None:
    busy(files)
    for image in images(files, 50):
        assert all(everything(again) == everything(image) for again in images(image, 5))


def test_a_killed_process_leaves_everything_but_nothing_more_is_durable(files: SimulatedFiles) -> None:
    busy(files)
    killed = files.kill()
    assert everything(killed) == everything(files)
    assert [everything(image) for image in images(killed, 50)] == [everything(image) for image in images(files, 50)]
    killed.open("/a").sync()
    assert contents_after_crash(killed, "/a", 20) == {killed.read("/a")}


def test_what_the_original_writes_later_is_not_in_the_image(files: SimulatedFiles) -> None:
    file = durable(files, "/a", b"old")
    file.write(0, [b"new"])
    killed = files.kill()
    file.write(3, [b"er"])
    found = contents_after_crash(killed, "/a")
    assert {b"old", b"new"} <= found
    assert all(data is not None and len(data) == 3 for data in found)


def test_what_the_original_syncs_later_is_not_durable_in_the_image(files: SimulatedFiles) -> None:
    file = durable(files, "/a", b"old")
    file.write(0, [b"new"])
    killed = files.kill()
    file.sync()
    assert contents_after_crash(files, "/a") == {b"new"}
    assert {b"old", b"new"} <= contents_after_crash(killed, "/a")


def test_what_is_done_in_an_image_is_unsynced_again(files: SimulatedFiles) -> None:
    file = durable(files, "/a", b"1")
    for unsynced in (b"", b"2"):
        file.write(0, [unsynced])
        image = next(image for image in images(files) if image.read("/a") == b"1")
        image.open("/a").write(0, [b"3"])
        image.create("/b")
        assert contents_after_crash(image, "/a") == {b"1", b"3"}
        assert names_after_crash(image) == {"/a", "/a /b"}


def test_locks_are_gone_in_every_image(files: SimulatedFiles) -> None:
    assert files.lock("/lock") is not None
    for image in (files.crash(random.Random(1)), files.kill(), files.clone()):
        assert image.lock("/lock") is not None
    assert files.lock("/lock") is None


def test_the_original_goes_on_after_a_crash_image(files: SimulatedFiles) -> None:
    file = durable(files, "/a", b"hello")
    file.write(5, [b" world"])
    files.crash(random.Random(1))
    file.sync()
    assert contents_after_crash(files, "/a") == {b"hello world"}


# Faults.


def is_a(path: str) -> bool:
    return path == "/a"


def test_after_a_failed_sync_the_data_is_visible_but_never_durable(files: SimulatedFiles) -> None:
    file, other = durable(files, "/a", b"old"), durable(files, "/b", b"old")
    file.write(0, [b"new"])
    other.write(0, [b"new"])
    files.fail_sync(is_a)
    other.sync()
    with pytest.raises(OSError, match="/a") as raised:
        file.sync()
    assert raised.value.errno == errno.EIO
    file.sync()
    assert files.read("/a") == b"new"
    assert contents_after_crash(files, "/a") == {b"old"}
    assert contents_after_crash(files, "/b") == {b"new"}
    file.write(3, [b"er"])
    file.sync()
    assert files.read("/a") == b"newer"
    assert contents_after_crash(files, "/a") == {b"older"}
    assert files.kill().read("/a") == b"newer"


def test_after_a_failed_sync_of_a_directory_the_name_is_visible_but_never_durable(
    files: SimulatedFiles,
) -> None:
    files.make_directory("/inner")
    files.create("/b")
    files.create("/inner/a")
    files.fail_sync(lambda path: path == "/inner", errno=errno.ENOSPC)
    with pytest.raises(OSError, match="/inner") as raised:
        files.sync_directory("/inner")
    assert raised.value.errno == errno.ENOSPC
    files.sync_directory("/inner")
    assert names_after_crash(files) == {"", "/b"}
    assert files.paths() == ["/b", "/inner/a"]


def test_a_failed_sync_does_not_lose_a_file_on_its_way_between_directories(files: SimulatedFiles) -> None:
    files.make_directory("/one")
    files.make_directory("/two")
    files.create("/one/a")
    files.sync_directory("/one")
    files.rename("/one/a", "/two/b")
    files.fail_sync(lambda path: path == "/two")
    with pytest.raises(OSError, match="/two"):
        files.sync_directory("/two")
    assert names_after_crash(files) == {"/one/a"}


def test_a_sync_fails_as_often_as_told(files: SimulatedFiles) -> None:
    file = files.create("/a")
    files.fail_sync(is_a, times=2)
    for _ in range(2):
        with pytest.raises(OSError, match="/a"):
            file.sync()
    file.sync()


def test_a_failing_write_writes_nothing(files: SimulatedFiles) -> None:
    file = durable(files, "/a", b"hello")
    files.fail_write(is_a, errno=errno.EROFS)
    durable(files, "/b", b"not this one")
    with pytest.raises(OSError, match="/a") as raised:
        file.write(0, [b"J"])
    assert raised.value.errno == errno.EROFS
    assert files.read("/a") == b"hello"
    file.write(0, [b"J"])
    assert files.read("/a") == b"Jello"


def test_a_full_disk_takes_part_of_a_write_until_there_is_room(files: SimulatedFiles) -> None:
    files.capacity_bytes = 8
    file = durable(files, "/a", b"hello")
    files.link("/a", "/b")  # one file: it counts once
    other = files.create("/c")
    with pytest.raises(OSError, match="/c") as raised:
        other.write(0, [b"wo", b"rld"])
    assert raised.value.errno == errno.ENOSPC
    assert files.read("/c") == b"wor"
    file.write(0, [b"J"])  # overwriting needs no room
    with pytest.raises(OSError, match="/a"):
        file.truncate(6)
    assert files.read("/a") == b"Jello"
    with pytest.raises(OSError, match="/c"):
        other.write(5, [b"wide"])  # all of it, and the gap before it, is past the end
    assert files.read("/c") == b"wor"
    files.capacity_bytes = 4
    file.write(0, [b"J"])
    file.write(4, [b"o"])
    files.capacity_bytes = 10
    other.write(3, [b"ld"])
    file.truncate(0)
    other.write(5, [b"12345"])
    assert files.read("/c") == b"world12345"


def test_a_flipped_bit_is_flipped_in_every_image(files: SimulatedFiles) -> None:
    file = durable(files, "/a", b"aa")
    file.write(1, [b"a"])
    file.write(2, [b"a"])
    image = files.kill()
    files.flip_bit("/a", 1)
    files.flip_bit("/a", 8 + 1)
    files.flip_bit("/a", 16 + 1)
    assert files.read("/a") == b"ccc"
    assert contents_after_crash(files, "/a") == {b"cc", b"ccc", b"cc\0"}
    file.sync()
    assert contents_after_crash(files, "/a") == {b"ccc"}
    assert image.read("/a") == b"aaa"


def test_a_lying_disk_can_lose_what_it_said_was_synced() -> None:
    def outcome(*, lies_about_files: bool, lies_about_directories: bool) -> set[bytes | None]:
        files = SimulatedFiles()
        files.drop_syncs(lambda path: path in ("/a", "/"), files=lies_about_files, directories=lies_about_directories)
        durable(files, "/a", b"x")
        return contents_after_crash(files, "/a")

    assert outcome(lies_about_files=False, lies_about_directories=False) == {b"x"}
    assert outcome(lies_about_files=True, lies_about_directories=False) == {b"x", b"", b"\0"}
    assert outcome(lies_about_files=False, lies_about_directories=True) == {b"x", None}


def test_a_disk_lies_only_where_told(files: SimulatedFiles) -> None:
    files.drop_syncs(is_a)
    durable(files, "/a", b"x")
    durable(files, "/b", b"x")
    assert b"" in contents_after_crash(files, "/a")
    assert contents_after_crash(files, "/b") == {b"x"}


def test_an_image_has_no_faults_and_a_clone_has_its_own(files: SimulatedFiles) -> None:
    files.create("/a")
    files.sync_directory("/")
    files.capacity_bytes = 0
    files.fail_sync(is_a)
    for image in (files.crash(random.Random(1)), files.kill()):
        file = image.open("/a")
        file.write(0, [b"x"])
        file.sync()
    for faulty in (files.clone(), files):
        with pytest.raises(OSError, match="No space"):
            faulty.open("/a").write(0, [b"x"])
        with pytest.raises(OSError, match="Input/output error"):
            faulty.open("/a").sync()


def test_helpers_for_tests_count_no_operation(files: SimulatedFiles) -> None:
    durable(files, "/a", b"hello")
    operations = files.operations
    assert (files.read("/a"), files.size("/a"), files.paths()) == (b"hello", 5, ["/a"])
    with pytest.raises(FileNotFoundError):
        files.read("/b")
    assert files.operations == operations


@pytest.fixture
def _eager_threads() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_eager_threads")
def test_threads_can_share_the_files(files: SimulatedFiles) -> None:
    file = durable(files, "/a", b"")
    failures: list[BaseException] = []

    def append(thread: int) -> None:
        try:
            for number in range(300):
                file.write((number * 4 + thread) * 8, [bytes([thread + 1]) * 8])
                file.sync()
                file.read(0, 4096)
        except BaseException as failure:  # noqa: BLE001 - told to the main thread
            failures.append(failure)

    threads = [threading.Thread(target=append, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert contents_after_crash(files, "/a", 3) == {b"".join(bytes([n + 1]) * 8 for n in range(4)) * 300}

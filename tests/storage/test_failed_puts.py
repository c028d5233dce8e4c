"""A put that fails leaves nothing behind: on a full disk, what was written in vain would keep it full."""

import errno
from pathlib import Path

import pytest

from sulina.errors import ArchiveFailed
from sulina.storage.files import OsFile, OsFiles
from sulina.storage.objects import DirectoryObjects


@pytest.mark.parametrize("fault", ["write", "sync", "rename"])
def test_a_failed_put_into_a_directory_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    objects = DirectoryObjects(str(tmp_path))
    objects.put("folder/first", [b"1"])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(OsFiles if fault == "rename" else OsFile, fault, full)
        with pytest.raises(ArchiveFailed):
            objects.put("folder/second", [b"2" * 100])
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["first"]
    objects.put("folder/second", [b"2"])
    assert bytes(objects.get("folder/second") or b"") == b"2"

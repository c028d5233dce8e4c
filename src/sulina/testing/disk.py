"""A disk in memory that knows what is durable, and shows what a power cut may leave of the rest.

Invariants:
- Everything that was synced is in every later image: contents and size after a sync of the file, names after a sync of
  the directory. Neither includes the other.
- Unsynced changes may be there, gone, or there in part. Each has its own fate, so a later one can be kept while an
  earlier one is lost. Those kept are applied in the order in which they were made.
    - A write: all of it, a prefix, any subset of its 512-byte sectors, or nothing. Where it was to lengthen
      the file, the size may have grown with zeros instead; where it was to overwrite, stale bytes remain.
    - A truncate: done or not.
    - A name created, linked or removed: done or not. So a name can show a file whose contents are lost.
    - A rename: the old name or the new one, never neither. Between two directories it can leave both names,
      until the directory of the old one is synced, which makes the new name durable too.
- A directory is durable once made, and making one syncs its parent, as on a real disk.
- An image and its original share nothing that either can change.
- The same calls and the same seed give the same image.

Paths are absolute; a relative one starts at `/`. Directories cannot be renamed or removed.
"""

import errno
import os
import posixpath
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

SECTOR_BYTES = 512

# What a power cut does to unsynced writes: the shares that are kept whole and torn; the others are lost.
_WRITE_FATES = ((0.0, 0.0), (1.0, 0.0), (0.5, 0.25), (0.1, 0.3), (0.9, 0.05), (0.0, 1.0))
_NAME_SHARES_KEPT = (0.0, 0.1, 0.5, 0.9, 1.0)


class _UnsyncedWrite(NamedTuple):
    position: int
    data: bytes  # never empty


class _Truncate(NamedTuple):
    size_bytes: int


@dataclass(slots=True, eq=False)
class Inode:
    """A file without its names. `durable` plus all of `unsynced` is `contents`, unless a sync has failed."""

    contents: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[_UnsyncedWrite | _Truncate] = field(default_factory=list)
    shared: bool = False  # with another image, or with each other: copy before a change

    def write(self, position: int, data: bytes) -> None:
        if data:
            self._change(_UnsyncedWrite(position, data))

    def truncate(self, size_bytes: int) -> None:
        self._change(_Truncate(size_bytes))

    def sync(self) -> None:
        if self.unsynced:
            self._unshare()
            for change in self.unsynced:
                _apply(self.durable, change)
            self.unsynced.clear()

    def flip_bit(self, bit_index: int) -> None:
        self._unshare()
        position, mask = bit_index // 8, 1 << bit_index % 8
        self.contents[position] ^= mask
        if position < len(self.durable):
            self.durable[position] ^= mask
        for index, change in enumerate(self.unsynced):
            if isinstance(change, _UnsyncedWrite) and 0 <= position - change.position < len(change.data):
                data = bytearray(change.data)
                data[position - change.position] ^= mask
                self.unsynced[index] = _UnsyncedWrite(change.position, bytes(data))

    def copy(self) -> "Inode":
        self.shared = True
        return Inode(self.contents, self.durable, list(self.unsynced), shared=True)

    def after_power_cut(self, rng: random.Random) -> "Inode":
        if not self.unsynced:
            self.shared = True
            return Inode(self.durable, self.durable, shared=True)
        image = bytearray(self.durable)
        kept, torn = rng.choice(_WRITE_FATES)
        for change in self.unsynced:
            fate = rng.random()
            if fate < kept:
                _apply(image, change)
            elif fate < kept + torn and isinstance(change, _UnsyncedWrite):
                _apply_torn(image, change, rng)
        return Inode(image, image, shared=True)

    def _change(self, change: _UnsyncedWrite | _Truncate) -> None:
        self._unshare()
        _apply(self.contents, change)
        self.unsynced.append(change)

    def _unshare(self) -> None:
        if self.shared:
            self.contents, self.durable = bytearray(self.contents), bytearray(self.durable)
            self.shared = False


def _apply(image: bytearray, change: _UnsyncedWrite | _Truncate) -> None:
    if isinstance(change, _Truncate):
        _resize(image, change.size_bytes)
        return
    position, data = change
    if position > len(image):
        _resize(image, position)
    image[position : position + len(data)] = data


def _apply_torn(image: bytearray, write: _UnsyncedWrite, rng: random.Random) -> None:
    position, data = write
    end = position + len(data)
    shape = rng.randrange(3)  # 0: no data at all
    if shape == 1 and (prefix := data[: rng.randrange(len(data))]):
        _apply(image, _UnsyncedWrite(position, prefix))
    elif shape == 2:
        for sector in range(position // SECTOR_BYTES, (end - 1) // SECTOR_BYTES + 1):
            if rng.getrandbits(1):
                low, high = max(position, sector * SECTOR_BYTES), min(end, (sector + 1) * SECTOR_BYTES)
                _apply(image, _UnsyncedWrite(low, data[low - position : high - position]))
    if end > len(image) and rng.getrandbits(1):
        _resize(image, end)  # the size arrived without the data


def _resize(image: bytearray, size_bytes: int) -> None:
    if size_bytes < len(image):
        del image[size_bytes:]
    else:
        image.extend(bytes(size_bytes - len(image)))


@dataclass(slots=True, eq=False)
class _NameChange:
    """One atomic change of a directory: each name gets a file, or is removed."""

    directory: str
    names: tuple[tuple[str, Inode | None], ...]
    after: "_NameChange | None" = None  # if that one is lost, this one is too

    def apply(self, entries: dict[str, Inode]) -> None:
        for name, inode in self.names:
            if inode is None:
                entries.pop(name, None)
            else:
                entries[name] = inode


@dataclass(slots=True)
class _Directory:
    entries: dict[str, Inode] = field(default_factory=dict)
    durable: dict[str, Inode] = field(default_factory=dict)


class Disk:
    """Directories and inodes, and which of their changes are durable."""

    def __init__(self) -> None:
        self.directories = {"/": _Directory()}
        self.unsynced: list[_NameChange] = []  # of all directories, in the order in which they were made
        self.capacity_bytes: int | None = None

    def find(self, path: str) -> Inode:
        directory, name = self._locate(path)
        inode = self.directories[directory].entries.get(name)
        if inode is None:
            raise os_error(errno.EISDIR if _normal(path) in self.directories else errno.ENOENT, path)
        return inode

    def has(self, path: str) -> bool:
        directory, name = self._locate(path)
        return name in self.directories[directory].entries or _normal(path) in self.directories

    def create(self, path: str) -> Inode:
        inode = Inode()
        self._add(path, inode)
        return inode

    def link(self, source: str, target: str) -> None:
        self._add(target, self.find(source))

    def rename(self, source: str, target: str) -> None:
        inode = self.find(source)
        if self.has(target) and self.find(target) is inode:
            return  # POSIX: two names of one file both stay
        (old_directory, old_name), (new_directory, new_name) = self._locate(source), self._locate(target)
        if old_directory == new_directory:
            names = ((old_name, None), (new_name, inode))
            self._change(_NameChange(old_directory, names, after=self._unsynced_origin(source, inode)))
        else:
            added = _NameChange(new_directory, ((new_name, inode),))
            self._change(added)
            self._change(_NameChange(old_directory, ((old_name, None),), after=added))

    def remove(self, path: str) -> None:
        self.find(path)
        directory, name = self._locate(path)
        self._change(_NameChange(directory, ((name, None),)))

    def make_directory(self, path: str) -> None:
        path, parent = _normal(path), posixpath.dirname(_normal(path))
        if path in self.directories:
            return
        self.make_directory(parent)
        if self.has(path):
            raise os_error(errno.EEXIST, path)
        self.directories[path] = _Directory()
        self.sync_names(parent)

    def directory(self, path: str) -> str:
        """Return the normal form of the path of an existing directory."""
        directory = _normal(path)
        if directory not in self.directories:
            raise os_error(errno.ENOTDIR if self.has(path) else errno.ENOENT, path)
        return directory

    def names(self, path: str) -> list[str]:
        directory = self.directory(path)
        others = (posixpath.split(other) for other in self.directories)
        inner = (name for parent, name in others if parent == directory and name)
        return [*self.directories[directory].entries, *inner]

    def paths(self) -> list[str]:
        return [
            posixpath.join(directory, name) for directory, names in self.directories.items() for name in names.entries
        ]

    def overflow_bytes(self, growth_bytes: int) -> int:
        """Return how many bytes of a file's growth do not fit."""
        if self.capacity_bytes is None or growth_bytes <= 0:
            return 0
        inodes = {inode for directory in self.directories.values() for inode in directory.entries.values()}
        used_bytes = sum(len(inode.contents) for inode in inodes)
        return max(0, used_bytes + growth_bytes - self.capacity_bytes)

    def sync_names(self, directory: str) -> None:
        # A removed name must not become durable before the name that a rename made elsewhere.
        directories, more = set[str](), {directory}
        while more:
            directories |= more
            afters = [change.after for change in self.unsynced if change.directory in directories]
            more = {after.directory for after in afters if after} - directories
        for change in self.unsynced:
            if change.directory in directories:
                change.apply(self.directories[change.directory].durable)
        self.unsynced = [change for change in self.unsynced if change.directory not in directories]

    def drop_unsynced_names(self, directory: str) -> None:
        """Make unsynced names volatile: they stay visible, but no sync saves them, nor removals that rely on them."""
        forgotten: set[_NameChange | None] = set()
        for change in self.unsynced:
            if change.directory == directory or change.after in forgotten:
                forgotten.add(change)
        self.unsynced = [change for change in self.unsynced if change not in forgotten]

    def copy(self) -> "Disk":
        disk, copies = Disk(), _Copies(Inode.copy)
        for path, directory in self.directories.items():
            disk.directories[path] = _Directory(copies.of(directory.entries), copies.of(directory.durable))
        changes: dict[_NameChange | None, _NameChange] = {}
        for change in self.unsynced:
            names = tuple((name, inode and copies[inode]) for name, inode in change.names)
            changes[change] = _NameChange(change.directory, names, after=changes.get(change.after))
        disk.unsynced = list(changes.values())
        return disk

    def after_power_cut(self, rng: random.Random) -> "Disk":
        entries = {path: dict(directory.durable) for path, directory in self.directories.items()}
        lost: set[_NameChange | None] = set()
        kept = rng.choice(_NAME_SHARES_KEPT)
        for change in self.unsynced:
            if change.after in lost or rng.random() >= kept:
                lost.add(change)
            else:
                change.apply(entries[change.directory])
        disk, copies = Disk(), _Copies(lambda inode: inode.after_power_cut(rng))
        for path, names in entries.items():
            left = copies.of(names)
            disk.directories[path] = _Directory(left, dict(left))
        return disk

    def _locate(self, path: str) -> tuple[str, str]:
        """Return the directory of a path, which exists, and the name in it, which may not."""
        directory, name = posixpath.split(_normal(path))
        return (directory if directory in self.directories else self.directory(directory)), name

    def _add(self, path: str, inode: Inode) -> None:
        directory, name = self._locate(path)
        if self.has(path):
            raise os_error(errno.EEXIST, path)
        self._change(_NameChange(directory, ((name, inode),)))

    def _change(self, change: _NameChange) -> None:
        change.apply(self.directories[change.directory].entries)
        self.unsynced.append(change)

    def _unsynced_origin(self, path: str, inode: Inode) -> _NameChange | None:
        """Return the unsynced change that gave this file this name."""
        directory, name = self._locate(path)
        for change in reversed(self.unsynced):
            if change.directory == directory and (name, inode) in change.names:
                return change
        return None


class _Copies(dict[Inode, Inode]):
    """One copy of each inode, however many names it has."""

    def __init__(self, copy: Callable[[Inode], Inode]) -> None:
        super().__init__()
        self._copy = copy

    def __missing__(self, inode: Inode) -> Inode:
        self[inode] = copy = self._copy(inode)
        return copy

    def of(self, names: dict[str, Inode]) -> dict[str, Inode]:
        return {name: self[inode] for name, inode in names.items()}


def _normal(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


def os_error(code: int, path: str) -> OSError:
    """Return the subclass of OSError for an error code."""
    return OSError(code, os.strerror(code), path)

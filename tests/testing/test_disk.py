"""After any calls, everything that was synced is in every image. The model knows only what was promised."""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sulina.testing import SimulatedFiles


def everything(files: SimulatedFiles) -> dict[str, bytes]:
    return {path: files.read(path) for path in files.paths()}


class ModelFile:
    """What was promised of one file: `synced`, below `floor`, outside of `touched`."""

    def __init__(self) -> None:
        self.current = b""
        self.synced = b""
        self.floor = 0
        self.touched: set[int] = set()

    def write(self, position: int, data: bytes) -> None:
        padded = self.current.ljust(position, b"\0")
        self.current = padded[:position] + data + padded[position + len(data) :]
        self.touched |= set(range(position, position + len(data)))

    def truncate(self, size: int) -> None:
        self.current = self.current[:size].ljust(size, b"\0")
        self.floor = min(self.floor, size)

    def sync(self) -> None:
        self.synced, self.floor, self.touched = self.current, len(self.current), set()

    def check(self, found: bytes) -> None:
        assert len(found) >= self.floor
        for position in range(self.floor):
            if position not in self.touched:
                assert found[position] == self.synced[position]
        if not self.touched and self.floor == len(self.current):
            assert found == self.synced


class SyncedSurvives(RuleBasedStateMachine):
    """Names untouched since their directory was synced show what was promised of their file."""

    directories = st.sampled_from(["/one", "/two"])
    paths = st.builds("{}/{}".format, directories, st.sampled_from("abc"))
    positions = st.integers(0, 1500)

    @initialize()
    def start(self) -> None:
        self.files = SimulatedFiles()
        self.names: dict[str, ModelFile] = {}
        self.unsettled: set[str] = set()
        for directory in ("/one", "/two"):
            self.files.make_directory(directory)

    @rule(path=paths)
    def create(self, path: str) -> None:
        if path in self.names:
            return
        self.files.create(path).close()
        self.names[path] = ModelFile()
        self.unsettled.add(path)

    @precondition(lambda self: self.names)
    @rule(path=paths, position=positions, data=st.binary(min_size=1, max_size=1200))
    def write(self, path: str, position: int, data: bytes) -> None:
        if path in self.names:
            self.files.open(path).write(position, [data])
            self.names[path].write(position, data)

    @precondition(lambda self: self.names)
    @rule(path=paths, size=positions)
    def truncate(self, path: str, size: int) -> None:
        if path in self.names:
            self.files.open(path).truncate(size)
            self.names[path].truncate(size)

    @precondition(lambda self: self.names)
    @rule(path=paths)
    def sync(self, path: str) -> None:
        if path in self.names:
            self.files.open(path).sync()
            self.names[path].sync()

    @precondition(lambda self: self.names)
    @rule(source=paths, other=paths)
    def link(self, source: str, other: str) -> None:
        if source in self.names and other not in self.names:
            self.files.link(source, other)
            self.names[other] = self.names[source]
            self.unsettled.add(other)

    @precondition(lambda self: self.names)
    @rule(source=paths, other=paths)
    def rename(self, source: str, other: str) -> None:
        if source in self.names and self.names.get(other) is not self.names[source]:
            self.files.rename(source, other)
            self.names[other] = self.names.pop(source)
            self.unsettled |= {source, other}

    @precondition(lambda self: self.names)
    @rule(path=paths)
    def remove(self, path: str) -> None:
        if path in self.names:
            self.files.remove(path)
            del self.names[path]
            self.unsettled.add(path)

    @rule(directory=directories)
    def sync_directory(self, directory: str) -> None:
        self.files.sync_directory(directory)
        self.unsettled = {path for path in self.unsettled if not path.startswith(directory)}

    @rule()
    def die(self) -> None:
        self.files = self.files.kill()

    @invariant()
    def everything_synced_is_in_every_image(self) -> None:
        for seed in range(3):
            image = self.files.crash(random.Random(seed))
            found = everything(image)
            assert found.keys() - self.unsettled == self.names.keys() - self.unsettled
            for path in self.names.keys() - self.unsettled:
                self.names[path].check(found[path])

    @invariant()
    def contents_are_as_written(self) -> None:
        assert everything(self.files) == {path: file.current for path, file in self.names.items()}


TestSyncedSurvives = SyncedSurvives.TestCase
TestSyncedSurvives.settings = settings(max_examples=100, stateful_step_count=30, derandomize=True, database=None)

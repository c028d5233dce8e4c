"""A broker's copy of the metadata store, on its disk and in the archive, and how it notices that the store went back.

- `join` compares the store with what this broker and the archive have seen before. A broker does not join a store that
  is older: missing entries would look like deleted ones, and epochs would be used twice.
- While the broker runs it writes its mark every few seconds, and before it registers again it checks that the store
  still has it. Only this broker writes the mark, so a store that does not have the newest one has lost something.
- When the store went back, the broker serves nothing until the store's identity has a higher generation, which means
  that the cluster was recovered.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import structlog
from msgspec.structs import replace

from sulina.broker.archives import Archives
from sulina.broker.events import EventStream
from sulina.core.cluster import keys
from sulina.core.cluster.recovery import Identity, Mark, Memory, Seen, evidence, is_same_topic, topics_of
from sulina.core.formats import MEMORY, METADATA
from sulina.errors import ArchiveFailed, InvalidSettings, MetadataFailed, SulinaError
from sulina.ports import NO_REVISION, Compare, Files, MetadataStore, Put
from sulina.storage.files import read_whole, write_whole
from sulina.waiting import wait_or_timeout

SEEN_FILE, MEMORY_FILE = "cluster-seen.json", "cluster-memory.json"
MARK_SECONDS = 5.0  # between two marks; a store that went back by less may be noticed later
SOON_SECONDS = 0.5  # from a change of topics or owners until it is written
ARCHIVE_SECONDS = 30.0  # between two copies in the archive, where requests cost money
POLL_SECONDS = 0.5  # between two looks whether the cluster was recovered
SHARE_MAX = 10  # the pause between two rounds, as a multiple of the time that a round takes

_logger = structlog.get_logger("sulina.cluster")


class ClusterMemory:
    """`join` before anything in the store is used, then `run`; `verify` before a new lease is used."""

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        broker_id: str,
        store_id: str,
        files: Files,
        data: str,
        archives: Archives | None,
        entries: Callable[[], Mapping[str, bytes] | None],
        events: EventStream,
    ) -> None:
        """Create the memory; `entries` returns what to remember, by key, or None before it is known."""
        self._metadata = metadata
        self._key = keys.mark(broker_id)
        self._files = files
        self._data = data
        self._archives = archives
        self._entries = entries
        self._events = events
        self._seen = Seen(cluster_id="", generation=0, revision=0, mark=0, broker_id=broker_id, store_id=store_id)
        self._mark_revision = NO_REVISION
        self._copied_at = float("-inf")  # to the archive
        self._copied: dict[str, str] = {}  # without cursors
        self._change = asyncio.Event()
        self._turn = asyncio.Lock()  # one round at a time
        self._kept: Mapping[str, str] = {}  # entries on disk
        self._at_end: Mapping[str, bytes] = {}  # entries that were known when the store was found to have gone back
        metadata.history.listen(self._history_changed)
        metadata.history.confirm_by(self.verify)

    def changed(self) -> None:
        """Remember soon: topics or owners have changed."""
        self._change.set()

    def _history_changed(self) -> None:
        """Keep the entries before partitions are released: only this broker has its newest subscriptions and acks."""
        if self._metadata.history.went_back is not None:
            self._at_end = self._entries() or {}
        self.changed()

    async def join(self, others: Sequence[Seen]) -> None:
        """Check that the store has everything that was seen in it before, and join its cluster.

        `others` is what brokers have stored in the archive.

        Raises:
            MetadataWentBack: the store has lost something.
            InvalidSettings: it is the store of another cluster.
        """
        own = await asyncio.to_thread(self._read_seen)
        self._kept = await asyncio.to_thread(self._read_kept)
        witnesses = [*([own] if own is not None else []), *others]
        identity = await self._identity(witnesses)
        for seen in witnesses:
            if seen.cluster_id != identity.cluster_id:
                what = "this data directory" if seen is own else "the object store"
                raise InvalidSettings(
                    f"{what} belongs to cluster {seen.cluster_id}, but the metadata store to {identity.cluster_id}"
                )
        listing = await self._metadata.list(keys.MARKS)
        marks = {entry.key.removeprefix(keys.MARKS): entry for entry in listing.entries}
        numbers = {broker: METADATA.decode(entry.value, Mark, entry.key).number for broker, entry in marks.items()}
        for seen in witnesses:
            if (found := evidence(seen, identity, listing.revision, numbers)) is not None:
                raise self._metadata.history.declare(found)
            if seen.generation == identity.generation:
                self._metadata.history.expect(seen.revision)
        mine = marks.get(self._seen.broker_id)
        self._mark_revision = mine.revision if mine is not None else NO_REVISION
        self._seen = replace(
            self._seen,
            cluster_id=identity.cluster_id,
            generation=identity.generation,
            mark=numbers.get(self._seen.broker_id, 0),
        )
        try:
            await self._round()
        except OSError as error:
            _logger.warning("cluster_not_remembered", error=str(error))  # a full disk: its records can still be read

    async def _identity(self, witnesses: list[Seen]) -> Identity:
        entry = await self._metadata.peek(keys.IDENTITY)
        if entry is None:
            for seen in witnesses:
                raise self._metadata.history.declare(evidence(seen, None, 0, {}) or "")
            made = Identity(cluster_id=secrets.token_hex(8))
            compare = Compare(keys.IDENTITY, NO_REVISION)
            await self._metadata.txn(compares=[compare], puts=[Put(keys.IDENTITY, METADATA.encode(made))])
            entry = await self._metadata.get(keys.IDENTITY)
            assert entry is not None
        return METADATA.decode(entry.value, Identity, entry.key)

    async def verify(self) -> None:
        """Check that the store has the generation that was joined, and the newest mark of this broker.

        Raises:
            MetadataWentBack: it does not.
        """
        history = self._metadata.history
        while self._seen.cluster_id:  # empty before `join`
            if history.went_back is not None:
                raise history.went_back
            accepted = history.accepted
            found = await self._missing()
            if history.accepted == accepted:
                if found is not None:
                    raise history.declare(found)
                return
            # The cluster was recovered meanwhile: compare with what is known since.

    async def _missing(self) -> str | None:
        """Return the evidence that the store has lost something; None: there is no evidence."""
        known = self._seen  # before the store is asked: a newer mark may be written meanwhile
        entry = await self._metadata.peek(keys.IDENTITY)
        identity = METADATA.decode(entry.value, Identity, entry.key) if entry is not None else None
        if identity is None or identity.generation != known.generation:
            found = identity.generation if identity is not None else "none"
            return f"its generation is {found}, not {known.generation}"
        entry = await self._metadata.peek(self._key)
        number = METADATA.decode(entry.value, Mark, entry.key).number if entry is not None else 0
        return f"it has lost mark {known.mark} of broker {known.broker_id}" if number < known.mark else None

    async def run(self) -> None:
        """Remember changes while the broker runs; when the store went back, wait for the recovery."""
        while True:
            began = time.monotonic()
            try:
                if self._metadata.history.went_back is not None:
                    await self.wait_recovered()
                await self._round()
            except (SulinaError, OSError) as error:
                _logger.warning("cluster_not_remembered", error=str(error))
                began = time.monotonic()  # the time that it took to fail does not count
            await self._pause(SHARE_MAX * (time.monotonic() - began))

    async def ensure(self, key: str, value: str) -> None:
        """Wait until an entry is on disk with this value. Callers that wait at the same time share one round.

        Raises:
            OSError: it could not be written to the disk.
        """
        if self._kept.get(key) != value:
            async with self._turn:
                if self._kept.get(key) != value:
                    await self._remember()
            self._change.set()  # it is copied to the archive soon

    async def close(self) -> None:
        """Remember the last state: above all which partitions were given back."""
        if self._metadata.history.went_back is None and self._seen.cluster_id:
            await self._round()

    async def _pause(self, least_seconds: float) -> None:
        await asyncio.sleep(max(SOON_SECONDS, min(least_seconds, MARK_SECONDS)))
        await wait_or_timeout(self._change, MARK_SECONDS)
        self._change.clear()

    async def wait_recovered(self) -> None:
        """Wait until the cluster was recovered, and accept the recovered store."""
        await asyncio.to_thread(self._keep_for_recovery)
        while True:
            entry = await self._metadata.peek(keys.IDENTITY)
            if entry is not None:
                identity = METADATA.decode(entry.value, Identity, entry.key)
                is_ours = identity.cluster_id == self._seen.cluster_id
                if is_ours and identity.generation > self._seen.generation:
                    break
            await asyncio.sleep(POLL_SECONDS)
        mine = await self._metadata.peek(self._key)
        self._mark_revision = mine.revision if mine is not None else NO_REVISION
        number = METADATA.decode(mine.value, Mark, mine.key).number if mine is not None else 0
        self._seen = replace(self._seen, generation=identity.generation, mark=number, revision=0)
        self._metadata.history.accept()
        self._events.emit("cluster_recovered", cluster_id=identity.cluster_id, generation=identity.generation)

    async def _round(self) -> None:
        async with self._turn:
            try:
                await self.verify()
                await self._write_mark()
            except MetadataFailed:
                # The store may come back without what it has now.
                with contextlib.suppress(OSError):
                    await self._remember()
                raise
            memory = await self._remember()
        if memory is not None and self._archives is not None:
            try:
                await asyncio.to_thread(self._copy, self._archives, memory)
            except ArchiveFailed as error:
                _logger.warning("cluster_memory_not_copied", error=str(error))  # the next round tries again

    async def _remember(self) -> Memory | None:
        """Write the entries to the disk and return them; None: they are not known yet."""
        self._seen = replace(self._seen, revision=max(self._metadata.history.revision, self._mark_revision))
        known = self._entries()
        if known is None:
            await asyncio.to_thread(self._store_seen)
            return None
        return await asyncio.to_thread(self._store, self._seen, known)

    async def _write_mark(self) -> None:
        number = self._seen.mark + 1
        put = Put(self._key, METADATA.encode(Mark(number=number)))
        done = await self._metadata.txn(compares=[Compare(self._key, self._mark_revision)], puts=[put])
        if not done.is_done:
            # An answer was lost, or the store went back, or a newer process has this broker id.
            await self.verify()
            entry = await self._metadata.get(self._key)
            if entry is not None:
                self._mark_revision = entry.revision
                self._seen = replace(self._seen, mark=METADATA.decode(entry.value, Mark, entry.key).number)
            return
        self._mark_revision, self._seen = done.revision, replace(self._seen, mark=number)

    # Disk and archive; these methods block

    def _read_seen(self) -> Seen | None:
        data = read_whole(self._files, os.path.join(self._data, SEEN_FILE))
        try:
            return None if data is None else MEMORY.decode(data, Seen, os.path.join(self._data, SEEN_FILE))
        except msgspec.DecodeError as error:
            # The archive has another copy.
            _logger.error("cluster_seen_damaged", error=str(error))
            return None

    def _read_kept(self) -> Mapping[str, str]:
        """Return the entries that this broker remembered before it was restarted."""
        data = read_whole(self._files, os.path.join(self._data, MEMORY_FILE))
        try:
            return {} if data is None else MEMORY.decode(data, Memory, os.path.join(self._data, MEMORY_FILE)).entries
        except msgspec.DecodeError as error:
            _logger.error("cluster_memory_damaged", error=str(error))
            return {}

    def _with_kept(self, known: Mapping[str, bytes]) -> dict[str, str]:
        """Return the known entries, with those that only the memory may have: the shown time, and cursors of partitions
        that are being moved.

        If another broker has a newer cursor, that one has a higher epoch (`core.cluster.recovery.merged`).
        """
        entries = {key: value.decode("utf-8", "replace") for key, value in known.items()}
        kept = {
            key: self._kept[key]
            for name, its_keys in topics_of(self._kept).items()
            if is_same_topic(name, self._kept, known)
            for key in its_keys
            if keys.is_cursor(key) and key.rpartition("/cursor/")[0] in known
        }
        if (shown := self._kept.get(keys.SHOWN_TIME)) is not None:
            kept[keys.SHOWN_TIME] = shown
        return kept | entries

    def _store(self, seen: Seen, known: Mapping[str, bytes]) -> Memory:
        memory = Memory(seen=seen, entries=self._with_kept(known))
        if memory.entries != self._kept:
            write_whole(self._files, os.path.join(self._data, MEMORY_FILE), MEMORY.encode(memory))
            self._kept = memory.entries
        self._store_seen()
        return memory

    def _copy(self, archives: Archives, memory: Memory) -> None:
        now = time.monotonic()
        lasting = {
            key: text for key, text in memory.entries.items() if not keys.is_cursor(key)
        }  # cursors need not be copied at once
        if now - self._copied_at >= ARCHIVE_SECONDS or lasting != self._copied:
            archives.remember(memory)
            self._copied_at, self._copied = now, lasting

    def _keep_for_recovery(self) -> None:
        """Store the newest entries where a recovery finds them.

        An error of the disk or the archive must not stop this broker.
        """
        revision = max(self._metadata.history.revision, self._mark_revision)
        seen = replace(self._seen, revision=revision)
        memory = Memory(seen=seen, entries=self._with_kept(self._at_end) if self._at_end else dict(self._kept))
        try:  # the disk first: the archive may be unreachable
            write_whole(self._files, os.path.join(self._data, MEMORY_FILE), MEMORY.encode(memory))
            self._kept = memory.entries
            if self._archives is not None:
                self._archives.remember(memory)
        except (ArchiveFailed, OSError) as error:
            _logger.warning("cluster_memory_not_copied", error=str(error))
        else:
            _logger.info("cluster_memory_copied", entries=len(memory.entries))

    def _store_seen(self) -> None:
        write_whole(self._files, os.path.join(self._data, SEEN_FILE), MEMORY.encode(self._seen))

"""Faults of what brokers trust: metadata, archive and disks that go back, clocks that are off, disks that are full.

Each fault is over when its method returns: what it took away was brought back or given up as an operator would, and
every partition is served again. The histories of the applications are told which ranges were given up, and for which
partitions, and how long, a fault justifies that they are closed.
"""

import asyncio
import contextlib
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx

from sulina.core.cluster import keys
from sulina.types import PartitionName, TopicName
from sulina.wire.messages import TopicState
from tests.support.cluster_clients import CLOSED, Application
from tests.support.cluster_world import BrokerProcess, World, until
from tests.support.etcd import EtcdServer
from tests.support.nemesis import Fault, Nemesis
from tests.support.skewed_clock import SkewedClock

DAY = 24 * 3600
COPIES_MAX = 3  # of etcd
FULL_BYTES = 24 << 10  # of a file, on a disk that is full: less than a segment has
LOG_BYTES_MAX = FULL_BYTES // 4  # of a broker's log then, which must go on
REOPEN_SECONDS_MAX = 60.0
JUST_STARTED_SECONDS = 20.0  # since a kill: the broker may not have read its cursors again when the store is lost
CURSORS_SECONDS_MAX = 7.0  # between two rounds in which a broker remembers its cursors, and the time that one takes


@dataclass(frozen=True, slots=True)
class Closed:
    """A partition that a broker does not serve because something is missing."""

    topic: str
    partition: int
    broker: str
    code: str
    reason: str

    @property
    def missing(self) -> tuple[int, int]:
        """The range that the reason names; empty where no record is known to be missing."""
        found = re.search(r"records \[(\d+), (\d+)\) are missing", self.reason)
        end = re.search(r"ends at offset (\d+)", self.reason)
        if found:
            return int(found[1]), int(found[2])
        assert end is not None, self.reason
        return int(end[1]), int(end[1])


@dataclass(slots=True)
class TrustFaults:
    """Methods that a nemesis draws from, and what came of them."""

    world: World
    applications: Mapping[str, Application]  # by topic
    nemesis: Nemesis
    clocks: Mapping[str, SkewedClock]  # by broker
    folder: Path  # where copies are kept
    closed: Counter[str] = field(default_factory=Counter)  # by fault, code and remedy
    given_up_records: int = 0
    _copies: list[Path] = field(default_factory=list)

    @property
    def kinds(self) -> list[Fault]:
        """Return all of them."""
        return [
            self.restore_etcd,
            self.empty_etcd,
            self.lose_archive,
            self.bring_older_disk,
            self.move_clock,
            self.fill_disk,
            self.nemesis.cut_etcd_past_lease,
        ]

    # etcd

    async def restore_etcd(self) -> None:
        """Bring it back as it was before, a moment ago or several recoveries ago."""
        async with self.nemesis.down:
            etcd, rng = self._etcd, self.nemesis.rng
            if not self._copies or rng.random() < 0.5:
                copy = self.folder / f"etcd-{time.monotonic_ns()}"
                await asyncio.to_thread(etcd.save, copy)
                self._copies.append(copy)
                await self._wait_changed()
            await self._go_back(rng.choice(self._copies))
            while len(self._copies) > COPIES_MAX:
                self._copies.pop(0).unlink()

    async def _wait_changed(self) -> None:
        """Wait until the store has changed, and all brokers that ask it twice a second have seen that it has."""

        def revision() -> int:
            return int(self._etcd.status()["header"]["revision"])

        saved = await asyncio.to_thread(revision)

        async def is_changed() -> bool:
            return await asyncio.to_thread(revision) > saved

        await until("the store has changed since it was saved", is_changed)
        await self.nemesis.pause(1.0, 3.0)

    async def empty_etcd(self) -> None:
        """Bring it back with nothing in it."""
        async with self.nemesis.down:
            await self._go_back(None)

    async def _go_back(self, copy: Path | None) -> None:
        world, rng = self.world, self.nemesis.rng
        killed = world.brokers[self.nemesis.victim()] if rng.random() < 0.3 else None
        self.nemesis.tell("etcd goes back to", copy or "nothing", "while down:", killed and killed.broker_id)
        if killed is not None:
            await killed.kill()
        await until("all brokers have gone on since the store went back last", self._all_gone_on)
        before = {broker.broker_id: len(broker.events("cluster_memory_copied")) for broker in world.running}
        await asyncio.to_thread(self._etcd.go_back, copy)

        async def is_noticed() -> bool:
            return all(
                len(broker.events("cluster_memory_copied")) > before[broker.broker_id] for broker in world.running
            )

        await until("all brokers have noticed that etcd went back, and kept what they know", is_noticed)
        await self._check_refused()
        # Acks of the seconds before a kill are lost with the store, and no others, if it was not up again for long.
        ages = [time.monotonic() - broker.killed_at for broker in world.brokers.values()]
        if since_kills := [seconds for seconds in ages if seconds < JUST_STARTED_SECONDS]:
            for application in self.applications.values():
                application.history.restore_cursors(max(since_kills) + CURSORS_SECONDS_MAX)
        await world.recover(*([killed.data] if killed is not None else []))
        await self._give_up_again(killed)

    async def _all_gone_on(self) -> bool:
        """Return whether no broker still waits for the recovery of before: it would not notice that the store went back
        once more."""
        told = {"cluster_memory_copied": False, "cluster_recovered": True, "node_ready": True}
        found = [
            [told[line["event"]] for line in broker.log_lines() if line.get("event") in told]
            for broker in self.world.running
        ]
        return all(each[-1] for each in found if each)

    async def _give_up_again(self, killed: BrokerProcess | None) -> None:
        """Give up what a store of before that asks for again. Nothing of it was acknowledged since."""
        with contextlib.ExitStack() as allowed:
            histories = {topic: application.history for topic, application in self.applications.items()}
            places = {(topic, gone.partition) for topic, history in histories.items() for gone in history.given_up}
            for place in places:
                allowed.enter_context(self._may_close(*place, "log_incomplete"))
            if killed is not None:
                await killed.start()
            for place in sorted(places):
                closed = await self._outcome(*place)
                if closed is not None:
                    before = self.given_up_records
                    await self._give_up(closed, None, "etcd went back")
                    assert self.given_up_records == before, f"{closed} would give up what was acknowledged"
            await self._wait_all_served()

    async def _check_refused(self) -> None:
        """No broker takes a record. What is written all the same is seen in the log: nobody sent it."""
        for topic in self.applications:
            for broker in self.world.running:
                answer = await self.world.http.post(
                    f"{broker.url}/v1/topics{topic}/records",
                    json={"records": [{"value": "never"}]},
                    follow_redirects=False,
                )
                assert answer.status_code >= 300, f"{broker.broker_id} took a record while etcd was older"

    # Archive

    async def lose_archive(self) -> None:
        """Kill an owner, and remove the newest commits of a partition's archive, or all of them."""
        rng, world = self.nemesis.rng, self.world
        async with self.nemesis.down:
            topic = rng.choice(list(self.applications))
            partition = rng.randrange(self.applications[topic].load.partitions)
            owner = world.brokers[await world.owner_of(topic, partition)]
            returns_at_once, takes_all, is_given_up = (rng.random() < 0.5 for _ in range(3))
            drawn = {"returns_at_once": returns_at_once, "takes_all": takes_all, "is_given_up": is_given_up}
            self.nemesis.tell("lose_archive", topic, partition, owner.broker_id, drawn)
            marks = await self._reported(topic, partition)
            with self._may_close(topic, partition, *CLOSED):
                await owner.kill()
                if not await self._is_assigned(topic, partition, owner.broker_id):
                    self.nemesis.counts["lose_archive: it was moved away just then"] += 1
                    await owner.start()
                    return
                self.applications[topic].history.lost_commits.add(partition)
                aside = await asyncio.to_thread(self._remove_commits, topic, partition, takes_all)
                if returns_at_once:
                    await owner.start()
                else:
                    await self._wait_decided(topic, partition, owner.broker_id)
                    if await self._is_recovering(topic, partition):
                        await owner.start()
                closed = await self._outcome(topic, partition)
                if closed is None:
                    self.closed["lose_archive: served, the disk had it"] += 1
                elif is_given_up and closed.code == "log_incomplete":
                    await self._give_up(closed, marks, "lose_archive")
                else:
                    await asyncio.to_thread(_bring_back, aside)
                    self.closed[f"lose_archive: {closed.code}, brought back"] += 1
                if not owner.is_running:
                    await owner.start()
                await self._wait_all_served()

    async def _is_assigned(self, topic: str, partition: int, broker_id: str) -> bool:
        """Return whether a broker has a partition: a new owner would write to the archive while commits go."""
        key = keys.assignment(broker_id, PartitionName(TopicName.parse(topic), partition))
        return key in await asyncio.to_thread(self.world.keys, key)

    def _remove_commits(self, topic: str, partition: int, takes_all: bool) -> list[tuple[Path, Path]]:
        """Move them aside; return where each was and is."""
        name = PartitionName(TopicName.parse(topic), partition).directory
        root = Path(self.world.objects.removeprefix("file://"))
        paths = sorted(root / path for path in self.world.stored("_delta_log/") if f"{name}/" in path)
        numbers = sorted({path.name.split(".")[0] for path in paths if path.name[:1].isdigit()})
        first = "" if takes_all or not numbers else numbers[len(numbers) // 2]
        target = self.folder / f"archive-{time.monotonic_ns()}"
        target.mkdir()
        aside = []
        for number, path in enumerate(paths):
            if path.name.split(".")[0] >= first:  # also what names the newest checkpoint
                aside.append((path, target / f"{number}-{path.name}"))
                path.rename(aside[-1][1])
        return aside

    # Disks

    async def bring_older_disk(self) -> None:
        """Replace a broker's disk by an older copy of it while it is down."""
        rng, world = self.nemesis.rng, self.world
        async with self.nemesis.down:
            broker = world.brokers[self.nemesis.victim()]
            older, newer = (self.folder / f"{name}-{time.monotonic_ns()}" for name in ("older", "newer"))
            await broker.kill()
            await asyncio.to_thread(shutil.copytree, broker.data, older)
            await broker.start()
            await self._wait_all_served()
            await self.nemesis.pause(0.5, 2.0)
            owned = await self._owned_by(broker.broker_id)
            marks = {each: await self._reported(*each) for each in owned}
            is_given_up = rng.random() < 0.4
            self.nemesis.tell("bring_older_disk", broker.broker_id, owned, {"is_given_up": is_given_up})
            with self._may_close_all(*CLOSED):
                await broker.kill()
                broker.data.rename(newer)
                older.rename(broker.data)
                await broker.start()
                found = [await self._outcome(*each) for each in owned]
                self.closed["bring_older_disk: served, nothing was missing"] += sum(each is None for each in found)
                await self._remedy_disk(newer, [each for each in found if each is not None], marks, is_given_up)
                await self._wait_all_served()
            await asyncio.to_thread(shutil.rmtree, newer)

    async def _remedy_disk(
        self, newer: Path, found: list[Closed], marks: Mapping[tuple[str, int], int], is_given_up: bool
    ) -> None:
        back = []
        for closed in found:
            if is_given_up and closed.code == "log_incomplete":
                await self._give_up(closed, marks[closed.topic, closed.partition], "bring_older_disk")
            else:
                back.append(closed)
                self.closed[f"bring_older_disk: {closed.code}, brought back"] += 1
        for broker_id in {closed.broker for closed in back}:
            broker = self.world.brokers[broker_id]
            await broker.kill()
            for closed in back:
                name = PartitionName(TopicName.parse(closed.topic), closed.partition).directory
                if (newer / name).exists():  # the other partitions have gone on with what was there
                    await asyncio.to_thread(shutil.rmtree, broker.data / name, True)
                    await asyncio.to_thread(shutil.copytree, newer / name, broker.data / name)
            await broker.start()

    async def fill_disk(self) -> None:
        """Let no file of a broker grow much, for a while; it must go on by itself afterwards."""
        async with self.nemesis.down:
            broker = self.world.brokers[self.nemesis.victim()]
            await asyncio.to_thread(_shorten_log, broker.log)
            self.nemesis.tell("fill_disk", broker.broker_id)
            broker.set_disk_full(True, FULL_BYTES)
            await self.nemesis.pause(1.0, 4.0)
            places = [(topic, p) for topic, app in self.applications.items() for p in range(app.load.partitions)]
            stopped = [each for each in places if await self._error(*each)]
            self.closed["fill_disk: stopped, reopened by itself"] += len(stopped)
            broker.set_disk_full(False)
            for place in stopped:
                await until(f"{place} takes records again", partial(self._takes_records, *place), REOPEN_SECONDS_MAX)
            await self._wait_all_served()

    async def _error(self, topic: str, partition: int) -> str | None:
        """Return why its owner takes no records of a partition."""
        found = await self.world.ask(f"/v1/topics{topic}/partitions/{partition}")
        return None if found is None else found["error"]

    async def _takes_records(self, topic: str, partition: int) -> bool:
        return await self._error(topic, partition) is None

    # Clocks

    async def move_clock(self) -> None:
        """Let the clock of a broker be days off, ahead or behind, for a while."""
        clock = self.clocks[self.nemesis.rng.choice(sorted(self.clocks))]
        seconds = self.nemesis.rng.choice([-30 * DAY, -2 * DAY, -3600, 3600, 2 * DAY, 30 * DAY])
        self.nemesis.tell("move_clock", seconds)
        clock.move(seconds)
        await self.nemesis.pause(1.0, 4.0)
        clock.move(0)

    # What came of it

    @property
    def _etcd(self) -> EtcdServer:
        assert isinstance(self.world.etcd, EtcdServer)
        return self.world.etcd

    async def _reported(self, topic: str, partition: int) -> int:
        """Wait until all that is acknowledged now is reported; return the number of this moment in the history."""
        history = self.applications[topic].history
        mark, end = history.now(), history.acked_ends.get(partition, 0)
        key = keys.archive_current(PartitionName(TopicName.parse(topic), partition))
        is_archived = self.applications[topic].ack == "archived"

        async def is_reported() -> bool:
            found = (await asyncio.to_thread(self.world.keys, key)).get(key, {})
            return bool(found.get("archived_offset" if is_archived else "end_offset", -1) >= end)

        await until(f"the owner of {topic}/{partition} has reported {end}", is_reported)
        return mark

    async def _owned_by(self, broker_id: str) -> list[tuple[str, int]]:
        owned = []
        for topic in self.applications:
            placement = await self.world.wait_served(topic)
            owned += [(topic, each.partition) for each in placement.partitions if each.broker_id == broker_id]
        return owned

    @contextlib.contextmanager
    def _may_close(self, topic: str, partition: int, *codes: str) -> Iterator[None]:
        allowed = self.applications[topic].history.may_close
        allowed[partition] = set(codes)
        yield
        del allowed[partition]

    @contextlib.contextmanager
    def _may_close_all(self, *codes: str) -> Iterator[None]:
        for application in self.applications.values():
            application.history.may_close.update({p: set(codes) for p in range(application.load.partitions)})
        yield
        for application in self.applications.values():
            application.history.may_close.clear()

    async def _is_recovering(self, topic: str, partition: int) -> bool:
        placed = await self.world.partition(topic, partition)
        return placed is not None and placed.state == TopicState.RECOVERING

    async def _wait_decided(self, topic: str, partition: int, owner: str) -> None:
        """Return when another broker has it, or it waits for the one that is down."""

        async def is_decided() -> bool:
            placed = await self.world.partition(topic, partition)
            is_other = placed is not None and placed.broker_id not in (None, owner)
            return is_other or await self._is_recovering(topic, partition)

        await until(f"it is decided who has {topic}/{partition}", is_decided)

    async def _outcome(self, topic: str, partition: int) -> Closed | None:
        """Return why a partition stays closed; None when it is served."""
        path = f"/v1/topics{topic}/partitions/{partition}"

        async def outcome() -> list[Closed | None]:
            for broker in self.world.running:
                try:
                    answer = await self.world.http.get(broker.url + path, follow_redirects=False)
                except httpx.HTTPError:
                    continue
                if answer.status_code == 200:
                    return [None]
                if answer.status_code >= 400 and answer.json()["code"] in CLOSED:
                    told = answer.json()
                    return [Closed(topic, partition, broker.broker_id, told["code"], told["detail"])]
            return []

        (found,) = await until(f"{topic}/{partition} is served or closed", outcome)
        return found

    async def _give_up(self, closed: Closed, mark: int | None, fault: str) -> None:
        """Give up what is missing as an operator does, and see that exactly that is recorded."""
        start, end = closed.missing
        history = self.applications[closed.topic].history
        self.given_up_records += history.give_up(closed.partition, start, end, unreported_after=mark)
        path = f"/storage/topics{closed.topic}/{closed.partition}/given_up/"
        before = await asyncio.to_thread(self.world.keys, path)
        await self.world.give_up(closed.topic, closed.partition, via=closed.broker)
        after = await asyncio.to_thread(self.world.keys, path)
        told = [(after[key]["start"], after[key]["end"]) for key in after if before.get(key) != after[key]]
        if told != [(start, end)]:
            history.faults.append(f"{closed.reason}: {told} were given up")
        self.closed[f"{fault}: {closed.code}, given up"] += 1

    async def _wait_all_served(self) -> None:
        for topic in self.applications:
            await self.world.wait_served(topic, seconds=REOPEN_SECONDS_MAX)


def _bring_back(aside: list[tuple[Path, Path]]) -> None:
    for was, now in aside:
        assert not was.exists(), f"{was} was written again while the partition was closed"
        now.rename(was)


def _shorten_log(log: Path) -> None:
    """Keep a broker's log apart, and go on with a short one: it is appended to, and must not meet the limit."""
    if log.stat().st_size > LOG_BYTES_MAX:
        with log.open("rb") as now, log.with_suffix(".log.before").open("ab") as before:
            shutil.copyfileobj(now, before)
        os.truncate(log, 0)

"""Every change of a cluster's keys, in the order in which they were made."""

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from sulina.metadata.etcd import EtcdMetadata
from sulina.ports import Change, Put
from tests.support.cluster_world import World

SETTLE_SECONDS_MAX = 20.0
MARKER = "/test-marker"


@dataclass(slots=True)
class Record:
    """What has been seen of it so far."""

    store: EtcdMetadata
    changes: list[Change] = field(default_factory=list)
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    async def settle(self) -> list[Change]:
        """Everything that was changed before this call."""
        mark = secrets.token_bytes(8)
        await self.store.txn(puts=[Put(MARKER, mark)])
        async with asyncio.timeout(SETTLE_SECONDS_MAX):
            while not any(change.value == mark for change in self.changes):
                self._more.clear()
                await self._more.wait()
        return [change for change in self.changes if change.key != MARKER]

    async def of(self, prefix: str) -> list[Change]:
        """The changes of keys that begin so."""
        return [change for change in await self.settle() if change.key.startswith(prefix)]

    async def follow(self, after: int) -> None:
        async for changes in self.store.watch("/", after=after):
            self.changes += changes
            self._more.set()


@contextlib.asynccontextmanager
async def recording(world: World) -> AsyncIterator[Record]:
    """From now on, until the end of the `with`."""
    store = await EtcdMetadata.open(world.etcd.endpoints, prefix=world.prefix)
    try:
        record = Record(store)
        start = (await store.list("/none/")).revision
        following = asyncio.create_task(record.follow(start))
        try:
            yield record
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
    finally:
        await store.close()


def value_of(change: Change) -> Any:
    """As JSON; None for a deletion."""
    return None if change.value is None else json.loads(change.value)

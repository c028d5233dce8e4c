"""Tests when an append is acknowledged."""

import asyncio

import pytest

from sulina.core.log.log_state import Appended
from sulina.errors import ArchiveFailed, LeaseExpired, LogStopped
from sulina.storage.acks import ACK_SECONDS_MAX, Acks, always
from sulina.testing.clock import VirtualClock
from sulina.types import Offset, Version


def appended(version: int) -> Appended:
    return Appended(Offset(version), Offset(version + 1), Version(version))


def asked() -> asyncio.Future[Appended]:
    return asyncio.get_running_loop().create_future()


async def test_appends_are_answered_as_the_archive_reaches_their_versions() -> None:
    acks = Acks("a", always, VirtualClock(), waits=True)
    acks.archived(Version(2))
    futures = {version: asked() for version in (5, 1, 3, 4)}
    for version, future in futures.items():
        acks.answer(future, appended(version))
    assert [version for version, future in futures.items() if future.done()] == [1], "a repeat of what is archived"
    acks.archived(Version(4))
    assert sorted(version for version, future in futures.items() if future.done()) == [1, 3, 4]
    assert futures[3].result() == appended(3)
    acks.waits = False
    at_once = asked()
    acks.answer(at_once, appended(9))
    assert at_once.done()
    assert len(acks) == 1
    acks.archived(Version(5))


async def test_u14_whether_it_may_answer_is_asked_at_the_last_moment() -> None:
    is_leased = True
    acks = Acks("a", lambda: is_leased, VirtualClock(), waits=True)
    future = asked()
    acks.answer(future, appended(1))
    is_leased = False
    acks.archived(Version(1))
    with pytest.raises(LeaseExpired):
        await future


async def test_u14_after_a_newer_owner_is_known_nothing_more_is_answered() -> None:
    acks = Acks("a", always, VirtualClock(), waits=True)
    before, cancelled, after = asked(), asked(), asked()
    acks.answer(before, appended(1))
    acks.answer(cancelled, appended(1))
    cancelled.cancel()
    acks.fail(lambda: LogStopped(path="p", cause=OSError("fenced")))
    acks.answer(after, appended(2))  # it was being written when that happened
    for future in (before, after):
        with pytest.raises(LogStopped):
            await future


async def test_only_those_who_have_waited_long_are_told_that_the_archive_fails() -> None:
    clock = VirtualClock()
    acks = Acks("a", always, clock, waits=True)
    early, late = asked(), asked()
    acks.answer(early, appended(1))
    clock.advance(ACK_SECONDS_MAX - 1)
    acks.answer(late, appended(2))
    acks.fail_late("p", OSError("away"))
    assert not early.done()
    clock.advance(1)
    acks.fail_late("p", ArchiveFailed(path="q", cause=OSError("away")))
    assert not late.done()
    with pytest.raises(ArchiveFailed, match="away"):
        await early
    acks.archived(Version(2))
    assert late.result() == appended(2)

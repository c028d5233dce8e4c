"""L3: of several writers at one version exactly one wins, whoever and wherever they are; and no version is left out."""

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from obstore.store import LocalStore, MemoryStore

from sulina.clock import SystemClock
from sulina.core.log.commit import Claim, commit_name, commit_version
from sulina.core.log.retention import Retention, expired
from sulina.errors import Conflict, VersionConflict
from sulina.ports import CommitStore
from sulina.storage.commit_log import CommitLog
from sulina.storage.commit_store import DirectoryCommits, ObjectCommits
from sulina.storage.directory_log import COMMITS_DIRECTORY
from sulina.storage.files import OsFiles
from sulina.types import Epoch
from tests.support.children import TIMEOUT_SECONDS, Report, append, check, check_recovery, end, opened, start_child
from tests.support.s3 import S3Server, s3

__all__ = ["s3"]  # a fixture

PROCESSES = 4
PROCESS_VERSIONS = 2000
THREADS = 8
THREAD_VERSIONS = 60


def commit_log(store: CommitStore, writer: str = "test") -> CommitLog:
    log = CommitLog(store, clock=SystemClock(), writer=writer)
    log.load()
    return log


def check_log(store: CommitStore, won: list[list[int]], last: int) -> None:
    """Every version up to the last has one winner, as the winners say, and the log as a whole is accepted."""
    all_won = sorted(version for versions in won for version in versions)
    assert all_won == list(range(1, last + 1)), "a version has no winner, or two"
    commits = [version for name in store.list() if (version := commit_version(name)) is not None]
    assert commits == list(range(last + 1))
    assert commit_log(store).state.version == last


def test_l3_four_processes_race_for_two_thousand_versions_and_each_has_one_winner(tmp_path: Path) -> None:
    """L4 too: who follows the log meanwhile never sees a commit that is empty or torn."""
    location = str(tmp_path / COMMITS_DIRECTORY)
    OsFiles().make_directory(location)
    store = DirectoryCommits(OsFiles(), location)
    commit_log(store).commit([Claim(epoch=Epoch(0), broker_id="first")], epoch=Epoch(0))
    follower = commit_log(store)
    processes = [start_child("race", tmp_path, versions=PROCESS_VERSIONS) for _ in range(PROCESSES)]
    try:
        for process in processes:
            assert told(process) == ["ready"]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        while any(process.poll() is None for process in processes):
            follower.refresh()
        reports = [told(process) for process in processes]
        assert [process.wait(TIMEOUT_SECONDS) for process in processes] == [0] * PROCESSES
    finally:
        for process in processes:
            end(process)
    check_log(store, [won for _, won, _ in reports], PROCESS_VERSIONS)
    assert sum(conflicts for _, _, conflicts in reports) > 0, "there was no race"
    follower.refresh()
    assert follower.state == commit_log(store).state


def told(process: "subprocess.Popen[str]") -> list[Any]:
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    event: list[Any] = json.loads(line)
    return event


def race(make_store: Callable[[], CommitStore], *, together: int = THREAD_VERSIONS) -> list[list[int]]:
    """Threads go for the same versions; up to `together` all begin at once. What each of them won."""
    commit_log(make_store()).commit([Claim(epoch=Epoch(0), broker_id="first")], epoch=Epoch(0))
    start = threading.Barrier(THREADS, timeout=TIMEOUT_SECONDS)

    def run(number: int) -> list[int]:
        log = commit_log(make_store(), f"thread-{number}")
        won: list[int] = []
        while (version := log.state.version + 1) <= THREAD_VERSIONS:
            if version <= together:
                start.wait()
            try:
                won.append(log.commit([], epoch=Epoch(0)).version)
            except VersionConflict:
                assert log.state.version >= version, "who lost does not know the winner's commit, and cannot retry"
        return won

    def run_or_abort(number: int) -> list[int]:
        try:
            return run(number)
        except BaseException:
            start.abort()  # the others need not wait for us
            raise

    with ThreadPoolExecutor(max_workers=THREADS) as threads:
        return list(threads.map(run_or_abort, range(THREADS), timeout=TIMEOUT_SECONDS * 3))


def test_l3_threads_race_on_memory_and_each_version_has_one_winner() -> None:
    store = ObjectCommits(MemoryStore(), "log")
    check_log(store, race(lambda: store), THREAD_VERSIONS)


def test_l3_threads_race_on_a_folder_and_each_version_has_one_winner(tmp_path: Path) -> None:
    def make() -> ObjectCommits:
        return ObjectCommits(LocalStore(tmp_path), "log")

    check_log(make(), race(make), THREAD_VERSIONS)


def test_l3_threads_race_in_a_directory_and_each_version_has_one_winner(tmp_path: Path) -> None:
    def make() -> DirectoryCommits:
        return DirectoryCommits(OsFiles(), str(tmp_path))

    check_log(make(), race(make), THREAD_VERSIONS)


def test_l3_threads_race_on_a_real_s3_server_and_each_version_has_one_winner(s3: S3Server) -> None:
    prefix = f"race-{uuid4().hex}"

    def make() -> ObjectCommits:
        return ObjectCommits(s3.store(), prefix)

    check_log(make(), race(make, together=2), THREAD_VERSIONS)  # SeaweedFS takes seconds where all meet


def test_l3_who_slept_while_its_version_was_taken_and_cleaned_up_does_not_win_it() -> None:
    """L2, L12: the version is long gone from the store, but it was there; a fenced owner must not be acknowledged."""
    store = ObjectCommits(MemoryStore(), "log")
    owner = commit_log(store, "owner")
    owner.commit([Claim(epoch=Epoch(0), broker_id="sleeper")], epoch=Epoch(0))
    sleeper = commit_log(store, "sleeper")
    owner.commit([Claim(epoch=Epoch(1), broker_id="owner")], epoch=Epoch(1))
    for _ in range(60):
        if owner.commit([], epoch=Epoch(1)).checkpoint_hint:
            owner.write_checkpoint(owner.take_checkpoint())
            owner.clean_up(owner.state.version)
    assert owner.oldest_version() > sleeper.state.version + 1
    with pytest.raises(Conflict):
        sleeper.commit([], epoch=Epoch(0))
    commits = [version for name in store.list() if (version := commit_version(name)) is not None]
    assert commits == list(range(commits[0], owner.state.version + 1))


def test_l3_a_retention_that_lost_to_another_one_can_be_tried_again(tmp_path: Path) -> None:
    """L6, L15: what the winner has removed is not removed twice: such a commit would damage the log for good."""
    report = Report()
    with opened(tmp_path / "log") as log:
        for number in range(30):
            append(log, report, (number,))
        rival = commit_log(DirectoryCommits(OsFiles(), str(tmp_path / "log" / COMMITS_DIRECTORY)), "rival")
        retention = Retention(bytes_max=4000)
        rival.commit(expired(rival.state.segments, retention, 0.0), epoch=rival.state.epoch)
        with pytest.raises(VersionConflict):
            log.retain(retention)
        assert log.retain(retention) == []
        assert log.view.start_offset == rival.state.start_offset
        report.start_offset = log.view.start_offset
        append(log, report, (30,))
        check(log, report)
    check_recovery(tmp_path / "log", report)


@contextmanager
def unreliable_gateway(endpoint: str, lose: Callable[[str, str], bool]) -> Iterator[str]:
    """A gateway to a server. Of the requests that `lose` picks, the server's reply is lost: 503 comes instead."""
    address = urlsplit(endpoint).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            upstream = HTTPConnection(address, timeout=TIMEOUT_SECONDS)
            try:
                upstream.request(self.command, self.path, body, dict(self.headers.items()))
                reply = upstream.getresponse()
                data, status, headers = reply.read(), reply.status, reply.getheaders()
            finally:
                upstream.close()
            if lose(self.command, self.path):
                data, status, headers = b"", 503, []
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_DELETE = do_HEAD = _forward  # noqa: N815 - the names of the base class

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        host, port = server.socket.getsockname()[:2]
        yield f"http://{host}:{port}"
    finally:
        server.shutdown()
        thread.join(TIMEOUT_SECONDS)
        server.server_close()


def test_l3_who_wins_a_version_but_never_hears_of_it_finds_its_own_commit_and_has_won(s3: S3Server) -> None:
    prefix = f"lost-{uuid4().hex}"
    lost: list[str] = []

    def lose_first(method: str, path: str) -> bool:
        is_lost = method == "PUT" and path not in lost
        if is_lost:
            lost.append(path)
        return is_lost

    with unreliable_gateway(s3.endpoint, lose_first) as endpoint:
        log = commit_log(ObjectCommits(s3.store(endpoint), prefix))
        log.commit([Claim(epoch=Epoch(0), broker_id="first")], epoch=Epoch(0))
        for version in range(1, 4):
            assert log.commit([], epoch=Epoch(0)).version == version
    assert [path.rpartition("/")[2] for path in lost] == [commit_name(version) for version in range(4)]
    direct = commit_log(ObjectCommits(s3.store(), prefix))
    assert direct.state == log.state


def test_l3_who_loses_a_version_and_the_reply_too_is_told_of_the_conflict(s3: S3Server) -> None:
    prefix = f"lost-{uuid4().hex}"
    winner = commit_log(ObjectCommits(s3.store(), prefix))
    winner.commit([Claim(epoch=Epoch(0), broker_id="first")], epoch=Epoch(0))
    lost: list[str] = []

    def lose_first(method: str, path: str) -> bool:
        is_lost = method == "PUT" and not lost
        if is_lost:
            lost.append(path)
        return is_lost

    with unreliable_gateway(s3.endpoint, lose_first) as endpoint:
        loser = commit_log(ObjectCommits(s3.store(endpoint), prefix))
        winner.commit([], epoch=Epoch(0))
        with pytest.raises(VersionConflict) as conflict:
            loser.commit([], epoch=Epoch(0))
        assert (conflict.value.expected, conflict.value.current) == (0, 1)
        assert loser.commit([], epoch=Epoch(0)).version == 2
    assert lost, "no reply was lost"
    assert winner.state.version == 1

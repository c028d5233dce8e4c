"""What `sulina cluster start` needs of a machine, and what it makes of what it sees."""

import fcntl
import os
import socket
import sys
from pathlib import Path

import msgspec
import pytest

from sulina.cli.cluster import local
from sulina.cli.cluster.chronicle import EVENTS_MAX, Chronicle
from sulina.errors import InvalidSettings, NotServing
from sulina.wire.messages import BrokerInfo
from tests.cli.conftest import ended
from tests.cli.fake_cluster import a_broker, a_cluster, an_unload


def test_etcd_is_the_one_that_was_named_then_that_of_the_path_then_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("named", "path", "own"):
        program = tmp_path / folder / "etcd"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "own" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("SULINA_ETCD", str(tmp_path / "named" / "etcd"))
    assert local.find_etcd() == str(tmp_path / "named" / "etcd")
    monkeypatch.delenv("SULINA_ETCD")
    assert local.find_etcd() == str(tmp_path / "path" / "etcd")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert local.find_etcd() == str(tmp_path / "own" / "etcd")


def test_a_program_that_is_not_etcd_is_said(tmp_path: Path) -> None:
    done = ended("cluster", "start", "--data", str(tmp_path / "c"), "--port", "0", SULINA_ETCD="/no/such/program")
    assert done.code == 1
    assert "SULINA_ETCD=/no/such/program is not an executable file" in done.err
    assert done.err.count("\n") == 1


def test_no_etcd_anywhere_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SULINA_ETCD", raising=False)
    with pytest.raises(InvalidSettings) as caught:
        local.find_etcd()
    [hint] = caught.value.__notes__
    assert all(words in hint for words in ("etcd-server", "make etcd", "SULINA_ETCD"))


def test_a_directory_has_one_cluster(tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.write(lock, b"process 12, etcd 34")
    done = ended("cluster", "start", "--data", str(tmp_path), "--port", "0")
    os.close(lock)
    assert done.code == 1
    assert "runs there already (process 12, etcd 34)" in done.err
    assert done.err.count("\n") == 1


def test_a_port_that_is_taken_is_said_and_the_next_ones_are_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidSettings, match="in use"):
            local.broker_ports(port, 3)
    [first] = local.free_ports(1)
    ports = local.broker_ports(first, 3)
    assert ports[0] == first
    assert len(set(ports)) == 3


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = ended("cluster", "start", "--data", str(tmp_path / "file" / "x"), "--port", "0", "--json")
    assert (done.code, done.error["code"]) == (1, "invalid_settings")


# What happens, in words


def test_a_chronicle_tells_what_has_changed() -> None:
    chronicle = Chronicle()
    one, two = a_broker("b1"), a_broker("b2")
    assert chronicle.see(a_cluster(one), 0.0) == []
    assert chronicle.see(a_cluster(one, two), 1.0) == ["b2 has joined"]
    assert chronicle.see(a_cluster(one, two), 1.5) == []
    away = a_broker("b1", state="unreachable")
    told = chronicle.see(a_cluster(away, two, leader="b2", unassigned=3, recovering=1), 4.0)
    assert told[:3] == ["b1 is unreachable", "b2 leads", "3 partitions without an owner"]
    assert "1 partition recovering" in told[3]
    told = chronicle.see(a_cluster(one, two, leader=None), 6.5)
    assert told == ["b1 is active", "there is no leader", "every partition has an owner, after 2.5 s"]
    assert chronicle.see(a_cluster(two, leader=None), 7.0) == ["b1 has left"]


def test_a_chronicle_tells_of_moves_and_their_errors() -> None:
    chronicle = Chronicle()
    chronicle.see(a_cluster(), 0.0)
    assert chronicle.see(a_cluster(unloads=[an_unload("requested")]), 1.0) == ["/default/orders/0 leaves b1 for b2"]
    failing = an_unload("requested", error="no archive")
    assert chronicle.see(a_cluster(unloads=[failing]), 2.0) == ["/default/orders/0: no archive"]
    assert chronicle.see(a_cluster(unloads=[failing]), 3.0) == []
    assert chronicle.see(a_cluster(), 4.0) == ["/default/orders/0 has left b1"]
    for number in range(100):
        chronicle.note(str(number), 5.0)
    assert len(chronicle.events) == EVENTS_MAX


@pytest.mark.parametrize("late", [[], [a_broker("b2", state="unreachable")]], ids=["not heard of", "of a former run"])
async def test_a_broker_is_asked_until_it_knows_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: list[BrokerInfo]
) -> None:
    answers = [a_cluster(a_broker("b1"), *late), a_cluster(a_broker("b1"), a_broker("b2"))]
    monkeypatch.setattr(local, "fetched", lambda _url, _seconds: msgspec.json.encode(answers.pop(0)))
    await local.BrokerChild("b1", str(tmp_path), lock=-1, port=0).wait_known({"b1", "b2"})
    assert answers == []


async def test_a_broker_that_never_hears_of_another_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "KNOWN_SECONDS_MAX", 0.01)
    monkeypatch.setattr(local, "fetched", lambda _url, _seconds: msgspec.json.encode(a_cluster(a_broker("b1"))))
    with pytest.raises(NotServing, match="broker b1 does not hear of b2"):
        await local.BrokerChild("b1", str(tmp_path), lock=-1, port=0).wait_known({"b1", "b2"})

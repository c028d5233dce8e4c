"""A cluster of real processes: etcd, an object store, brokers, and the networks between them, which can be broken.

Every wait has a deadline, and says what it waited for. When a test fails, `World.report` shows the keys of the cluster
and the ends of the brokers' logs; tests/cluster/conftest.py has it shown.
"""

import asyncio
import base64
import contextlib
import json
import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
from obstore.store import LocalStore, S3Store

import sulina
from sulina.client import Client, ClientOptions
from sulina.failpoints import FAILPOINTS
from sulina.wire.messages import ClusterInfo, PartitionPlacement, Placement, TopicState, UnloadInfo
from tests.support import serving
from tests.support.etcd import EtcdCluster, EtcdServer
from tests.support.fault_proxy import FaultProxy, HttpFaultProxy
from tests.support.peer_proxy import PeerProxy
from tests.support.s3 import BUCKET, S3Server

T = TypeVar("T")

LEASE_SECONDS = 2.0
WAIT_SECONDS_MAX = 40.0
POLL_SECONDS = 0.02
HTTP_SECONDS_MAX = 15.0
LOG_LINES_SHOWN = 40
COMMAND_SECONDS_MAX = 60.0
FULL_BYTES = 512 << 10  # of one file, while the disk is full: more than a log file and commits have
THERE = ("active", "draining")
S3_ENVIRONMENT = {
    "AWS_SKIP_SIGNATURE": "true",
    "AWS_ALLOW_HTTP": "true",
    "AWS_REGION": "us-east-1",
}


class BrokerProcess:
    """`sulina serve` as a broker, on one port and one directory, over many lives."""

    def __init__(
        self,
        broker_id: str,
        folder: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        serves_as: str | None = None,
    ) -> None:
        """`serves_as` is the id that the process has instead of `broker_id`."""
        self._reserved = [_reserved()]
        self.broker_id = broker_id
        self.address = f"127.0.0.1:{self._reserved[0].getsockname()[1]}"
        self.data = folder / broker_id
        self.is_paused = False
        self.killed_at = float("-inf")  # by the monotonic clock
        self.is_forked = True  # False: it is a process from its start, so that libraries can be preloaded
        self.etcd_proxy: FaultProxy | None = None
        self.store_proxy: HttpFaultProxy | None = None
        self.peer_proxy: PeerProxy | None = None
        self._arguments = [*arguments, "--broker-id", serves_as or broker_id]
        self._environment = dict(environment or {})
        self._serving: serving.Serving | None = None

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def is_running(self) -> bool:
        """Whether there is a process that can answer."""
        return self._serving is not None and self._serving.process.poll() is None and not self.is_paused

    def proxy_peers(self) -> None:
        """Before it is started: other brokers reach it through a proxy."""
        self._reserved.append(_reserved())
        port = self._reserved[-1].getsockname()[1]
        self.peer_proxy = PeerProxy(f"127.0.0.1:{port}")
        self._arguments += ["--peer-port", str(port), "--peer-advertise", self.peer_proxy.address]

    async def start(self, *, kill_at: str | None = None) -> None:
        """Return when it serves. `kill_at` names the step at which the process kills itself."""
        assert self._serving is None, f"{self.broker_id} runs"
        environment = self._environment | ({FAILPOINTS: kill_at} if kill_at else {})
        self._serving = await asyncio.to_thread(
            serving.start,
            self.data,
            environment=environment,
            http=self.address,
            arguments=self._arguments,
            is_forked=self.is_forked,
        )

    async def start_as_today(self) -> None:
        """With the code of this tree, where it had that of a release before."""
        self._environment.pop("PYTHONPATH", None)
        self.is_forked = True
        await self.start()

    async def start_killed(self, kill_at: str) -> None:
        """It reaches the step while it starts, or at once afterwards."""
        try:
            await self.start(kill_at=kill_at)
        except AssertionError as failure:
            assert "did not start" in str(failure)  # noqa: PT017
        else:
            await self.wait_killed()

    async def kill(self) -> None:
        """SIGKILL."""
        assert self._serving is not None
        assert self._serving.process.poll() is None, f"{self.broker_id} ended by itself:\n{self.last_words()}"
        self.killed_at = time.monotonic()
        self._serving.process.kill()
        await self._gone()

    async def stop(self) -> int:
        """SIGTERM; its exit code."""
        assert self._serving is not None
        self._serving.process.terminate()
        return await self._gone()

    async def wait_killed(self, seconds: float = WAIT_SECONDS_MAX) -> None:
        """Return when it has killed itself."""
        assert self._serving is not None
        process = self._serving.process
        await until(f"{self.broker_id} kills itself", lambda: _now(process.poll() is not None), seconds)
        code = await self._gone()
        assert code == -signal.SIGKILL, f"{self.broker_id} ended with {code}:\n{self.last_words()}"

    def pause(self) -> None:
        """SIGSTOP: it does nothing, and does not know it."""
        assert self._serving is not None
        self._serving.process.send_signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """SIGCONT."""
        assert self._serving is not None
        self._serving.process.send_signal(signal.SIGCONT)
        self.is_paused = False

    def set_disk_full(self, is_full: bool, limit_bytes: int = FULL_BYTES) -> None:
        """No file of the process may grow beyond the limit, so writes to disk and archive fail; or they may again."""
        assert self._serving is not None
        _, hard = resource.prlimit(self._serving.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self._serving.pid, resource.RLIMIT_FSIZE, (limit_bytes if is_full else hard, hard))

    async def _gone(self) -> int:
        served, self._serving = self._serving, None
        assert served is not None
        await asyncio.to_thread(serving.end, served.process, serving.STOP_SECONDS)
        return served.process.wait()

    async def close_process(self) -> None:
        """Whatever has happened, there is no process."""
        if self._serving is not None:
            self._serving.process.kill()
            await self._gone()

    async def close(self) -> None:
        """Nothing is left of it."""
        await self.close_process()
        for proxy in (self.etcd_proxy, self.store_proxy, self.peer_proxy):
            if proxy is not None:
                await asyncio.to_thread(proxy.close)
        for reserved in self._reserved:
            reserved.close()

    @property
    def log(self) -> Path:
        return self.data.parent / f"{self.broker_id}.log"

    def log_lines(self) -> list[dict[str, Any]]:
        """Everything it said, over all its lives, that is JSON; the last line may not be whole yet."""
        lines = self.log.read_text(errors="replace").splitlines(keepends=True) if self.log.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def events(self, name: str) -> list[dict[str, Any]]:
        """The lines of its log about one kind of event."""
        return [line for line in self.log_lines() if line.get("event") == name]

    def last_words(self) -> str:
        """The end of its log."""
        return (
            "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]) if self.log.exists() else ""
        )


@dataclass(slots=True)
class World:
    """The cluster, as a test sees it: by HTTP through whoever answers, and by looking into etcd."""

    folder: Path
    etcd: EtcdServer | EtcdCluster
    prefix: str  # of all keys
    objects: str
    lease_seconds: float
    s3: S3Server | None
    is_proxied: bool
    is_peer_proxied: bool = False
    arguments: Sequence[str] = ()  # of every broker
    brokers: dict[str, BrokerProcess] = field(default_factory=dict)
    http: httpx.AsyncClient = field(
        default_factory=lambda: httpx.AsyncClient(timeout=HTTP_SECONDS_MAX, follow_redirects=True)
    )
    refusals: dict[str, str] = field(default_factory=dict)  # by partition: why an owner last did not serve it

    # Brokers

    def add(self, broker_id: str, *, serves_as: str | None = None, **environment: str) -> BrokerProcess:
        """One more broker, not started yet."""
        endpoints, endpoint = list(self.etcd.endpoints), self.s3.endpoint if self.s3 else None
        etcd_proxy = store_proxy = None
        if self.is_proxied:
            assert len(endpoints) == 1, "one proxy, one etcd"
            etcd_proxy = FaultProxy(endpoints[0])
            endpoints = [etcd_proxy.address]
            if endpoint is not None:
                store_proxy = HttpFaultProxy(endpoint.removeprefix("http://"))
                endpoint = f"http://{store_proxy.address}"
        arguments = ["--metadata", f"etcd://{','.join(endpoints)}{self.prefix}", "--objects", self.objects]
        arguments += ["--lease-seconds", str(self.lease_seconds), *self.arguments]
        if endpoint is not None:
            arguments += ["--objects-endpoint", endpoint]
            environment = S3_ENVIRONMENT | environment
        broker = BrokerProcess(broker_id, self.folder, arguments, environment, serves_as=serves_as)
        broker.etcd_proxy, broker.store_proxy = etcd_proxy, store_proxy
        if self.is_peer_proxied:
            broker.proxy_peers()
        self.brokers[broker_id] = broker
        return broker

    async def start(self, *broker_ids: str) -> None:
        """Several at once; return when all serve and there is a leader."""
        await asyncio.gather(*((self.brokers.get(each) or self.add(each)).start() for each in broker_ids))
        if broker_ids:
            await self.wait_brokers(*broker_ids)

    async def restore(self, *broker_ids: str) -> None:
        """Start those of them that do not run, let those go on that are paused, and heal their networks."""
        for broker in self.brokers.values():
            if broker.is_paused:
                broker.resume()
            for proxy in (broker.etcd_proxy, broker.store_proxy, broker.peer_proxy):
                if proxy is not None:
                    proxy.heal()
            self.heal_peers(broker.broker_id)
        down = [each for each in broker_ids if each not in self.brokers or not self.brokers[each].is_running]
        await asyncio.gather(*(self.brokers[each].close_process() for each in down if each in self.brokers))
        await asyncio.gather(*((self.brokers.get(each) or self.add(each)).start() for each in down))
        await self.wait_brokers(*broker_ids)

    async def remove(self, broker_id: str) -> None:
        """Stop it, and forget it."""
        broker = self.brokers.pop(broker_id)
        if broker.is_running:
            await broker.stop()
        await broker.close()

    async def close(self) -> None:
        """End everything that was started."""
        await self.http.aclose()
        await asyncio.gather(*(broker.close() for broker in self.brokers.values()))

    @property
    def running(self) -> list[BrokerProcess]:
        return [broker for broker in self.brokers.values() if broker.is_running]

    @property
    def informed(self) -> list[BrokerProcess]:
        """Those who can know how things are: they run, and reach etcd."""
        return [broker for broker in self.running if broker.etcd_proxy is None or broker.etcd_proxy.is_whole]

    def client(
        self, *, name: str = "", timeout_seconds: float = 60.0
    ) -> contextlib.AbstractAsyncContextManager[Client]:
        """One that knows all brokers; `async with` it."""
        urls = ",".join(broker.url for broker in self.brokers.values())
        options = ClientOptions(name=name, timeout_seconds=timeout_seconds, wait_seconds=timeout_seconds)
        return sulina.connect(urls, options=options)

    # Asking

    async def ask(self, path: str, *, via: str | None = None) -> Any:
        """GET from one broker, or from the first that answers; None when nobody does."""
        for broker in [self.brokers[via]] if via else self.informed:
            with contextlib.suppress(httpx.TransportError):
                response = await self.http.get(broker.url + path)
                if response.status_code == 200:
                    return response.json()
        return None

    async def tell(self, path: str, body: Any = None, *, method: str = "POST", via: str | None = None) -> Any:
        """Have a broker do something; it must succeed."""
        broker = self.brokers[via] if via else self.informed[0]
        response = await self.http.request(method, broker.url + path, json=body or {})
        assert response.status_code < 300, f"{method} {path}: {response.status_code} {response.text}"
        return response.json() if response.content else None

    async def cluster(self, *, via: str | None = None) -> ClusterInfo | None:
        """As a broker sees it."""
        found = await self.ask("/v1/cluster", via=via)
        return None if found is None else msgspec.convert(found, ClusterInfo)

    async def placement(self, topic: str, *, via: str | None = None) -> Placement | None:
        """Where its partitions are."""
        found = await self.ask(f"/v1/topics{topic}/placement", via=via)
        return None if found is None else msgspec.convert(found, Placement)

    async def partition(self, topic: str, partition: int = 0, *, via: str | None = None) -> PartitionPlacement | None:
        """Where one of them is."""
        found = await self.placement(topic, via=via)
        return None if found is None else found.partitions[partition]

    async def owner_of(self, topic: str, partition: int = 0) -> str:
        """Who serves it; waits until somebody does."""

        async def owner() -> str | None:
            found = await self.partition(topic, partition)
            return found.broker_id if found and found.state == TopicState.ACTIVE else None

        return await until(f"{topic}/{partition} has an owner", owner)

    async def leader(self) -> str:
        """Who assigns; waits until there is one."""

        async def leader() -> str | None:
            found = await self.cluster()
            return found.leader if found else None

        return await until("there is a leader", leader)

    def other(self, *broker_ids: str) -> str:
        """A running broker that is none of these."""
        return next(each.broker_id for each in self.informed if each.broker_id not in broker_ids)

    # Waiting

    async def wait_brokers(self, *broker_ids: str) -> None:
        """Every broker that runs knows that these are there, and who leads."""

        async def known() -> bool:
            found = [await self.cluster(via=broker.broker_id) for broker in self.informed]
            return all(
                each and each.leader and set(broker_ids) <= {b.broker_id for b in each.brokers if b.state in THERE}
                for each in found
            )

        await until(f"{', '.join(broker_ids)} are there", known)

    async def wait_served(
        self, topic: str, *, by: str | None = None, not_by: str | None = None, seconds: float = WAIT_SECONDS_MAX
    ) -> Placement:
        """Every partition is active, on that broker or on another one; and its owner says so too."""

        async def served() -> Placement | None:
            found = await self.placement(topic)
            if found is None:
                return None
            for each in found.partitions:
                if each.state != TopicState.ACTIVE or each.broker_id is None or each.broker_id == not_by:
                    return None
                if by is not None and each.broker_id != by:
                    return None
                owner = self.brokers[each.broker_id]
                if not owner.is_running or not await self._serves(owner, topic, each.partition):
                    return None
            return found

        where = f" by {by}" if by else f" not by {not_by}" if not_by else ""
        try:
            return await until(f"{topic} is served{where}", served, seconds)
        except AssertionError as late:
            late.add_note(f"what owners last refused: {self.refusals}")
            raise

    async def _serves(self, owner: BrokerProcess, topic: str, partition: int) -> bool:
        try:
            path = f"/v1/topics{topic}/partitions/{partition}"
            response = await self.http.get(owner.url + path, follow_redirects=False)
            if response.status_code != 200:
                self.refusals[f"{topic}/{partition}"] = f"{owner.broker_id}: {response.text}"
            return response.status_code == 200 or "not_reliable" in response.text  # which has no offsets
        except httpx.TransportError:
            return False

    # Doing

    async def create_topic(self, topic: str, partitions: int = 1, *, via: str | None = None, **policy: Any) -> None:
        """Return when it is served."""
        settings = {"partitions": partitions, "policy": policy}
        await self.tell(f"/v1/topics{topic}", settings, method="PUT", via=via)
        await self.wait_served(topic)

    async def unload(
        self, topic: str, *, to: str | None = None, force: bool = True, via: str | None = None
    ) -> list[UnloadInfo]:
        """Ask for it; the answer comes at once."""
        answer = await self.tell(f"/v1/topics{topic}/moves", {"force": force} | ({"to": to} if to else {}), via=via)
        return msgspec.convert(answer["moves"], list[UnloadInfo])

    async def move(self, topic: str, to: str, *, force: bool = True) -> float:
        """All of it; how long it took until it was served there."""
        began = time.monotonic()
        await self.unload(topic, to=to, force=force)
        await self.wait_served(topic, by=to)
        return time.monotonic() - began

    async def drain(self, broker_id: str) -> None:
        """It gives away what it owns; `activate` ends that."""
        await self.tell(f"/v1/cluster/brokers/{broker_id}/drain")

    async def activate(self, broker_id: str) -> None:
        """It may own partitions again."""
        await self.tell(f"/v1/cluster/brokers/{broker_id}/activate")

    async def recover(self, *data: Path) -> str:
        """Run `sulina cluster recover` as an operator does, with the disks of brokers; return what it says."""
        where = ["--metadata", f"{self.etcd.url}{self.prefix}", "--objects", self.objects]
        disks = [word for path in data for word in ("--data", str(path))]
        return await self._command("cluster", "recover", *where, *disks, "--yes")

    async def give_up(self, topic: str, partition: int, via: str) -> str:
        """Run `sulina topic unload --give-up` as an operator does; return what it says."""
        where = ["--partition", str(partition), "--give-up", "--force", "--yes", "--url", self.brokers[via].url]
        return await self._command("topic", "unload", topic, *where)

    async def _command(self, *words: str) -> str:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "sulina.cli", *words],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        said = f"{done.stdout}{done.stderr}"
        assert done.returncode == 0, f"sulina {' '.join(words)} ended with {done.returncode}: {said}"
        return done.stdout

    def cut_peers(self, broker_id: str) -> None:
        """No other broker reaches it, nor it any; clients, etcd and the object store do."""
        for broker in self.brokers.values():
            if broker.peer_proxy is not None:
                if broker.broker_id == broker_id:
                    broker.peer_proxy.cut()
                else:
                    broker.peer_proxy.part(broker_id)

    def heal_peers(self, broker_id: str) -> None:
        """The end of `cut_peers`."""
        for broker in self.brokers.values():
            if broker.peer_proxy is not None:
                if broker.broker_id == broker_id:
                    broker.peer_proxy.heal()
                else:
                    broker.peer_proxy.join(broker_id)

    # Looking inside

    def keys(self, prefix: str = "/") -> dict[str, Any]:
        """What etcd has under a prefix, by its own HTTP gateway: nothing of ours is asked."""
        start = (self.prefix + prefix).encode()
        end = start[:-1] + bytes([start[-1] + 1])
        body = {"key": base64.b64encode(start).decode(), "range_end": base64.b64encode(end).decode()}
        members = self.etcd.members if isinstance(self.etcd, EtcdCluster) else [self.etcd]
        member = next(member for member in members if member.is_running)
        found = member.call("kv/range", body).get("kvs", [])
        return {_text(each["key"]).removeprefix(self.prefix): _value(each.get("value", "")) for each in found}

    def stored(self, part: str = "") -> list[str]:
        """The objects of the archives whose paths have this part."""
        store, prefix = self._store()
        found = [meta["path"] for metas in store.list(prefix) for meta in metas]
        return sorted(path for path in found if part in path)

    def read_object(self, path: str) -> bytes:
        """All of it."""
        return bytes(self._store()[0].get(path).bytes())

    def write_object(self, path: str, data: bytes) -> None:
        """As nobody should."""
        self._store()[0].put(path, data)

    def _store(self) -> tuple[S3Store | LocalStore, str | None]:
        if self.s3 is not None:
            return self.s3.store(), self.objects.split("/", 3)[3]
        return LocalStore(self.objects.removeprefix("file://")), None

    def delete_key(self, key: str) -> None:
        """As nobody should."""
        member = self.etcd.members[0] if isinstance(self.etcd, EtcdCluster) else self.etcd
        member.call("kv/deleterange", {"key": base64.b64encode((self.prefix + key).encode()).decode()})

    def write_key(self, key: str, value: bytes) -> None:
        """As nobody should."""
        member = self.etcd.members[0] if isinstance(self.etcd, EtcdCluster) else self.etcd
        body = {"key": (self.prefix + key).encode(), "value": value}
        member.call("kv/put", {name: base64.b64encode(data).decode() for name, data in body.items()})

    def delete_keys(self, prefix: str) -> None:
        """As nobody should."""
        member = self.etcd.members[0] if isinstance(self.etcd, EtcdCluster) else self.etcd
        first = (self.prefix + prefix).encode()
        body = {"key": first, "range_end": first[:-1] + bytes([first[-1] + 1])}
        member.call("kv/deleterange", {name: base64.b64encode(data).decode() for name, data in body.items()})

    def report(self) -> str:
        """Everything that helps to understand a failure."""
        lines = [f"{partition} was refused by {why}" for partition, why in self.refusals.items()]
        lines.append("keys:")
        try:
            lines += [f"  {key} = {value}" for key, value in self.keys("/cluster/").items()]
            lines += [f"  {key} = {value}" for key, value in self.keys("/storage/").items() if "/objects/" not in key]
        except (OSError, ValueError, StopIteration) as error:
            lines.append(f"  {error}")
        for broker in self.brokers.values():
            state = "running" if broker.is_running else "paused" if broker.is_paused else "not running"
            lines += [f"{broker.broker_id} at {broker.url}, {state}:", broker.last_words()]
        return "\n".join(lines)

    def keep(self) -> None:
        """Copy the brokers' logs and etcd's keys to the folder that SULINA_KEEP names, if it names one."""
        kept = os.environ.get("SULINA_KEEP")
        if not kept:
            return
        target = Path(kept) / self.prefix.strip("/")
        target.mkdir(parents=True, exist_ok=True)
        (target / "report.txt").write_text(self.report())
        with contextlib.suppress(OSError, ValueError, StopIteration):  # no etcd answers; the report says so
            (target / "etcd-keys.json").write_text(json.dumps(self.keys(), indent=2, default=str))
        for broker in self.brokers.values():
            if broker.log.exists():
                shutil.copy(broker.log, target / f"{broker.broker_id}.log")


@contextlib.asynccontextmanager
async def cluster(
    folder: Path,
    etcd: EtcdServer | EtcdCluster,
    *broker_ids: str,
    lease_seconds: float = LEASE_SECONDS,
    s3: S3Server | None = None,
    is_proxied: bool = False,
    is_peer_proxied: bool = False,
    arguments: Sequence[str] = (),
) -> AsyncIterator[World]:
    """A running cluster with these brokers; they end with the `with`. Its keys and objects are apart from others'."""
    name = f"test-{secrets.token_hex(6)}"
    objects = f"s3://{BUCKET}/{name}" if s3 else f"file://{folder / 'objects'}"
    if s3 is None:
        (folder / "objects").mkdir()
    world = World(folder, etcd, f"/{name}", objects, lease_seconds, s3, is_proxied, is_peer_proxied, arguments)
    try:
        await world.start(*broker_ids)
        yield world
    except BaseException:
        world.keep()
        raise
    finally:
        await world.close()


async def until(what: str, ask: Callable[[], Awaitable[T | None]], seconds: float = WAIT_SECONDS_MAX) -> T:
    """What `ask` says, as soon as it is something. There is no event of another process to wait for: ask again."""
    deadline = time.monotonic() + seconds
    while not (found := await ask()):
        assert time.monotonic() < deadline, f"in {seconds} s it never was so that {what}"
        await asyncio.sleep(POLL_SECONDS)
    return found


def _reserved() -> socket.socket:
    """A port for all lives, not listened on: nobody else can be given it while the broker is down."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


async def _now(answer: T) -> T:
    return answer


def _text(data: str) -> str:
    return base64.b64decode(data).decode()


def _value(data: str) -> Any:
    try:
        return json.loads(base64.b64decode(data))
    except ValueError:
        return base64.b64decode(data)

"""`sulina doctor --cluster`, asked about a cluster of a test: what an operator would see."""

import asyncio
import json

from tests.cli.conftest import ended
from tests.support.cluster_world import World, until


async def diagnosis(world: World, *words: str, is_etcd_asked: bool = True) -> list[str]:
    """Return what is not well, each as `grade check: what was found; what to do`."""
    flags = ["--url", ",".join(broker.url for broker in world.running)] if world.running else []
    if is_etcd_asked:
        flags += ["--metadata", f"{world.etcd.url}{world.prefix}", "--objects", world.objects]
    done = await asyncio.to_thread(ended, "doctor", "--cluster", *flags, *words, "--json")
    assert done.out, done
    told = json.loads(done.out)
    assert done.code == (0 if told["is_healthy"] else 1), done
    return [
        f"{finding['grade']} {finding['check']}: {finding['found']}; {finding.get('advice', '')}"
        for finding in told["findings"]
        if finding["grade"] != "ok"
    ]


async def wait_diagnosed(world: World, *parts: str, words: tuple[str, ...] = (), is_etcd_asked: bool = True) -> str:
    """Return the finding that has all these parts, once there is one."""

    async def finding() -> str | None:
        found = await diagnosis(world, *words, is_etcd_asked=is_etcd_asked)
        seen[:] = found
        return next((each for each in found if all(part in each for part in parts)), None)

    seen: list[str] = []
    try:
        return await until(f"doctor finds {parts}", finding, 15.0)
    except AssertionError as error:
        raise AssertionError(f"{error}; it found {seen}") from None

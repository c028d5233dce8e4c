"""`sulina cluster recover`: goes on after the metadata store was restored to an older state, or lost."""

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING

from sulina.cli import terminal
from sulina.cli.cluster_flags import STORES, StoreFlags
from sulina.config import DEFAULT_BROKER_ID, Settings
from sulina.config import load as load_settings
from sulina.errors import InvalidInput, InvalidSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sulina.core.cluster.recovery import Recovery

SHOWN_MAX = 20  # topics and partitions, each


def recover(
    *,
    data: list[str] | None = None,
    stores: StoreFlags = STORES,
    config: str | None = None,
    yes: bool = False,
    json: bool = False,
) -> int:
    """Go on after etcd was restored to an older state, or lost: put back what is missing, raise every epoch.

    Shows what brokers and archive know that etcd does not, and asks. Brokers that run go on by themselves afterwards.

    Parameters
    ----------
    data
        Data directories of brokers whose memory is newer than their copy in the archive; may be given several times.
    config
        A TOML file, as for `sulina serve`.
    yes
        Do not ask.
    json
        What was found and done, as JSON.
    """
    flags = {"insecure": True, "broker_id": DEFAULT_BROKER_ID, **asdict(stores)}
    settings = load_settings(flags, file=config)
    if settings.etcd is None or settings.objects is None:
        raise InvalidSettings("a cluster is recovered with its --metadata etcd://… and --objects …")
    return asyncio.run(_recover(settings, data or [], is_confirmed=yes, as_json=json))


async def _recover(settings: Settings, directories: list[str], *, is_confirmed: bool, as_json: bool) -> int:
    from sulina.broker.options import BrokerOptions
    from sulina.node import recovery
    from sulina.node.cluster import open_archives, open_metadata

    metadata = await open_metadata(settings, settings.data)
    try:
        archives = await open_archives(settings, BrokerOptions(data=settings.data, broker_id=settings.broker_id))
        assert archives is not None
        planned = await recovery.plan(metadata, archives, directories)
        if not as_json:
            _show(planned)
        if not is_confirmed:
            if not terminal.can_ask():
                error = InvalidInput("nobody is there to be asked whether this cluster is to be recovered")
                error.add_note("say --yes to do it")
                raise error
            if not terminal.is_confirmed("Recover the cluster so?"):
                terminal.say("nothing was changed")
                return 1
        await recovery.carry_out(metadata, planned)
    finally:
        await metadata.close()
    if as_json:
        terminal.print_json(_summary(planned))
    else:
        terminal.done(
            f"cluster {planned.identity.cluster_id} goes on as generation {planned.identity.generation}; "
            "start the brokers that do not run"
        )
    return 0


def _show(planned: "Recovery") -> None:
    topics = [(str(topic.topic), "missing" if topic.is_missing else "older", topic.keys) for topic in planned.topics]
    epochs = [
        (str(one.partition), "none" if one.stored is None else one.stored, one.highest, one.waits_for or "")
        for one in planned.epochs
    ]
    _print_some(("topic", "in etcd", "values put back"), topics)
    _print_some(("partition", "epoch in etcd", "used before", "last owner"), epochs)
    _print_some(("partition that stays closed", "its archive is damaged"), [*planned.unreadable])
    if not topics and not epochs:
        terminal.say("etcd has everything that brokers and archive know of; only who owns what is decided again")


def _print_some(columns: tuple[str, ...], rows: "Sequence[Sequence[object]]") -> None:
    if rows:
        terminal.print_table(columns, rows[:SHOWN_MAX])
    if len(rows) > SHOWN_MAX:
        terminal.say(f"… and {len(rows) - SHOWN_MAX} more")


def _summary(planned: "Recovery") -> dict[str, object]:
    topics = [{"topic": str(one.topic), "is_missing": one.is_missing, "keys": one.keys} for one in planned.topics]
    epochs = [
        {"partition": str(one.partition), "stored": one.stored, "highest": one.highest, "waits_for": one.waits_for}
        for one in planned.epochs
    ]
    identity = planned.identity
    unreadable = [{"partition": str(partition), "error": error} for partition, error in planned.unreadable]
    return {
        "cluster_id": identity.cluster_id,
        "generation": identity.generation,
        "topics": topics,
        "epochs": epochs,
        "unreadable": unreadable,
    }

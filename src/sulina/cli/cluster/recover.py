"""Command `sulina cluster recover`: recover a cluster whose metadata store was lost or restored to an older state."""

import asyncio
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sulina.cli import terminal
from sulina.cli.flags.settings import STORES, StoreFlags
from sulina.config import DEFAULT_BROKER_ID, Settings
from sulina.config import load as load_settings
from sulina.errors import InvalidInput, InvalidSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sulina.core.cluster.recovery import Recovery

SHOWN_MAX = 20  # topics and partitions, each


def recover(
    *,
    data: Annotated[
        list[str] | None,
        Parameter(help="Data directory of a broker that may know more than its copy in the archive; may be repeated."),
    ] = None,
    stores: StoreFlags = STORES,
    config: str | None = None,
    yes: bool = False,
    json: bool = False,
) -> int:
    """Recover a cluster whose etcd was lost or restored to an older state: put back missing keys, raise every epoch.

    Shows which topics and epochs the brokers and the archive know and etcd does not, and asks for confirmation.
    Running brokers continue by themselves afterwards.

    Parameters
    ----------
    config
        TOML file with settings, as for `sulina serve`.
    yes
        Do not ask for confirmation.
    json
        Print what was found and changed as JSON.

    Raises:
        InvalidSettings: --metadata or --objects is missing.
    """
    flags = {"insecure": True, "broker_id": DEFAULT_BROKER_ID, **stores.given()}
    settings = load_settings(flags, file=config)
    if settings.etcd is None or settings.objects is None:
        raise InvalidSettings("cluster recover needs --metadata etcd://… and --objects URL of the cluster")
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
                error = InvalidInput("recovering a cluster needs a confirmation, and standard input is not a terminal")
                error.add_note("confirm with --yes")
                raise error
            if not terminal.is_confirmed("Recover the cluster as shown?"):
                terminal.say("nothing was changed")
                return 1
        await recovery.carry_out(metadata, planned)
    finally:
        await metadata.close()
    if as_json:
        terminal.print_json(_summary(planned))
    else:
        terminal.done(
            f"recovered cluster {planned.identity.cluster_id}, now generation {planned.identity.generation}; "
            "start the brokers that are not running"
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
        terminal.say("etcd lacks nothing that brokers and archive know; only the owners are assigned again")


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

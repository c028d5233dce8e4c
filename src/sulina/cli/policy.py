"""A policy as flags: what `topic create` and `namespace create` have in common."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

if TYPE_CHECKING:
    from sulina.core.topic import Policy

_GROUP = Group("Policy", help="What is not said comes from the namespace, then from the system.")


def _flag(text: str) -> Parameter:
    return Parameter(group=_GROUP, help=text)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFlags:
    """Every field of a policy."""

    ack: Annotated[
        Literal["memory", "local", "archived"] | None,
        _flag(
            "What an ack means: `local` is durable on the disk of the node, `archived` is in the object store too, "
            "`memory` is not durable."
        ),
    ] = None
    retention_bytes: Annotated[int | None, _flag("Forget the oldest records of a partition beyond this size.")] = None
    retention_seconds: Annotated[float | None, _flag("Forget records that are older.")] = None
    segment_bytes: Annotated[int | None, _flag("A new file beyond this size.")] = None
    segment_seconds: Annotated[float | None, _flag("A new file after this time.")] = None
    batch_bytes_max: Annotated[int | None, _flag("The largest batch that is taken.")] = None
    ack_timeout_seconds: Annotated[float | None, _flag("A record that is not acked by then is delivered again.")] = None
    redelivery_delay_seconds: Annotated[float | None, _flag("How long a nacked record waits.")] = None
    deliveries_max: Annotated[int | None, _flag("After so many, a record goes to the dead-letter topic.")] = None
    dead_letter: Annotated[str | None, _flag("That topic, instead of `TOPIC.dead-letter`.")] = None
    txn_id_seconds: Annotated[float | None, _flag("A txn_id that comes again within this gets the first answer.")] = (
        None
    )
    txn_ids_max: Annotated[int | None, _flag("How many of them a partition remembers; then new ones have to wait.")] = (
        None
    )
    delivery_policy: Annotated[
        Literal["at_least_once", "at_most_once"] | None,
        _flag("Of a topic that keeps nothing: whether what may not have arrived is sent again."),
    ] = None
    partition_behavior: Annotated[
        Literal["delay_queue", "drop"] | None,
        _flag("Of a topic that keeps nothing: what happens to messages for a node that cannot be reached."),
    ] = None
    archive_bytes: Annotated[int | None, _flag("What is not in the object store goes there at this size.")] = None
    archive_seconds: Annotated[float | None, _flag("What is not in the object store goes there at this age.")] = None
    local_retention_bytes: Annotated[int | None, _flag("Keep so much on disk of what is in the object store.")] = None
    local_retention_seconds: Annotated[float | None, _flag("Keep on disk for so long what is in the object store.")] = (
        None
    )
    validate: Annotated[
        bool | None,
        Parameter(
            group=_GROUP,
            negative="--no-validate",
            help="Check every value by the schema, or none; unless told, values whose publish names no schema.",
        ),
    ] = None

    def policy(self) -> "Policy":
        """InvalidSettings says what is wrong."""
        import msgspec

        from sulina.core.topic import Policy
        from sulina.errors import InvalidSettings

        given = {name: value for name, value in asdict(self).items() if value is not None}
        try:
            return msgspec.convert(given, Policy)
        except msgspec.ValidationError as error:
            raise InvalidSettings(f"policy: {error}") from None


NOTHING_SAID = PolicyFlags()


def policy_text(policy: "Policy") -> str:
    """`ack=local segment_bytes=268435456 …`."""
    from msgspec import structs

    said = {name: value for name, value in structs.asdict(policy).items() if value is not None}
    return "  ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in said.items()
    )

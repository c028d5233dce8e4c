"""The policy options of `topic create` and `namespace create`."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from sulina.json_values import convert_to

if TYPE_CHECKING:
    from sulina.core.topic import Policy

_GROUP = Group("Policy", help="A field that is not set is inherited from the namespace, then from the system defaults.")


def _flag(text: str) -> Parameter:
    return Parameter(group=_GROUP, help=text)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFlags:
    """Every field of a policy."""

    ack: Annotated[
        Literal["memory", "local", "archived"] | None,
        _flag(
            "When a publish is acknowledged: `memory` before it is durable, `local` when it is on the owner's disk, "
            "`archived` when it is in the object store too."
        ),
    ] = None
    retention_bytes: Annotated[
        int | None, _flag("Remove the oldest records of a partition when it is larger than this.")
    ] = None
    retention_seconds: Annotated[float | None, _flag("Remove records that are older than this.")] = None
    segment_bytes: Annotated[int | None, _flag("Start a new segment file at this size.")] = None
    segment_seconds: Annotated[float | None, _flag("Start a new segment file at this age.")] = None
    batch_bytes_max: Annotated[int | None, _flag("Largest batch that the topic accepts.")] = None
    ack_timeout_seconds: Annotated[
        float | None, _flag("Deliver a record again if the consumer has not acked it in this time.")
    ] = None
    redelivery_delay_seconds: Annotated[
        float | None, _flag("Wait this long before a nacked record is delivered again.")
    ] = None
    deliveries_max: Annotated[
        int | None, _flag("Move a record to the dead-letter topic after this number of deliveries.")
    ] = None
    dead_letter: Annotated[str | None, _flag("Name of the dead-letter topic. Default: `TOPIC.dead-letter`.")] = None
    txn_id_seconds: Annotated[
        float | None, _flag("Remember a txn_id for this long: a repeated publish gets the first answer.")
    ] = None
    txn_ids_max: Annotated[
        int | None, _flag("Largest number of txn_ids that a partition remembers; beyond it new ones have to wait.")
    ] = None
    delivery_policy: Annotated[
        Literal["at_least_once", "at_most_once"] | None,
        _flag("Best-effort topics only: whether to resend a batch whose delivery is unconfirmed."),
    ] = None
    partition_behavior: Annotated[
        Literal["delay_queue", "drop"] | None,
        _flag(
            "Best-effort topics only: whether to keep messages for an unreachable node for a while, or to drop them."
        ),
    ] = None
    archive_bytes: Annotated[int | None, _flag("Upload records to the object store when they reach this size.")] = None
    archive_seconds: Annotated[float | None, _flag("Upload records to the object store at this age.")] = None
    local_retention_bytes: Annotated[
        int | None, _flag("Keep at most this size of archived records on the local disk.")
    ] = None
    local_retention_seconds: Annotated[
        float | None, _flag("Keep archived records on the local disk for this long.")
    ] = None
    validate: Annotated[
        bool | None,
        Parameter(
            group=_GROUP,
            negative="--no-validate",
            help="Whether the topic refuses values that do not fit its schema. Default: it does.",
        ),
    ] = None

    def policy(self) -> "Policy":
        """Return the policy that the options name.

        Raises:
            InvalidSettings: a value is out of range.
        """
        import msgspec

        from sulina.core.topic import Policy
        from sulina.errors import InvalidSettings

        given = {name: value for name, value in asdict(self).items() if value is not None}
        try:
            return convert_to(given, Policy)
        except msgspec.ValidationError as error:
            raise InvalidSettings(f"policy: {error}") from None


NOTHING_SAID = PolicyFlags()


def policy_text(policy: "Policy") -> str:
    """Return a policy as `ack=local segment_bytes=268435456 …`."""
    from msgspec import structs

    said = {name: value for name, value in structs.asdict(policy).items() if value is not None}
    return "  ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in said.items()
    )

"""The settings of a topic: its delivery guarantee, partitions, policy and schema, and the rules for changing them.

- A policy sets only some fields; the others come from the namespace, then from the system.
- A schema may change only while the topic has no data.
- Values are checked against the topic's schema, unless its policy says `validate = false`.
"""

import hashlib
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from sulina.core.delivery.pubsub import DeliveryPolicy, PartitionBehavior
from sulina.core.log.txn_memory import TXN_IDS_MAX, TXN_SECONDS
from sulina.errors import InvalidSettings
from sulina.types import TopicName

Seconds = Annotated[float, Meta(gt=0, le=10 * 366 * 24 * 3600)]
PARTITIONS_OF_A_TOPIC_MAX = 1024
SCHEMA_BYTES_MAX = 256 * 1024


class DeliveryGuarantee(StrEnum):
    """Whether a topic is a log, or best-effort: records are sent to subscribers and not stored."""

    RELIABLE = "reliable"
    BEST_EFFORT = "non_reliable"


class Ack(StrEnum):
    """The guarantee of an acknowledgement."""

    MEMORY = "memory"  # the record waits to be written; it is lost if the process dies
    LOCAL = "local"  # the record is durable on the owner's disk
    REPLICATED = "replicated"  # the record is durable on every in-sync replica
    ARCHIVED = "archived"  # the record is in the object store


class SchemaKind(StrEnum):
    """The format of the values of a topic."""

    BYTES = "bytes"
    JSON = "json"
    AVRO = "avro"
    ARROW = "arrow"


class Policy(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a topic behaves. Absent fields come from the namespace, then from the system."""

    ack: Annotated[Ack | None, Meta(description="When a publish is acknowledged.")] = None
    retention_bytes: Annotated[
        Annotated[int, Meta(gt=0, le=2**63 - 1)] | None,
        Meta(description="Keep about this many bytes; the oldest segments are deleted first. Absent: keep all."),
    ] = None
    retention_seconds: Annotated[Seconds | None, Meta(description="Keep records for this long. Absent: for ever.")] = (
        None
    )
    segment_bytes: Annotated[
        Annotated[int, Meta(ge=1 << 16, le=1 << 32)] | None, Meta(description="The size at which a segment is sealed.")
    ] = None
    segment_seconds: Annotated[Seconds | None, Meta(description="The age at which a segment is sealed.")] = None
    batch_bytes_max: Annotated[
        Annotated[int, Meta(ge=1024, le=64 << 20)] | None,
        Meta(description="The size of the largest batch that is accepted."),
    ] = None
    ack_timeout_seconds: Annotated[
        Seconds | None, Meta(description="How long a consumer has to ack a record before it is delivered again.")
    ] = None
    redelivery_delay_seconds: Annotated[
        Annotated[float, Meta(ge=0, le=24 * 3600)] | None,
        Meta(description="How long a nacked record waits before it is delivered again."),
    ] = None
    deliveries_max: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)] | None,
        Meta(description="How often a record is delivered before it goes to the dead-letter topic."),
    ] = None
    dead_letter: Annotated[
        Annotated[str, Meta(max_length=500)] | None,
        Meta(description="The dead-letter topic, `/namespace/topic`. Absent: `{topic}.dead-letter`."),
    ] = None
    # A repeated txn_id within this time gets the first answer; past the number, a partition refuses new ones.
    txn_id_seconds: Annotated[
        Annotated[float, Meta(ge=1, le=24 * 3600)] | None,
        Meta(description="A `txn_id` that comes again within this time gets the first answer."),
    ] = None
    txn_ids_max: Annotated[
        Annotated[int, Meta(ge=1, le=10_000_000)] | None,
        Meta(
            description="The number of `txn_id`s that a partition remembers. When it is reached, new ones are "
            "refused for the moment."
        ),
    ] = None
    # Best-effort topics only: batches whose delivery is unconfirmed, and batches for a node that is out of reach.
    delivery_policy: Annotated[
        DeliveryPolicy | None,
        Meta(description="Best-effort topics only: whether to resend a batch whose delivery is unconfirmed."),
    ] = None
    partition_behavior: Annotated[
        PartitionBehavior | None,
        Meta(description="Best-effort topics only: what to do with batches for a node that is out of reach."),
    ] = None
    validate: Annotated[
        bool | None,
        Meta(description="Whether to check values against the schema before they are accepted. Default: true."),
    ] = None
    # With an object store only: when a slice is archived, and how much of the archived data stays on disk too.
    archive_bytes: Annotated[
        Annotated[int, Meta(ge=1 << 10, le=1 << 30)] | None,
        Meta(description="Archive records once this many bytes are not archived yet."),
    ] = None
    archive_seconds: Annotated[Seconds | None, Meta(description="Archive records once they are this old.")] = None
    local_retention_bytes: Annotated[
        Annotated[int, Meta(ge=0, le=2**63 - 1)] | None,
        Meta(description="Keep this many archived bytes on disk too. Absent: all."),
    ] = None
    local_retention_seconds: Annotated[
        Seconds | None, Meta(description="Keep archived records on disk for this long too. Absent: for ever.")
    ] = None


SYSTEM_POLICY = Policy(
    ack=Ack.LOCAL,
    segment_bytes=256 << 20,
    segment_seconds=24 * 3600.0,
    batch_bytes_max=16 << 20,
    ack_timeout_seconds=30.0,
    redelivery_delay_seconds=1.0,
    txn_id_seconds=TXN_SECONDS,
    txn_ids_max=TXN_IDS_MAX,
    delivery_policy=DeliveryPolicy.AT_LEAST_ONCE,
    partition_behavior=PartitionBehavior.DELAY_QUEUE,
    validate=True,
    archive_bytes=8 << 20,
    archive_seconds=10.0,
)


class Schema(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The format of the values of a topic. `definition` is a JSON Schema, an Avro schema in JSON, or an Arrow schema
    in IPC form, base64; None for bytes."""

    kind: Annotated[SchemaKind, Meta(description="The format of the values.")] = SchemaKind.BYTES
    definition: Annotated[
        Any,
        Meta(description="A JSON Schema, an Avro schema, or an Arrow schema (IPC, base64); `bytes` has no definition."),
    ] = None

    @property
    def fingerprint(self) -> str:
        """Hash of the schema, the same for equal schemas however their JSON is spaced or ordered."""
        canonical = msgspec.json.encode([self.kind, self.definition], order="deterministic")
        return hashlib.sha256(canonical).hexdigest()[:32]


BYTES_SCHEMA = Schema()


def needs_check(schema: Schema, policy: Policy) -> bool:
    """Return whether values must be checked, by a policy that `resolved` has merged."""
    return schema.kind != SchemaKind.BYTES and policy.validate is not False


class TopicSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings that a topic is created with."""

    partitions: Annotated[
        Annotated[int, Meta(ge=1, le=PARTITIONS_OF_A_TOPIC_MAX)],
        Meta(description="The number of partitions. It cannot change later."),
    ] = 1
    delivery: Annotated[
        DeliveryGuarantee,
        Meta(
            description="`reliable`: the topic is a log. `non_reliable`: the topic is best-effort, so records are "
            "sent to attached subscribers and not stored. It cannot change later."
        ),
    ] = DeliveryGuarantee.RELIABLE
    policy: Annotated[Policy, Meta(description="Settings that differ from the namespace's policy.")] = Policy()
    value_schema: Annotated[
        Schema, Meta(description="The schema of the values. It cannot change once the topic has data.")
    ] = msgspec.field(default=BYTES_SCHEMA, name="schema")


def resolved(*policies: Policy) -> Policy:
    """Merge policies into one: the first that sets a field decides it, last the system's."""
    fields = Policy.__struct_fields__
    layers = (*policies, SYSTEM_POLICY)
    return Policy(
        **{name: next((v for layer in layers if (v := getattr(layer, name)) is not None), None) for name in fields}
    )


def check_policy(policy: Policy, *, is_archiving: bool = False) -> None:
    """Check that this node can keep a policy.

    Raises:
        InvalidSettings: the node does not offer its ack level, or its sizes contradict each other.
        InvalidName: its dead-letter topic is not a topic name.
    """
    if policy.dead_letter is not None:
        TopicName.parse(policy.dead_letter)
    offered = [Ack.MEMORY, Ack.LOCAL, *([Ack.ARCHIVED] if is_archiving else [])]
    if policy.ack is not None and policy.ack not in offered:
        needs = "an object store (--objects)" if policy.ack == Ack.ARCHIVED else "replicas"
        raise InvalidSettings(f"ack {policy.ack} needs {needs}; this node offers {', '.join(offered)}")
    if policy.batch_bytes_max and policy.segment_bytes and policy.batch_bytes_max > policy.segment_bytes:
        raise InvalidSettings(
            f"a batch of {policy.batch_bytes_max} bytes would not fit a segment of {policy.segment_bytes}: "
            f"lower batch_bytes_max or raise segment_bytes"
        )

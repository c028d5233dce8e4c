"""What a topic is: its kind, partitions, policy and schema, and the rules for changing them.

- A policy says only what it wants; the rest comes from the namespace, then from the system.
- A schema may change only while the topic has no data; afterwards it is what it is, for ever.
- Producers supply the topic's schema: by its name, or by values that fit it.
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


class Delivery(StrEnum):
    """Whether a topic is a log, or passes records on and forgets them."""

    RELIABLE = "reliable"
    NON_RELIABLE = "non_reliable"


class Ack(StrEnum):
    """What has happened to a record when it is acknowledged."""

    MEMORY = "memory"  # it waits to be written; lost if the process dies
    LOCAL = "local"  # it is durable on the owner's disk
    REPLICATED = "replicated"  # it is durable on every in-sync replica
    ARCHIVED = "archived"  # it is in the object store


class SchemaKind(StrEnum):
    """How the values of a topic are to be understood."""

    BYTES = "bytes"
    JSON = "json"
    AVRO = "avro"
    ARROW = "arrow"


class Policy(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a topic behaves. What is absent is taken from the namespace, then from the system."""

    ack: Ack | None = None
    retention_bytes: Annotated[int, Meta(gt=0, le=2**63 - 1)] | None = None
    retention_seconds: Seconds | None = None
    segment_bytes: Annotated[int, Meta(ge=1 << 16, le=1 << 32)] | None = None
    segment_seconds: Seconds | None = None
    batch_bytes_max: Annotated[int, Meta(ge=1024, le=64 << 20)] | None = None
    ack_timeout_seconds: Seconds | None = None
    redelivery_delay_seconds: Annotated[float, Meta(ge=0, le=24 * 3600)] | None = None
    deliveries_max: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None  # then to the dead-letter topic
    dead_letter: Annotated[str, Meta(max_length=500)] | None = None  # absent: {topic}.dead-letter, beside the topic
    # A txn_id again within this time gets the first answer; a partition remembers at most so many, and refuses more.
    txn_id_seconds: Annotated[float, Meta(ge=1, le=24 * 3600)] | None = None
    txn_ids_max: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None
    # Of a topic that keeps nothing: what happens to what may not have arrived, and to what is for a node out of reach.
    delivery_policy: DeliveryPolicy | None = None
    partition_behavior: PartitionBehavior | None = None
    # Whether values are checked against the schema before they are accepted: always, never, or (absent everywhere)
    # where the publish does not name the topic's schema.
    validate: bool | None = None
    # Where there is an object store: when a slice goes to the archive, and what stays on disk once it is there.
    archive_bytes: Annotated[int, Meta(ge=1 << 10, le=1 << 30)] | None = None
    archive_seconds: Seconds | None = None
    local_retention_bytes: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    local_retention_seconds: Seconds | None = None


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
    archive_bytes=8 << 20,
    archive_seconds=10.0,
)


class Schema(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the values of a topic are to be understood. `definition`: JSON Schema, Avro's JSON, or a schema of Arrow
    in IPC form, base64; bytes have none."""

    kind: SchemaKind = SchemaKind.BYTES
    definition: Any = None

    @property
    def fingerprint(self) -> str:
        """Equal for equal schemas, however their JSON was spaced or ordered."""
        canonical = msgspec.json.encode([self.kind, self.definition], order="deterministic")
        return hashlib.sha256(canonical).hexdigest()[:32]


BYTES_SCHEMA = Schema()


def needs_check(schema: Schema, policy: Policy, named: str | None) -> bool:
    """Return whether values of a publish that names the schema `named`, or none, are checked against the topic's."""
    if schema.kind == SchemaKind.BYTES:
        return False
    return named is None if policy.validate is None else policy.validate


class TopicSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a topic is created with."""

    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_OF_A_TOPIC_MAX)] = 1
    delivery: Delivery = Delivery.RELIABLE
    policy: Policy = Policy()
    value_schema: Schema = msgspec.field(default=BYTES_SCHEMA, name="schema")


def resolved(*policies: Policy) -> Policy:
    """One policy out of several: the first that says something about a thing decides it, at last the system."""
    fields = Policy.__struct_fields__
    layers = (*policies, SYSTEM_POLICY)
    return Policy(
        **{name: next((v for layer in layers if (v := getattr(layer, name)) is not None), None) for name in fields}
    )


def check_policy(policy: Policy, *, is_archiving: bool = False) -> None:
    """InvalidSettings, InvalidName when this node cannot keep what the policy says."""
    if policy.dead_letter is not None:
        TopicName.parse(policy.dead_letter)
    offered = [Ack.MEMORY, Ack.LOCAL, *([Ack.ARCHIVED] if is_archiving else [])]
    if policy.ack is not None and policy.ack not in offered:
        needs = "an object store (--objects)" if policy.ack == Ack.ARCHIVED else "replicas"
        raise InvalidSettings(f"ack {policy.ack} needs {needs}; this node offers {', '.join(offered)}")
    if policy.batch_bytes_max and policy.segment_bytes and policy.batch_bytes_max > policy.segment_bytes:
        raise InvalidSettings(
            f"a batch of {policy.batch_bytes_max} bytes would not fit a segment of {policy.segment_bytes}"
        )

"""Reasons to reject a publish: errors that the message or a full queue causes. All other errors are raised."""

from enum import StrEnum

from sulina.errors import (
    BatchTooLarge,
    DecompressedTooLarge,
    DelayQueueFull,
    InvalidBatch,
    InvalidInput,
    InvalidName,
    InvalidRecord,
    KeysSpanPartitions,
    NoSubscribers,
    NotSerializable,
    PartitionDropped,
    QueueFull,
    SchemaConflict,
    SulinaError,
)


class RejectReason(StrEnum):
    """Why a publish was rejected."""

    INVALID_TOPIC = "InvalidTopic"
    INVALID_PAYLOAD = "InvalidPayload"
    NOT_SERIALIZABLE = "NotSerializable"
    QUEUE_FULL = "QueueFull"
    NO_SUBSCRIBERS = "NoSubscribers"
    PARTITION_DROP = "PartitionDrop"


# The first entry that fits decides.
_REASONS: tuple[tuple[tuple[type[SulinaError], ...], RejectReason], ...] = (
    ((InvalidName,), RejectReason.INVALID_TOPIC),
    ((NotSerializable,), RejectReason.NOT_SERIALIZABLE),
    (
        (BatchTooLarge, DecompressedTooLarge, InvalidBatch, InvalidRecord, KeysSpanPartitions, SchemaConflict),
        RejectReason.INVALID_PAYLOAD,
    ),
    ((QueueFull, DelayQueueFull), RejectReason.QUEUE_FULL),
    ((NoSubscribers,), RejectReason.NO_SUBSCRIBERS),
    ((PartitionDropped,), RejectReason.PARTITION_DROP),
)


def reject_reason(error: SulinaError) -> RejectReason | None:
    """Return the reason for which an error rejects a publish; None: the error is to be raised."""
    if type(error) is InvalidInput:
        return RejectReason.INVALID_PAYLOAD
    return next((reason for kinds, reason in _REASONS if isinstance(error, kinds)), None)

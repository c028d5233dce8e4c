"""Why a publish is rejected: faults that are a message's, or the moment's. All others are the system's, and raised."""

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
    """Why they were not."""

    INVALID_TOPIC = "InvalidTopic"
    INVALID_PAYLOAD = "InvalidPayload"
    NOT_SERIALIZABLE = "NotSerializable"
    QUEUE_FULL = "QueueFull"
    NO_SUBSCRIBERS = "NoSubscribers"
    PARTITION_DROP = "PartitionDrop"


# The first that fits decides.
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
    """The reason, if the fault is the message's; None: the error is to be raised."""
    if type(error) is InvalidInput:
        return RejectReason.INVALID_PAYLOAD
    return next((reason for kinds, reason in _REASONS if isinstance(error, kinds)), None)

"""P2: which faults of a publish are the message's or the moment's, and what they are called."""

import pytest

from sulina.core.delivery.rejects import RejectReason, reject_reason
from sulina.errors import (
    BatchTooLarge,
    DelayQueueFull,
    InvalidInput,
    InvalidName,
    InvalidSettings,
    NoSubscribers,
    NotSerializable,
    PartitionDropped,
    SulinaError,
)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InvalidInput("x"), RejectReason.INVALID_PAYLOAD),
        (InvalidName(kind="topic", name="?", pattern="x"), RejectReason.INVALID_TOPIC),
        (NotSerializable("x"), RejectReason.NOT_SERIALIZABLE),
        (BatchTooLarge(size_bytes=2, limit_bytes=1), RejectReason.INVALID_PAYLOAD),
        (DelayQueueFull(node="b", waiting_bytes=2, limit_bytes=1), RejectReason.QUEUE_FULL),
        (NoSubscribers(topic="/default/news"), RejectReason.NO_SUBSCRIBERS),
        (PartitionDropped("x"), RejectReason.PARTITION_DROP),
        (InvalidSettings("x"), None),  # the system's, and raised
        (SulinaError("x"), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_p2_a_publish_is_rejected_for_a_reason_that_the_error_names(
    error: SulinaError, expected: RejectReason | None
) -> None:
    assert reject_reason(error) == expected

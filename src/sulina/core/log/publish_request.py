"""A publish as one object, from the listener that reads it to the commit that stores it.

A listener creates it once; broker, topic, log and plan read its fields, and none of them changes it.
"""

from collections.abc import Sequence

from msgspec import Struct

from sulina.core.delivery.pubsub import PublishOptions
from sulina.core.records.compression import Bytes

NO_OPTIONS = PublishOptions()


class PublishRequest(Struct, frozen=True):
    """Record batches to append to one partition together, all or none, and the conditions for it."""

    data: Bytes  # one or more batches end to end; must not change before the answer
    partition: int | None = None  # None: the topic chooses
    keys: Sequence[bytes | None] | None = None  # of the records, if they are known without decoding `data`
    txn_id: str | None = None  # a repeat gets the first answer
    expected_version: int | None = None  # append only if the partition is still at this version
    schema_id: str | None = None  # refused if the topic has another schema
    topic_id: str | None = None  # the topic that the publisher means: a later topic of the same name has another id
    is_trusted: bool = False  # this process has just encoded `data`: only its size is checked
    is_dead_letter: bool = False  # its value need not fit the topic's schema
    may_skip: bool = False  # its producer skips sequences that were refused
    options: PublishOptions = NO_OPTIONS  # of the delivery

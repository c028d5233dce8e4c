"""A publish as one object, from the listener that reads it to the commit that stores it.

A listener makes it once; broker, topic, log and plan read what they need of it, and none of them changes it.
"""

from collections.abc import Sequence

from msgspec import Struct

from sulina.core.delivery.pubsub import PublishOptions
from sulina.core.records.compression import Bytes

NO_OPTIONS = PublishOptions()


class PublishRequest(Struct, frozen=True):
    """Record batches that are appended to one partition together, all or none, and the terms of that."""

    data: Bytes  # one or more batches end to end; not to be changed before the answer
    partition: int | None = None  # None: the topic chooses
    keys: Sequence[bytes | None] | None = None  # of the records, where they are known without decoding `data`
    txn_id: str | None = None  # a repeat gets the answer of the first
    expected_version: int | None = None  # append only if the partition is still at this version
    schema_id: str | None = None  # by which the publisher has checked the values
    topic_id: str | None = None  # as the publisher knows it: a later topic of the same name has another
    is_trusted: bool = False  # this process has just encoded `data`: only its size is checked
    may_skip: bool = False  # its producer leaves out sequences that were refused
    options: PublishOptions = NO_OPTIONS  # how it is delivered

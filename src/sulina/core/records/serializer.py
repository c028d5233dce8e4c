"""The headers by which a record says how its value was written: the same on every surface.

Bytes have no such header: they are stored as they come. Records of other producers have none either, and are bytes.
"""

from enum import IntEnum

from sulina.core.records.record import Headers

SERIALIZER_HEADER = "sulina-serializer"  # the id, in decimal digits
TYPE_HEADER = "sulina-type"  # the name of the type in UTF-8; absent: it has none


class Serializer(IntEnum):
    """The ids of the built-in serializers. Those from 100 on are the users'."""

    BYTES = 0
    TEXT = 1
    JSON = 2
    ARROW = 3  # a stream of IPC; the type is Table or RecordBatch
    AVRO = 4  # without its schema: readers register the type too


TEXT_HEADERS: Headers = ((SERIALIZER_HEADER, b"%d" % Serializer.TEXT),)
JSON_HEADERS: Headers = ((SERIALIZER_HEADER, b"%d" % Serializer.JSON),)

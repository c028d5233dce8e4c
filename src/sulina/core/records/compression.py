"""The compressions of a record batch: none, gzip, snappy, lz4, zstd.

- The output never exceeds `limit_bytes`: a decompression bomb costs that many bytes and an error.
- The output is whole: truncated input, garbage and trailing bytes are InvalidBatch.
- Every Kafka client can read our output: snappy in xerial's framing, lz4 as a frame of independent blocks.

pyarrow has all codecs but is slow to import, so it is imported at the first use.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING

from sulina.errors import DecompressedTooLarge, InvalidBatch, UnknownCodec

if TYPE_CHECKING:
    import pyarrow as pa

Bytes = bytes | bytearray | memoryview


class Codec(IntEnum):
    """Number of a compression in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# Kafka's own default levels.
_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024

# Magic, flags (version 1, independent blocks, no checksums), 64 KiB blocks, the checksum byte of these two.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 0x8000_0000
_LZ4_END = bytes(4)

_FIRST_READ_BYTES_MIN = 64 * 1024
_LENGTH = struct.Struct(">i")


def compress(codec: int, data: Bytes) -> Bytes:
    """Compress `data`.

    Raises:
        UnknownCodec: `codec` is not known.
    """
    if codec == Codec.NONE:
        return data
    import pyarrow as pa

    if codec == Codec.GZIP:
        return _view(pa.Codec("gzip", compression_level=_GZIP_LEVEL).compress(data))
    if codec == Codec.ZSTD:
        return _view(pa.Codec("zstd", compression_level=_ZSTD_LEVEL).compress(data))
    if codec == Codec.SNAPPY:
        return _compress_xerial(pa.Codec("snappy"), data)
    if codec == Codec.LZ4:
        return _compress_lz4(pa.Codec("lz4_raw"), data)
    raise UnknownCodec(codec=codec)


def decompress(codec: int, data: Bytes, limit_bytes: int) -> memoryview:
    """Decompress `data` to the bytes that `compress` was given.

    Raises:
        InvalidBatch: the data is damaged, or is followed by other bytes.
        DecompressedTooLarge: there would be more than `limit_bytes`.
        UnknownCodec: `codec` is not known.
    """
    if codec == Codec.NONE:
        if len(data) > limit_bytes:
            raise DecompressedTooLarge(limit_bytes=limit_bytes)
        return memoryview(data)
    if codec == Codec.SNAPPY:
        return _decompress_snappy(memoryview(data), limit_bytes)
    if codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
        return _decompress_stream(Codec(codec).name.lower(), data, limit_bytes)
    raise UnknownCodec(codec=codec)


def _view(buffer: "pa.Buffer") -> memoryview:
    # A view of an Arrow buffer has signed bytes, and its size before any resize; a slice has the true size.
    return memoryview(buffer.slice(0, buffer.size)).cast("B")


def _joined(parts: list[memoryview]) -> memoryview:
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


def _compress_xerial(snappy: "pa.Codec", data: Bytes) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = snappy.compress(view[start : start + _XERIAL_BLOCK_BYTES], asbytes=True)
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _compress_lz4(lz4_raw: "pa.Codec", data: Bytes) -> bytes:
    # Arrow's own lz4 frames link their blocks, which Java's Kafka clients refuse; so the frame is built here.
    view = memoryview(data)
    parts: list[Bytes] = [_LZ4_HEADER]
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        block = view[start : start + _LZ4_BLOCK_BYTES]
        packed = lz4_raw.compress(block, asbytes=True)
        if len(packed) < len(block):
            parts += (len(packed).to_bytes(4, "little"), packed)
        else:
            parts += ((len(block) | _LZ4_STORED).to_bytes(4, "little"), block)
    parts.append(_LZ4_END)
    return b"".join(parts)


def _decompress_stream(name: str, data: Bytes, limit_bytes: int) -> memoryview:
    """Read a gzip, lz4 or zstd stream of any number of members, at most one byte past the limit."""
    import pyarrow as pa

    if len(data) == 0:
        raise InvalidBatch(f"{name} data is empty")
    parts = []
    size = 0
    read_bytes = max(_FIRST_READ_BYTES_MIN, 4 * len(data))
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), name) as stream:
            # Arrow's pool reuses pages that were touched before; fresh bytes would be new pages.
            while part := _view(stream.read_buffer(min(read_bytes, limit_bytes + 1 - size))):
                parts.append(part)
                size += len(part)
                read_bytes *= 2
                if size > limit_bytes:
                    raise DecompressedTooLarge(limit_bytes=limit_bytes)
    except OSError as error:
        raise InvalidBatch(f"{name} data is damaged: {error}") from None
    return _joined(parts)


def _decompress_snappy(data: memoryview, limit_bytes: int) -> memoryview:
    import pyarrow as pa

    snappy = pa.Codec("snappy")
    parts = []
    size = 0
    for block in _snappy_blocks(data):
        block_bytes = _snappy_length(block)
        size += block_bytes
        if size > limit_bytes:
            raise DecompressedTooLarge(limit_bytes=limit_bytes)
        try:
            parts.append(_view(snappy.decompress(block, block_bytes)))
        except (OSError, pa.ArrowInvalid) as error:
            raise InvalidBatch(f"snappy data is damaged: {error}") from None
    return _joined(parts)


def _snappy_blocks(data: memoryview) -> Iterator[memoryview]:
    """Yield the blocks of xerial's framing, or the one block of raw snappy (librdkafka's)."""
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        yield data
        return
    position = len(_XERIAL_HEADER)  # its two version numbers are not checked: some producers swap their bytes
    if len(data) <= position:
        raise InvalidBatch(f"snappy data of {len(data)} bytes has no block")
    while position < len(data):
        start = position + _LENGTH.size
        length = _LENGTH.unpack_from(data, position)[0] if start <= len(data) else -1
        position = start + length
        if length < 0 or position > len(data):
            raise InvalidBatch(f"snappy block at byte {start} has {length} of {len(data) - start} bytes")
        yield data[start:position]


def _snappy_length(block: memoryview) -> int:
    """Return the decompressed size that a snappy block states: a varint of at most 32 bits at its start."""
    length = 0
    for index, byte in enumerate(block[:5]):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return length
    raise InvalidBatch("snappy block has no valid length")

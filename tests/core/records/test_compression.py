"""Compression is bounded, whole or refused, and readable by every Kafka client."""

import gzip
import os
import subprocess
import sys

import pyarrow as pa
import pytest

from sulina.core.records.compression import Codec, compress, decompress
from sulina.errors import DecompressedTooLarge, InvalidBatch, UnknownCodec

PACKED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
STREAMS = [Codec.GZIP, Codec.LZ4, Codec.ZSTD]
TEXT = b"the arm of the Danube delta where the river meets the sea. " * 5000
NOISE = os.urandom(200_000)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("data", [b"x", TEXT, NOISE, TEXT[: 64 * 1024], bytes(3_000_000)])
def test_what_was_compressed_comes_back(codec: Codec, data: bytes) -> None:
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data)) == data
    assert decompress(codec, memoryview(bytearray(packed)), 10 * len(data)) == data


@pytest.mark.parametrize("codec", list(Codec))
def test_one_byte_over_the_limit_is_refused(codec: Codec) -> None:
    packed = compress(codec, TEXT)
    with pytest.raises(DecompressedTooLarge):
        decompress(codec, packed, len(TEXT) - 1)


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("data", [TEXT[:500], TEXT])
def test_truncated_input_is_refused_wherever_it_is_cut(codec: Codec, data: bytes) -> None:
    packed = bytes(compress(codec, data))
    for size in {0, 1, 3, 7, 16, 17, 20, len(packed) // 2, len(packed) - 4, len(packed) - 1}:
        with pytest.raises(InvalidBatch):
            decompress(codec, packed[:size], 10**7)


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("tail", [b"\x01", bytes(20), b"garbage garbage"])
def test_trailing_garbage_is_refused(codec: Codec, tail: bytes) -> None:
    with pytest.raises(InvalidBatch):
        decompress(codec, bytes(compress(codec, TEXT)) + tail, 10**7)


@pytest.mark.parametrize("codec", PACKED)
def test_garbage_is_refused(codec: Codec) -> None:
    for size in (1, 10, 1000):
        with pytest.raises(InvalidBatch):
            decompress(codec, b"\xff" * size, 10**7)


@pytest.mark.parametrize("codec", STREAMS)
def test_streams_of_several_members_are_read_to_the_end(codec: Codec) -> None:
    packed = bytes(compress(codec, TEXT)) + bytes(compress(codec, b"")) + bytes(compress(codec, NOISE))
    assert decompress(codec, packed, 10**7) == TEXT + NOISE
    with pytest.raises(DecompressedTooLarge):
        decompress(codec, packed, len(TEXT))
    assert decompress(Codec.GZIP, gzip.compress(TEXT) + gzip.compress(NOISE), 10**7) == TEXT + NOISE


def test_snappy_is_written_in_the_framing_of_xerial_and_read_in_both() -> None:
    assert bytes(compress(Codec.SNAPPY, TEXT))[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    raw = pa.Codec("snappy").compress(TEXT, asbytes=True)
    assert decompress(Codec.SNAPPY, raw, len(TEXT)) == TEXT


def test_a_snappy_block_that_claims_too_much_costs_nothing() -> None:
    claim = b"\xff\xff\xff\xff\x0f"  # 4 GiB - 1
    framed = b"\x82SNAPPY\x00" + bytes(8)
    with pytest.raises(DecompressedTooLarge):
        decompress(Codec.SNAPPY, claim + b"\x00" * 10, 10**7)
    with pytest.raises(DecompressedTooLarge):
        decompress(Codec.SNAPPY, framed + (15).to_bytes(4, "big") + claim + b"\x00" * 10, 10**7)
    for block in (b"", b"\xff\xff\xff\xff\xff\xff", b"\x05\x00"):
        with pytest.raises(InvalidBatch):
            decompress(Codec.SNAPPY, block, 10**7)
        with pytest.raises(InvalidBatch):
            decompress(Codec.SNAPPY, framed + len(block).to_bytes(4, "big") + block, 10**7)
    with pytest.raises(InvalidBatch, match="-1 of"):
        decompress(Codec.SNAPPY, framed + b"\xff\xff\xff\xff" + bytes(9), 10**7)


def test_lz4_blocks_stand_alone_because_java_refuses_linked_ones() -> None:
    packed = bytes(compress(Codec.LZ4, TEXT))
    assert packed[:4] == b"\x04\x22\x4d\x18"
    assert packed[4] & 0x20, "the flag of independent blocks"
    assert pa.Codec("lz4").decompress(packed, len(TEXT), asbytes=True) == TEXT


@pytest.mark.parametrize("codec", [-1, 5, 7])
def test_an_unknown_codec_is_refused(codec: int) -> None:
    with pytest.raises(UnknownCodec):
        compress(codec, TEXT)
    with pytest.raises(UnknownCodec):
        decompress(codec, TEXT, 10**7)


def test_a_bomb_costs_its_limit_and_an_error() -> None:
    """1 GiB of zeros, by each codec, where only 96 MiB more of address space is to be had."""
    script = """
import resource, sys
from sulina.core.records.compression import Codec, compress, decompress
from sulina.errors import DecompressedTooLarge
bombs = {}
zeros = bytes(16 << 20)
for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
    bombs[codec] = bytes(compress(codec, zeros)) * 64
packed = bytes(compress(Codec.SNAPPY, zeros))
bombs[Codec.SNAPPY] = packed[:16] + packed[16:] * 64
del zeros, packed
for codec in Codec:  # warm up: threads and pools take their space
    decompress(codec, compress(codec, bytes(1000)), 1000)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (96 << 20),) * 2)
for codec, bomb in bombs.items():
    try:
        decompress(codec, bomb, 8 << 20)
    except DecompressedTooLarge:
        continue
    sys.exit(f"{codec} let it pass")
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)

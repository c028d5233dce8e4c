"""Which partitions the keys of a column go to: `routing.partition_of` in bulk. A test holds the two together."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sulina.core.records import kernels

_SEED, _M = 0x9747B28C, 0x5BD1E995


def column_partitions(keys: pa.Array, partitions: int, keyless: int) -> NDArray[np.int32]:
    """Return the partition of each row; rows without a key go to `keyless`."""
    array = keys if keys.type == pa.binary() else keys.cast(pa.binary())
    out = np.empty(len(array), np.int32)
    _, ends, data = array.buffers()
    ends = np.frombuffer(ends or b"\0\0\0\0", np.int32)[array.offset : array.offset + len(array) + 1]
    _hash(ends, kernels.as_array(data or b""), partitions, out)
    if array.null_count:
        out[array.is_null().to_numpy(zero_copy_only=False)] = keyless
    return out


@kernels.kernel
def _hash(ends: kernels.I32, data: kernels.U8, partitions: int, out: kernels.I32) -> None:
    m, mask = np.uint64(_M), np.uint64(0xFFFFFFFF)
    for row in range(len(ends) - 1):
        start, length = ends[row], ends[row + 1] - ends[row]
        h = (np.uint64(_SEED) ^ np.uint64(length)) & mask
        whole = length & ~3
        for at in range(start, start + whole, 4):
            k = (
                np.uint64(data[at])
                | np.uint64(data[at + 1]) << np.uint64(8)
                | np.uint64(data[at + 2]) << np.uint64(16)
                | np.uint64(data[at + 3]) << np.uint64(24)
            )
            k = k * m & mask
            k = (k ^ k >> np.uint64(24)) * m & mask
            h = h * m & mask ^ k
        if whole < length:
            rest = np.uint64(0)
            for at in range(length - whole):
                rest |= np.uint64(data[start + whole + at]) << np.uint64(8 * at)
            h = (h ^ rest) * m & mask
        h = (h ^ h >> np.uint64(13)) * m & mask
        h ^= h >> np.uint64(15)
        out[row] = np.int64(h & np.uint64(0x7FFFFFFF)) % partitions

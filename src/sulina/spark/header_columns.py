"""Headers that say how the values of a column were written, as every other surface says it for one value."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sulina.core.records.record_columns import HEADERS_TYPE
from sulina.core.records.serializer import SERIALIZER_HEADER, TEXT_HEADERS
from sulina.errors import InvalidInput

_TEXT = pa.array([dict(zip(("key", "value"), header, strict=True)) for header in TEXT_HEADERS], HEADERS_TYPE.value_type)


def serializer_headers(value: pa.Array, headers: pa.Array | None) -> pa.Array | None:
    """Return the headers of rows, with one in front that says "text" where the value is a string.

    Bytes and nulls need none. A row that says itself how its value was written keeps its headers as they are.

    Raises:
        InvalidInput: the column has another type than headers have.
    """
    if not (pa.types.is_string(value.type) or pa.types.is_large_string(value.type)):
        return headers
    is_text = value.is_valid().to_numpy(zero_copy_only=False)
    given = pa.nulls(len(value), HEADERS_TYPE) if headers is None else headers
    try:
        own = given.cast(HEADERS_TYPE)
    except pa.ArrowException as error:
        raise InvalidInput(f"column headers is {given.type}, not an array of key and value: {error}") from None
    counts = pc.fill_null(pc.list_value_length(own), 0).to_numpy().astype(np.int32)
    pairs, rows = own.flatten(), np.repeat(np.arange(len(own)), counts)
    says_itself = pc.equal(pairs.flatten()[0], SERIALIZER_HEADER).fill_null(False).to_numpy(zero_copy_only=False)
    is_text[rows[says_itself]] = False
    starts = np.concatenate([[0], np.cumsum(counts + is_text)]).astype(np.int32)
    order = np.full(starts[-1], len(pairs))  # of the pairs, the text header being the one after the last
    order[np.arange(len(pairs)) + np.cumsum(is_text)[rows]] = np.arange(len(pairs))
    return pa.ListArray.from_arrays(starts, pa.concat_arrays([pairs, _TEXT]).take(pa.array(order)))

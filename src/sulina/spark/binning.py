"""Groups of small files that are made into one.

- A file that is large enough already is left alone, and so is one that finds no companion: to write it again would
  gain nothing.
- Files are joined with those that were written next to them, so that rows of one time stay together and the lowest and
  highest values of a file lie close.
"""

from collections.abc import Sequence

ENOUGH = 0.75  # part of the target size from which a file is left alone


def bins_of(sizes: Sequence[int], *, target_bytes: int, files_max: int) -> list[list[int]]:
    """Return the files to join, by their index in `sizes`: one list for each new file.

    Every list has between two and `files_max` files, of at most `target_bytes` together; no file is in two lists.
    """
    enough = target_bytes * ENOUGH
    found: list[list[int]] = []
    size_of_last = 0
    for at, size in enumerate(sizes):
        if size >= enough:
            continue
        if not found or size_of_last + size > target_bytes or len(found[-1]) == files_max:
            found.append([])
            size_of_last = 0
        found[-1].append(at)
        size_of_last += size
    return [some for some in found if len(some) > 1]

"""Which files of a table are joined: S5."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sulina.spark.binning import ENOUGH, bins_of


@given(
    sizes=st.lists(st.integers(0, 150), max_size=60),
    target=st.integers(1, 100),
    files_max=st.integers(2, 10),
)
def test_s5_bins_hold_neighbours_that_are_small_each_once_and_joining_them_comes_to_an_end(
    sizes: list[int], target: int, files_max: int
) -> None:
    for _ in range(len(sizes) + 1):
        bins = bins_of(sizes, target_bytes=target, files_max=files_max)
        flat = [at for some in bins for at in some]
        assert flat == sorted(set(flat))
        for some in bins:
            assert 2 <= len(some) <= files_max
            assert sum(sizes[at] for at in some) <= target
            assert all(sizes[at] < target * ENOUGH for at in some)
        if not bins:
            break
        # New files come last.
        sizes = [size for at, size in enumerate(sizes) if at not in flat] + [
            sum(sizes[at] for at in some) for some in bins
        ]
    small = [size for size in sizes if size < target * ENOUGH]
    assert all(one + next_one > target for one, next_one in pairwise(small))


def test_a_file_of_three_quarters_is_left_alone_and_a_bin_may_be_full_to_the_byte() -> None:
    assert bins_of([75, 10, 10], target_bytes=100, files_max=9) == [[1, 2]]
    assert bins_of([80, 10, 10], target_bytes=100, files_max=9) == [[1, 2]]
    assert bins_of([50, 50, 60, 40], target_bytes=100, files_max=9) == [[0, 1], [2, 3]]

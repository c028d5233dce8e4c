"""README and the guides do what they say: every block is run, in order, from an empty folder.

`make test` reads all pages after each other, on one node, so that every block is run and no page contradicts another.
Those that need neither Spark nor a cluster are read alone too. `make examples` reads each page alone, and all of them
after each other with a Spark session of its own for each command.

`tests/support/page_blocks.py` says what a page may say about a block.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.page_blocks import Block, blocks_of
from tests.support.page_run import PageReader, Ran
from tests.support.spark_cluster import connect_alone

ROOT = Path(__file__).parents[2]
PAGES = ("README", "client", "subscriptions", "pubsub", "log", "spark", "cluster", "operations")  # in this order
NOT_RUN_MAX = 15
SECONDS_MAX = 600
LONG = ("README", "spark", "cluster", "operations")  # alone; README is the first of those after each other

is_long = pytest.mark.skipif(not os.environ.get("SULINA_SLOW"), reason="takes a minute or more: make examples")
pytestmark = [pytest.mark.timeout(SECONDS_MAX), pytest.mark.needs("etcd"), pytest.mark.needs("java")]


def path_of(page: str) -> Path:
    return ROOT / "README.md" if page == "README" else ROOT / "docs" / "guides" / f"{page}.md"


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page."""
    return blocks_of(path_of(page))


def read(reader: PageReader, pages: Sequence[str]) -> None:
    """Read pages, and tell how long each program took: `pytest -s` shows it."""
    for page in pages:
        found: list[Ran] = []
        try:
            reader.read(blocks(page), found.append)
        finally:
            count = f"{len(found)} of {len(blocks_of(path_of(page)))} blocks"
            print(f"\n{page:16} {count:19} {sum(ran.seconds for ran in found):6.1f} s")
            for ran in found:
                if ran.block.is_program:
                    print(f"  {ran.block.place:20} {ran.seconds:6.1f} s  {ran.block.text.splitlines()[0]}")


def test_every_guide_is_read() -> None:
    assert {path_of(page) for page in PAGES} == {ROOT / "README.md", *(ROOT / "docs" / "guides").glob("*.md")}


def test_few_blocks_are_not_run() -> None:
    reasons = Counter(block.why_not for page in PAGES for block in blocks_of(path_of(page)) if block.why_not)
    assert reasons.total() <= NOT_RUN_MAX, reasons


def test_d1_all_pages_after_each_other_do_what_they_say(
    make_reader: Callable[[], PageReader], python: Mapping[str, str], tmp_path: Path
) -> None:
    """One Spark Connect server does the work of a session for each command: a page is the same with it."""
    reader = make_reader()
    with connect_alone(tmp_path, python, cwd=reader.folder) as url:
        reader.use({"SPARK_REMOTE": url})
        read(reader, PAGES)


@is_long
def test_d1_all_pages_after_each_other_do_what_they_say_on_this_machine_alone(
    make_reader: Callable[[], PageReader],
) -> None:
    read(make_reader(), PAGES)


@pytest.mark.parametrize("page", [pytest.param(page, marks=is_long if page in LONG else ()) for page in PAGES])
def test_d1_a_page_alone_does_what_it_says(page: str, make_reader: Callable[[], PageReader]) -> None:
    read(make_reader(), [page])

"""The runner of pages itself: it runs every block, in order, and tells of the first that does not do what it says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.page_blocks import PageFault, blocks_of
from tests.support.page_run import PageReader, Ran
from tests.support.shown_output import missing

MakeReader = Callable[[], PageReader]


@pytest.fixture
def reader(make_reader: MakeReader) -> PageReader:
    return make_reader()


def read(reader: PageReader, text: str) -> list[str]:
    """Read a page of this text; return the languages of the blocks that were run."""
    page = reader.state / "page.md"
    page.write_text(text)
    found: list[Ran] = []
    reader.read(blocks_of(page), found.append)
    return [ran.block.language for ran in found]


def test_d1_blocks_are_run_in_their_order(reader: PageReader) -> None:
    page = "```sh\necho one > file\n```\n\n```python\nprint(open('file').read())\nopen('file', 'w').write('two')\n```\n"
    assert read(reader, page + "```text\none\n```\n```sh\ncat file\n```\n```text\ntwo\n```\n") == [
        *("sh", "python", "text"),
        *("sh", "text"),
    ]


@pytest.mark.parametrize(
    "page",
    [
        "```sh\nfalse\ntrue\n```\n",
        "```sh\nfalse | true\n```\n",
        "```python\nraise SystemExit(3)\n```\n",
        "```python\n1 / 0\n```\n",
        "<!-- run: session -->\n```python\n1 / 0\n```\n",
        "<!-- run: exit=1 -->\n```sh\ntrue\n```\n",
        "```sh\necho one\n```\n```text\ntwo\n```\n",
    ],
    ids=["command", "pipe", "code", "exception", "session", "other-code", "output"],
)
def test_d1_a_block_that_fails_is_named_and_ends_the_page(reader: PageReader, page: str) -> None:
    with pytest.raises(PageFault, match=r"page\.md:\d+: "):
        read(reader, page + "```sh\ntouch after\n```\n")
    assert not (reader.folder / "after").exists()


def test_a_block_may_end_with_the_code_that_its_page_says(reader: PageReader) -> None:
    read(reader, "<!-- run: exit=3 -->\n```sh\nexit 3\n```\n")


def test_a_file_is_written_with_the_ports_of_this_run(reader: PageReader) -> None:
    page = '<!-- run: file=a.toml -->\n```toml\nurl = "http://127.0.0.1:8081"\n```\n'
    read(reader, page + '```sh\ncat a.toml\n```\n```text\nurl = "http://127.0.0.1:8081"\n```\n')
    assert "8081" not in (reader.folder / "a.toml").read_text()


def test_variables_are_kept_in_a_page_and_names_in_a_session(reader: PageReader) -> None:
    page = "```sh\nexport WORD=one\n```\n```sh\necho $WORD\n```\n```text\none\n```\n"
    session = "<!-- run: session -->\n```python\n{}\n```\n"
    read(reader, page + session.format("word = 'two'") + session.format("print(word)") + "```text\ntwo\n```\n")
    read(reader, '```sh\necho "${WORD:-nothing}"\n```\n```text\nnothing\n```\n')


def test_a_background_goes_on_until_the_page_ends(reader: PageReader) -> None:
    waiting = "<!-- run: background -->\n```sh\nuntil test -e stop; do sleep 0.01; done; touch stopped\n```\n"
    seen = "<!-- run: until -->\n```sh\nls\n```\n```text\nstopped\n```\n"
    read(reader, waiting + "```sh\ntouch stop\n```\n" + seen)


def test_a_background_that_fails_is_told(reader: PageReader) -> None:
    failing = "<!-- run: background -->\n```sh\necho $$ > pid; exit 3\n```\n"
    ended = "```sh\nuntil test -e pid && grep -q Z /proc/$(cat pid)/stat; do sleep 0.01; done\n```\n"
    with pytest.raises(PageFault, match="ended with 3"):
        read(reader, failing + ended)


def test_one_node_serves_all_pages(reader: PageReader) -> None:
    page = "```sh\n.venv/bin/sulina serve\n```\n```sh\n.venv/bin/sulina topic create {}\n```\n"
    read(reader, page.format("one"))
    read(reader, page.format("two") + "```sh\nsulina topic list\n```\n```text\n/default/one …\n/default/two …\n```\n")


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ("```\ntrue\n```\n", "language ''"),
        ("```ruby\ntrue\n```\n", "language 'ruby'"),
        ("<!-- run: not -->\n```sh\nmake\n```\n", "no reason"),
        ("<!-- run: not, tired -->\n```sh\nmake\n```\n", "no reason"),
        ("<!-- run: twice -->\n```sh\nmake\n```\n", "no note"),
        ("```toml\na = 1\n```\n", "needs the file"),
        ("```sh\ntrue\n", "no end"),
        ("```text\none\n```\n", "nothing is run"),
        ("<!-- run: until -->\n```sh\ntrue\n```\n", "needs a text block"),
    ],
)
def test_d1_a_page_that_cannot_be_run_as_it_stands_is_refused(tmp_path: Path, page: str, why: str) -> None:
    (tmp_path / "page.md").write_text(page)
    with pytest.raises(PageFault, match=why):
        blocks_of(tmp_path / "page.md")


def test_shown_lines_are_printed_in_their_order() -> None:
    assert missing("b   2\n", "a 1\nb 2\n") is None
    assert missing("b\na\n", "a\nb\n") == "a"
    assert missing("took … s\n", "took 12 s\n") is None
    assert missing("took 3 s\n", "took 12 s\n") == "took 3 s"
    assert missing("took 3 s\n", "took 12 s\n", is_similar=True) is None
    assert missing("took 3 s\n", "lost 12 s\n", is_similar=True) == "took 3 s"

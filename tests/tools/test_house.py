"""`tools/house.py` counts what it says it counts."""

from pathlib import Path

import pytest

from tools import house, house_rules

TWO_MODULES = {
    "__init__.py": '__all__ = ["Client", "SyncClient"]\n',
    "client/__init__.py": "",
    "client/client.py": '''
class Client:
    def publish(self, value: bytes) -> None:
        """Publish whoever."""
        raise ValueError(value)

    def read(self) -> bytes:
        """Read what there is.

        Raises:
            KeyError: always.
        """
        raise KeyError

class SyncClient:
    publish = blocking(Client.publish)
''',
    "broker.py": '''
class Client:
    """Of two meanings."""

def owner() -> str:
    """The owner of a partition."""
    return "b1"
''',
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TWO_MODULES.items():
        path = tmp_path / "src" / "sulina" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_names_docstrings_and_words_of_a_tree_are_counted(tree: Path) -> None:
    figures, found = house.count(tree)
    assert figures["modules"] == {"(top)": 2, "client": 2}
    assert found["class names with two meanings"] == ["Client: broker.py:2, client/client.py:2"]
    assert found["raise, with Raises:"] == ["client/client.py:7  read raises KeyError"]
    assert found["raise, without"] == ["client/client.py:3  publish raises ValueError"]
    assert found["no verb"] == ["broker.py:5  owner: The owner of a partition."]
    assert figures["names"]["docstrings that begin with Of or That"] == 1
    assert figures["words to avoid"]["src"]["whoever"] == 1
    assert figures["ways of the client"] == {
        "to publish, async": 1,
        "to publish, sync": 1,
        "to read, async": 1,
        "to read, sync": 0,
    }


def test_the_page_shows_two_trees_side_by_side(tree: Path) -> None:
    now, _ = house.count(tree)
    before = now | {"ways": {"move": {"hops": 58, "crossings": 30, "modules": 24}}, "modules": {"spark": 60}}
    page = house.page(before, now)
    assert "| move | 58 / 30 / 24 | – |" in page
    assert "| spark | 60 | – |" in page
    assert "| all | 60 | 4 |" in page


@pytest.mark.parametrize(
    ("text", "is_verb_phrase"),
    [
        ("Return the owner of a partition.", True),
        ("Tells whether a lease has expired.", True),
        ("Called when the connection is lost.", True),
        ("Record that a batch is stored.", True),
        ("Record that is stored.", False),
        ("That it is served by.", False),
        ("Name of the owner.", False),
        ("`True` if it is.", False),
    ],
)
def test_a_docstring_begins_with_a_verb(text: str, is_verb_phrase: bool) -> None:
    assert house_rules.begins_with_verb(text) == is_verb_phrase

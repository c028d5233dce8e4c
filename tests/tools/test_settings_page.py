"""The tables of docs/reference/settings.md are those of the declarations."""

from sulina.config import DECLARED
from sulina.setting import SettingGroup
from tools.settings_page import PAGE, table, with_tables


def test_the_page_is_as_the_declarations_have_it() -> None:
    page = PAGE.read_text()
    assert with_tables(page) == page, "out of date: run .venv/bin/python -m tools.settings_page"


def test_every_setting_is_in_one_table() -> None:
    for key, declared in DECLARED.items():
        found = [group for group in SettingGroup if f"`{declared.variables[-1]}`" in table([group])]
        assert len(found) == 1, key
        assert PAGE.read_text().count(f"| `{declared.variables[-1]}`") == 1


def test_a_table_that_was_edited_is_made_again() -> None:
    page = PAGE.read_text()
    edited = page.replace("| `SULINA_DATA` |", "| `SULINA_DATEN` |")
    assert edited != page
    assert with_tables(edited) == page

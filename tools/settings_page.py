"""Make the tables of docs/reference/settings.md from the declarations of the settings.

.venv/bin/python -m tools.settings_page           # writes the tables; `make fix` calls this
.venv/bin/python -m tools.settings_page --check   # fails where the page is out of date
"""

import re
import sys
from pathlib import Path
from typing import Literal, get_args, get_origin

from sulina.config import DECLARED, DeclaredSetting
from sulina.setting import SecondsBetween, SettingGroup

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "settings.md"
TABLE = re.compile(r"(<!-- Made by tools/settings_page\.py: ([a-z, ]+) -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)
HEAD = ("key in the file", "flag", "environment", "default", "meaning")


def with_tables(page: str) -> str:
    """Return the page with each table as the declarations have it."""

    def made(found: re.Match[str]) -> str:
        return found[1] + table([SettingGroup(name) for name in found[2].split(", ")]) + found[4]

    return TABLE.sub(made, page)


def table(groups: list[SettingGroup]) -> str:
    """Return the table of these groups: a line for each setting, and no column that is empty."""
    rows = [_cells(declared) for declared in DECLARED.values() if declared.setting.group in groups]
    columns = [number for number in range(len(HEAD)) if any(row[number] for row in rows)]
    lines = [HEAD, ("---",) * len(HEAD), *rows]
    return "".join(f"| {' | '.join(line[number] for number in columns)} |\n" for line in lines)


def _cells(declared: DeclaredSetting) -> tuple[str, ...]:
    flag = "" if declared.flag is None else _code(declared.flag)
    variables = ", ".join(map(_code, reversed(declared.variables)))
    return _code(declared.field), flag, variables, _default(declared), _meaning(declared)


def _default(declared: DeclaredSetting) -> str:
    value = declared.default
    if declared.setting.default is not None:
        return _in_the_file(declared.setting.default)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return _code(str(value).lower())
    if isinstance(value, float):
        return _code(f"{value:g}")
    if isinstance(value, int) and declared.field.endswith("bytes_max"):
        return f"{_code(str(value))}: {value >> 20} MiB"
    return _code(str(value))


def _meaning(declared: DeclaredSetting) -> str:
    text, read = _in_the_file(declared.setting.help), declared.setting.read
    if isinstance(read, SecondsBetween):
        return f"{text} {str(read).capitalize()}."
    if get_origin(declared.type) is Literal:
        return f"{text} One of {', '.join(map(_code, get_args(declared.type)))}."
    return text


def _in_the_file(text: str) -> str:
    """Return a text of help with the keys of the file instead of flags, and with URLs and variables as code."""
    text = re.sub(r"--([a-z-]+)", lambda flag: _code(flag[1].replace("-", "_")), text)
    return re.sub(r"[a-z0-9]+://(\S*[^\s.,])?|SULINA_[A-Z_]+", lambda found: _code(found[0]), text)


def _code(text: str) -> str:
    return f"`{text}`"


def main() -> int:
    """Write the tables, or check them."""
    page = PAGE.read_text()
    made = with_tables(page)
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(made)
    elif made != page:
        print(f"{PAGE.name} is out of date: run .venv/bin/python -m tools.settings_page")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

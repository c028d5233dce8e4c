"""How a setting of a node is declared: once, at the field that holds its value.

A field of type `Annotated[…, Setting(…)]` is a setting if its dataclass is `sulina.config.Settings` or a part of it.
Keys of the file, variables of the environment, options of commands and the tables of docs/reference/settings.md are
derived from these declarations.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sulina.errors import InvalidSettings

ReadValue = Callable[[Any, str], Any]  # takes a value, and what an error calls it


class SettingGroup(StrEnum):
    """Settings that are shown together."""

    NODE = "node"
    STORES = "stores"  # that the brokers of a cluster share
    CLUSTER = "cluster"
    LIMITS = "limits"  # a table in the file; none of them has a flag


@dataclass(frozen=True, slots=True)
class Setting:
    """What the field says about a setting. Its name and its default are those of the field."""

    read: ReadValue
    help: str
    group: SettingGroup = SettingGroup.NODE
    has_flag: bool = True
    default: str | None = None  # what help shows instead of the default itself
    also: tuple[str, ...] = ()  # other variables of the environment that set it; its own counts more


# How a value is read, from a file, the environment or a flag.


def text(value: Any, name: str) -> str:
    """Read text that is not empty.

    Raises:
        InvalidSettings: the value is something else.
    """
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise InvalidSettings(f"{name}: must be text that is not empty, not {value!r}")
    return value


def yes_or_no(value: Any, name: str) -> bool:
    """Read `true` or `false`, or one of the other words for them.

    Raises:
        InvalidSettings: the value is something else.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _YES | _NO:
        return value.lower() in _YES
    raise InvalidSettings(f"{name}: must be true or false, not {value!r}")


_YES = {"true", "1", "yes", "on"}
_NO = {"false", "0", "no", "off"}


def count(value: Any, name: str) -> int:
    """Read a whole number above 0.

    Raises:
        InvalidSettings: the value is something else.
    """
    number = value
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value, re.ASCII):
        number = int(value)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 2**63:
        raise InvalidSettings(f"{name}: must be a whole number above 0, not {value!r}")
    return number


@dataclass(frozen=True, slots=True)
class SecondsBetween:
    """Reads seconds within bounds."""

    least: float
    most: float

    def __call__(self, value: Any, name: str) -> float:
        """Read a number of seconds.

        Raises:
            InvalidSettings: the value is something else, or out of bounds.
        """
        is_text = isinstance(value, str) and re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value, re.ASCII)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        number = float(value) if is_text or is_number else -1.0
        if not self.least <= number <= self.most:
            raise InvalidSettings(f"{name}: must be seconds {self}, not {value!r}")
        return number

    def __str__(self) -> str:
        return f"from {self.least:g} to {self.most:g}"

"""The settings that `Settings` and its parts declare, by their keys in the file."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_args, get_type_hints

from sulina.config.settings import Settings
from sulina.setting import Setting, SettingGroup

PREFIX = "SULINA_"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSetting:
    """A setting with its names."""

    setting: Setting
    type: Any  # of the field
    default: Any
    part: str | None  # the field of `Settings` that holds the dataclass with this setting; None: it is of `Settings`
    field: str

    @property
    def key(self) -> str:
        """Return the name in the file: `broker_id`; a limit has its table before the name."""
        return f"{SettingGroup.LIMITS}.{self.field}" if self.setting.group == SettingGroup.LIMITS else self.field

    @property
    def flag(self) -> str | None:
        """Return the option of a command: `--broker-id`; None: there is no option."""
        has_flag = self.setting.has_flag and self.setting.group != SettingGroup.LIMITS
        return flag_name(self.key) if has_flag else None

    @property
    def variables(self) -> list[str]:
        """Return the variables of the environment, from the weakest to the strongest."""
        return [*self.setting.also, environment_name(self.key)]


def environment_name(key: str) -> str:
    """Return the variable that sets a key: `SULINA_BROKER_ID`, `SULINA_LIMITS_TOPICS_MAX`."""
    return PREFIX + key.replace(".", "_").upper()


def flag_name(key: str) -> str:
    """Return the option that sets a key: `--broker-id`."""
    return f"--{key.replace('_', '-')}"


def _declared(holder: Any, part: str | None = None) -> Iterator[DeclaredSetting]:
    """Yield the settings of a dataclass, given with its defaults, and of its parts."""
    types = get_type_hints(type(holder), include_extras=True)
    for each in fields(holder):
        value, kind = getattr(holder, each.name), types[each.name]
        if is_dataclass(value):
            yield from _declared(value, each.name)
        for setting in get_args(kind)[1:]:
            if isinstance(setting, Setting):
                yield DeclaredSetting(
                    setting=setting, type=get_args(kind)[0], default=value, part=part, field=each.name
                )


DECLARED = {declared.key: declared for declared in _declared(Settings())}

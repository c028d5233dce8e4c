"""The options of `serve`, `doctor` and `cluster recover` that are settings of a node, made from their declarations."""

from collections.abc import Callable
from dataclasses import make_dataclass
from typing import Annotated, Any, TypeVar

from cyclopts import Group, Parameter

from sulina.config import DECLARED, DeclaredSetting
from sulina.setting import SettingGroup

_CLUSTER = Group("Cluster", help="Settings that make a node a broker of a cluster; see docs/guides/cluster.md.")


class SettingFlags:
    """Options that are settings. An option that was not given is None."""

    def given(self) -> dict[str, Any]:
        """Return the options by the keys of the settings."""
        return dict(vars(self))


Flags = TypeVar("Flags", bound=SettingFlags)


def _options_of(*groups: SettingGroup) -> Callable[[type[Flags]], type[Flags]]:
    """Give a class a field for each setting of these groups that has a flag."""

    def with_options(flags: type[Flags]) -> type[Flags]:
        options = [
            (declared.field, Annotated[declared.type | None, _parameter(declared)], None)
            for declared in DECLARED.values()
            if declared.setting.group in groups and declared.flag is not None
        ]
        here = {"__module__": __name__}
        made: type[Flags] = make_dataclass(
            flags.__name__, options, bases=(flags,), namespace=here, frozen=True, kw_only=True
        )
        return made

    return with_options


def _parameter(declared: DeclaredSetting) -> Parameter:
    setting = declared.setting
    shown = setting.default
    if shown is None and declared.default is not None and declared.default is not False:
        shown = f"{declared.default:g}" if isinstance(declared.default, float) else str(declared.default)
    return Parameter(help=setting.help, show_default=shown)


@Parameter(name="*")
@_options_of(SettingGroup.NODE)
class NodeFlags(SettingFlags):
    """The settings of every node."""


@Parameter(name="*", group=_CLUSTER)
@_options_of(SettingGroup.STORES)
class StoreFlags(SettingFlags):
    """The stores that the brokers of a cluster share."""


@Parameter(name="*", group=_CLUSTER)
@_options_of(SettingGroup.STORES, SettingGroup.CLUSTER)
class ClusterFlags(SettingFlags):
    """All settings of a broker in a cluster."""


NOTHING_GIVEN = NodeFlags()
ALONE = ClusterFlags()
STORES = StoreFlags()

"""The settings of a node: `settings` declares them, `values` reads them, `sources` finds them and checks them.

A part of the system that has settings of its own declares them itself (`sulina.setting`), and is a part of `Settings`.
"""

from sulina.config.declared import DECLARED, DeclaredSetting, environment_name
from sulina.config.settings import DEFAULT_BROKER_ID, Settings
from sulina.config.sources import load
from sulina.config.values import DEFAULT_HTTP, EtcdAddress, LogFormat, LogLevel, is_loopback

__all__ = [
    "DECLARED",
    "DEFAULT_BROKER_ID",
    "DEFAULT_HTTP",
    "DeclaredSetting",
    "EtcdAddress",
    "LogFormat",
    "LogLevel",
    "Settings",
    "environment_name",
    "is_loopback",
    "load",
]

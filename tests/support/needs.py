"""Programs that tests need beyond Python: etcd and Java.

A test that needs one of them fails without it, and says how to get it. Told `SULINA_WITHOUT=etcd,java`, such tests are
left out instead, and the last lines of the run say so. `python -m tests.support.needs` checks before any test starts.

A test needs etcd where it uses the fixture `etcd`, and Java where it uses the fixture `spark`; others are marked
`@pytest.mark.needs("java")`.
"""

import functools
import os
import sys
from collections.abc import Callable

import pytest

from sulina.errors import SulinaError


def _find_etcd() -> str:
    from sulina.cli.cluster.local import find_etcd

    return find_etcd()


def _find_java() -> str:
    from sulina.spark.session import check_java  # here, because few runs need Spark imported

    return check_java()


PROGRAMS: dict[str, Callable[[], str]] = {"etcd": _find_etcd, "java": _find_java}
FIXTURES = {"etcd": "etcd", "spark": "java"}  # fixture: the program that it starts
REMEDY = "SULINA_WITHOUT={name} leaves out the tests that need it"


def told_without() -> frozenset[str]:
    """Return the programs that this run is told to do without.

    Raises:
        ValueError: SULINA_WITHOUT names something else.
    """
    names = frozenset(name for name in os.environ.get("SULINA_WITHOUT", "").split(",") if name)
    if unknown := names - PROGRAMS.keys():
        raise ValueError(f"SULINA_WITHOUT={','.join(sorted(unknown))}: it takes {', '.join(PROGRAMS)}")
    return names


@functools.cache
def why_missing(name: str) -> str | None:
    """Return why a program cannot be used and how to get it; None if it can."""
    try:
        PROGRAMS[name]()
    except SulinaError as error:
        return ": ".join([str(error), *getattr(error, "__notes__", ())])
    return None


def require(name: str) -> None:
    """Skip the running test where the run is told to do without a program; fail it where the program is missing."""
    if name in told_without():
        pytest.skip(f"needs {name}: make test without SULINA_WITHOUT={name}")
    if (why := why_missing(name)) is not None:
        pytest.fail(f"{why}; or {REMEDY.format(name=name)}", pytrace=False)


def programs_of(item: pytest.Item) -> set[str]:
    """Return the programs that a test needs, by its fixtures and marks."""
    by_fixture = {FIXTURES[name] for name in getattr(item, "fixturenames", ()) if name in FIXTURES}
    return by_fixture | {name for mark in item.iter_markers("needs") for name in mark.args}


def main() -> int:
    """Say which programs are missing; return 1 if any is that the run was not told to do without."""
    try:
        missing = [(name, why) for name in PROGRAMS if name not in told_without() and (why := why_missing(name))]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    for name, why in missing:
        print(f"make test needs {name}: {why}; or {REMEDY.format(name=name)}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())

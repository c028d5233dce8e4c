"""The command line itself: quick to import, whole in its documents, helpful about what it does not know."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App, Argument

from sulina.cli import app, run
from sulina.config import DECLARED
from tests.cli.conftest import ended, environment

DOCUMENTS = Path(__file__).parent.parent.parent / "docs" / "reference"
HEAVY = (
    "numba", "numpy", "pyarrow", "starlette", "uvicorn", "websockets", "structlog", "apsw", "opentelemetry", "grpc",
    "obstore", "rich.live",
)  # fmt: skip


def commands(parent: App = app, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    """Every command with the words that call it."""
    for name in parent:
        if name in ("--help", "-h", "--version"):
            continue
        child = parent[name]
        yield (*path, name), child
        if child.default_command is None:
            yield from commands(child, (*path, name))


def arguments(command: App) -> list[Argument]:
    """What a command takes, and shows."""
    if command.default_command is None:
        return []
    collection = command.assemble_argument_collection(default_parameter=app.default_parameter, parse_docstring=True)
    return [argument for argument in collection if argument.show]


def flags(command: App) -> list[str]:
    """Every flag of a command."""
    return [name for argument in arguments(command) for name in argument.names if name.startswith("-")]


def sections() -> dict[str, str]:
    """The parts of the reference, by their headings."""
    parts = (DOCUMENTS / "cli.md").read_text().split("\n## ")[1:]
    return {part.partition("\n")[0]: part for part in parts}


def _words(title: str) -> list[str]:
    return title.rstrip("`").split(" ")


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys, sulina.cli; sulina.cli.run(['--help']); sulina.cli.run(['topic', 'create', '--help'])\n"
        "sulina.cli.run(['cluster', 'start', '--help']); sulina.cli.run(['broker', 'drain', '--help'])\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("path", [path for path, _ in commands()], ids=" ".join)
def test_every_command_is_in_the_reference_with_all_its_flags(path: tuple[str, ...]) -> None:
    found = dict(commands())[path]
    if found.default_command is None:
        return
    heading = ["`sulina", *path]
    section = next((text for title, text in sections().items() if _words(title)[: len(heading)] == heading), None)
    assert section is not None, f"docs/reference/cli.md has no section {' '.join(heading)}`"
    missing = [flag for flag in flags(found) if f"`{flag}" not in section and flag not in ("--url", "--json")]
    assert not missing, f"{' '.join(heading)}` lacks {missing}"


@pytest.mark.parametrize("path", [path for path, _ in commands()], ids=" ".join)
def test_every_command_and_every_flag_has_help(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*path, "--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: sulina")
    found = dict(commands())[path]
    assert found.help
    silent = [argument.name for argument in arguments(found) if not argument.parameter.help]
    assert not silent, f"no help for {silent}"


def test_every_setting_is_in_the_reference() -> None:
    text = (DOCUMENTS / "settings.md").read_text()
    for declared in DECLARED.values():
        names = [declared.field, *declared.variables, *filter(None, [declared.flag])]
        assert not [name for name in names if f"`{name}`" not in text]


def test_an_unknown_command_is_answered_with_the_nearest() -> None:
    done = ended("topic", "lst")
    assert (done.code, done.out) == (2, "")
    assert 'Did you mean "list"?' in done.err
    assert "sulina topic --help" in done.err
    assert ended("serv", "--json").error["code"] == "usage"


@pytest.mark.parametrize("words", [["topic", "show"], ["topic", "list", "--colour"], ["consume", "x", "-n", "many"]])
def test_wrong_usage_has_its_own_exit_code(words: list[str]) -> None:
    done = ended(*words)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_commands(shell: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["--install-completion", "--shell", shell, "--print"]) == 0
    script = capfdbinary.readouterr().out
    assert all(word in script for word in (b"serve", b"subscription", b"key-separator"))


def test_completion_is_installed_where_it_is_told(tmp_path: Path) -> None:
    target = tmp_path / "completions" / "sulina"
    assert run(["--install-completion", "--shell", "bash", "--output", str(target)]) == 0
    assert "sulina" in target.read_text()


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == version("sulina")

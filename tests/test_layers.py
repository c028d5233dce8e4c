"""The layers of docs/architecture.md, held by a test: imports point down only, and the rules do no IO."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "sulina"

# Top to bottom. Parts in one line are siblings: they do not import each other.
LAYERS: list[list[str]] = [
    ["__init__", "_connect"],
    ["cli", "testing"],
    ["node", "config"],
    ["console", "spark"],
    ["listeners", "client"],
    ["broker"],
    ["storage", "metadata"],
    ["ports", "wire", "clock", "byte_budget", "failpoints", "waiting"],
    ["core"],
    ["addresses", "json_values", "setting"],
    ["types", "errors"],
]
# Two parts of one line that belong together.
NEIGHBOURS = {("types", "errors"), ("node", "config"), ("__init__", "_connect"), ("cli", "__init__")}
NEVER = {
    ("client", "broker"),
    ("spark", "broker"),
    ("console", "broker"),
    ("spark", "listeners"),
    ("console", "listeners"),
}

WITHOUT_IO = {"core", "wire"}
IO_MODULES = {"asyncio", "io", "os", "pathlib", "random", "secrets", "socket", "subprocess", "threading", "time"}
IO_CALLS = {"open", "print", "input"}


def part_of(path: Path) -> str:
    """The part of the system that a module belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """The modules that a module imports, wherever in it, with the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module == "io"
            and [name.name for name in node.names] == ["BytesIO"]
        ):
            continue  # bytes that look like a file are still bytes
        if isinstance(node, ast.Import):
            yield from ((name.name, node.lineno) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            yield (node.module or "", node.lineno)


def level(part: str) -> int:
    return next(number for number, parts in enumerate(LAYERS) if part in parts)


def test_imports_point_down() -> None:
    for path in modules():
        part = part_of(path)
        for name, line in imported(path):
            target = [*name.split("."), "__init__"][1] if name.startswith("sulina") else part
            if target == part:
                continue
            where = f"{path.name}:{line}: {part} imports {target}"
            assert (part, target) not in NEVER, where
            assert level(target) > level(part) or (part, target) in NEIGHBOURS, where


def test_rules_do_no_io() -> None:
    for path in modules():
        if part_of(path) not in WITHOUT_IO:
            continue
        for name, line in imported(path):
            assert name.split(".")[0] not in IO_MODULES, f"{path.name}:{line} imports {name}"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in IO_CALLS, f"{path.name}:{node.lineno} calls {node.func.id}"


def test_every_part_has_its_place() -> None:
    known = {part for parts in LAYERS for part in parts}
    assert {part_of(path) for path in modules()} <= known

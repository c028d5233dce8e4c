"""References in docstrings, comments and documents: promise numbers, decisions, files, and names in backticks.

A reference leads somewhere if what it names is in the tree: a promise in tests/promises.toml, a decision in docs/adr, a
file, a module, or a function, class or attribute of the module or class that stands before the dot.
"""

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

from tools.house_rules import Finding, Function, Source

FOLDERS = ("src", "tests", "docs", "tools", "benchmarks", "examples", ".github")
PROMISE = re.compile(r"(?<![\w`./-])([FLPRSU]\d{1,2})(?![\w`/-]|\.\w)")
DECISION = re.compile(r"\bADR (\d{4})\b")
FILE = re.compile(r"(?<![\w/.:*}-])((?:[\w-]+/)*[\w-]+\.(?:py|md))\b(?!\.?\w)")
ELSEWHERE = re.compile(r"\b(?:seeds? \d{3}|mission [A-Z]\d|(?:of|in|by) the (?:seed|mission)s?)\b")
QUOTED = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?:\(\))?")
MODULE_PATH = re.compile(r"([a-z]\w*)(?:/[a-z_]\w*)+/?")
FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
FILE_ENDINGS = re.compile(r"py|md|toml|jsonl?|log|index|lock|txt|ya?ml|sock|html|db|proto")
SERVICE = "S3"  # the object store, which is no promise of ours
# Files of users, in examples.
USERS_FILES = frozenset({"app.py", "job.py", "main.py"})
# Variables of users; the first words of settings, and classes, of Spark and Delta Lake.
USERS_NAMES = frozenset({"ack", "delta", "df", "spark", "ArrowWriter", "DeltaTable", "Trigger"})


class References:
    """What references of a tree can lead to."""

    def __init__(self, tree: Path, source: Source) -> None:
        self._tree, self._source = tree, source

    def dead(self, texts: Mapping[str, str], *, is_code: bool) -> list[Finding]:
        """Find references that lead nowhere. In code, names that the same module uses are its variables."""
        return [
            Finding(f"{name}:{number}", what)
            for name, text in texts.items()
            for number, what in sorted({*self._dead(name, text, is_code=is_code)})
        ]

    def _dead(self, name: str, text: str, *, is_code: bool) -> Iterator[tuple[int, str]]:
        prose = text if is_code else FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)
        module = self._source.modules[name] if is_code else None
        folder = str(Path(name).parent)
        for number, line in enumerate(prose.splitlines(), 1):
            if not line.lstrip().startswith(("import ", "from ")):
                yield from ((number, what) for what in self._dead_in(line, module, folder))

    def _dead_in(self, line: str, module: ast.Module | None, folder: str) -> Iterator[str]:
        for found in PROMISE.findall(line):
            if found not in self.promises and found != SERVICE:
                yield f"{found} is not a promise of tests/promises.toml"
        yield from (f"ADR {one} is not in docs/adr" for one in DECISION.findall(line) if one not in self.decisions)
        yield from (f"{found[0]!r} is a document that readers do not have" for found in ELSEWHERE.finditer(line))
        for found in FILE.findall(line):
            if not self._has_file(found, folder):
                yield f"{found} is not a file of the project"
        for quoted in QUOTED.findall(line):
            if (path := MODULE_PATH.fullmatch(quoted)) and path[1] in self.packages and not self._has_module(quoted):
                yield f"`{quoted}` is not a module"
            if DOTTED.fullmatch(quoted) and not FILE_ENDINGS.fullmatch(quoted.rpartition(".")[2]):
                yield from self._dead_name(quoted.removesuffix("()"), module)

    def _has_file(self, path: str, folder: str) -> bool:
        return path in USERS_FILES or path in self.files or f"{folder}/{path}" in self.files

    def _has_module(self, path: str) -> bool:
        module = self._source.package / path.rstrip("/")
        return module.exists() or module.with_suffix(".py").exists()

    def _dead_name(self, dotted: str, module: ast.Module | None) -> Iterator[str]:
        first, *others = dotted.removeprefix("sulina.").split(".")
        if module is None and first not in self.packages and not first[0].isupper():
            return  # in a document, `memory.origins_max` is a setting, not an attribute of a module
        lacks = f"nothing is called {first}" if first not in self.names else None
        for before, after in zip((first, *others), others, strict=False):
            if lacks is None and before in self.names and after not in self.names[before]:
                lacks = f"{before} has no {after}"
        if lacks is not None and first not in USERS_NAMES | self.libraries and not (module and first in _used(module)):
            yield f"`{dotted}`: {lacks}"

    @cached_property
    def promises(self) -> frozenset[str]:
        """The numbers of tests/promises.toml."""
        path = self._tree / "tests" / "promises.toml"
        chapters = tomllib.loads(path.read_text(encoding="utf-8")).values() if path.exists() else ()
        return frozenset(number for chapter in chapters for number in chapter)

    @cached_property
    def decisions(self) -> frozenset[str]:
        """The numbers of docs/adr."""
        return frozenset(path.name[:4] for path in (self._tree / "docs" / "adr").glob("*.md"))

    @cached_property
    def files(self) -> frozenset[str]:
        """Every file, by its path and by each end of it: `core/log/plan.py`, `log/plan.py`, `plan.py`."""
        paths = [path.relative_to(self._tree) for path in self._tree.glob("*.*")]
        for folder in FOLDERS:
            for ending in ("py", "md"):
                paths += [path.relative_to(self._tree) for path in (self._tree / folder).rglob(f"*.{ending}")]
        return frozenset("/".join(path.parts[start:]) for path in paths for start in range(len(path.parts)))

    @cached_property
    def names(self) -> Mapping[str, frozenset[str]]:
        """What each package, module and class of the source has, by its last name."""
        found: dict[str, set[str]] = defaultdict(set)
        for path in self._source.modules:
            *packages, stem = Path(path).with_suffix("").parts
            defined = {*_defined(self._source.nodes[path])}
            for at, package in enumerate(packages):
                found[package] |= defined | {*packages[at + 1 :], stem}
            found[stem] |= defined
        for _path, node in self._source.classes:
            found[node.name] |= {*_defined(ast.walk(node))}
        for _path, node in self._source.classes:
            for base in node.bases:
                found[node.name] |= found.get(getattr(base, "id", ""), set())
        return {name: frozenset(inner) for name, inner in found.items()}

    @cached_property
    def packages(self) -> frozenset[str]:
        """The packages of the source."""
        return frozenset(name.split("/")[0] for name in self._source.modules if "/" in name)

    @cached_property
    def libraries(self) -> frozenset[str]:
        """What the source imports from elsewhere, and the standard library."""
        imported = set(sys.stdlib_module_names)
        for module in self._source.modules.values():
            for node in module.body:
                if isinstance(node, ast.Import):
                    imported |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    imported.add(node.module.split(".")[0])
        return frozenset(imported)


def _defined(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the functions, classes, variables and attributes that a piece of code defines."""
    for inner in nodes:
        if isinstance(inner, Function | ast.ClassDef):
            yield inner.name
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id
        elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            yield inner.attr


def _used(node: ast.AST) -> Iterator[str]:
    """Yield every name that a piece of code uses: a name with a dot may begin with a variable."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr
        elif isinstance(inner, ast.arg | ast.keyword) and inner.arg:
            yield inner.arg

"""Rules about names and words that can be counted without running the code. `tools/house.py` prints the counts."""

import ast
import re
from collections import defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef

WORDS_TO_AVOID = {
    "whoever": re.compile(r"\bwhoever\b", re.IGNORECASE),
    "anew": re.compile(r"\banew\b", re.IGNORECASE),
    "so many": re.compile(r"\bso many\b", re.IGNORECASE),
    "so long": re.compile(r"\bso long\b", re.IGNORECASE),
    "is none": re.compile(r"\bis none\b"),  # `is None` is Python
    "keeps nothing": re.compile(r"\b(?:keeps|keep|kept) nothing\b", re.IGNORECASE),
    "let go": re.compile(r"\blet(?:s|ting)?[ _](?:\w+[ _])?go\b", re.IGNORECASE),
}
DOCSTRING_STARTS_TO_AVOID = ("Of", "That")

# Errors that a caller does not handle, so a docstring need not name them.
NOT_TOLD = {"AssertionError", "NotImplementedError", "StopIteration", "StopAsyncIteration", "AttributeError"}

# Verbs that docstrings begin with, in the imperative. A verb that is missing is added to the file.
VERBS = frozenset((Path(__file__).parent / "docstring_verbs.txt").read_text(encoding="utf-8").split())
ALSO_NOUNS = frozenset(
    {
        "batch",
        "list",
        "map",
        "match",
        "name",
        "number",
        "order",
        "page",
        "place",
        "queue",
        "record",
        "set",
        "state",
        "stream",
    }
    | {"type"}
)
ARTICLES = frozenset({"a", "an", "the", "this", "every", "each", "no", "all", "one"})
OTHER_STARTS = frozenset({"called"})  # for methods that others call: "Called when the connection is lost."


@dataclass(frozen=True, slots=True)
class Finding:
    """One place in the source."""

    where: str  # path:line
    what: str

    def __str__(self) -> str:
        return f"{self.where}  {self.what}"


class Source:
    """The parsed modules of `src/sulina`, without generated ones."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.modules: dict[str, ast.Module] = {}
        self.texts: dict[str, str] = {}
        self.nodes: dict[str, list[ast.AST]] = {}  # of each module
        self.classes: list[tuple[str, ast.ClassDef]] = []  # each with the name of its module
        for path in sorted(package.rglob("*.py")):
            if path.name.endswith("_pb2.py"):
                continue
            name = str(path.relative_to(package))
            self.texts[name] = path.read_text(encoding="utf-8")
            self.modules[name] = module = ast.parse(self.texts[name])
            self.nodes[name] = nodes = [*ast.walk(module)]
            self.classes += [(name, node) for node in nodes if isinstance(node, ast.ClassDef)]

    def lines_by_package(self) -> dict[str, tuple[int, int]]:
        """Count the modules and lines of each package."""
        counts: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for name, text in self.texts.items():
            package = name.split("/")[0] if "/" in name else "(top)"
            modules, lines = counts[package]
            counts[package] = modules + 1, lines + text.count("\n")
        return dict(sorted(counts.items()))

    @cached_property
    def functions(self) -> list[tuple[str, Function, bool]]:
        """Each function with the name of its module, and whether it is public: so are its class and itself."""
        return [
            (name, function, is_public)
            for name, module in self.modules.items()
            for function, is_public in _functions(module, is_public=True)
        ]


def _functions(node: ast.AST, *, is_public: bool) -> Iterator[tuple[Function, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield child, is_public and not child.name.startswith("_")
            yield from _functions(child, is_public=False)
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, is_public=is_public and not child.name.startswith("_"))
        else:
            yield from _functions(child, is_public=is_public)


def names_used_twice(source: Source) -> dict[str, list[str]]:
    """Find class names that are defined in more than one place."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, node in source.classes:
        found[node.name].append(f"{module}:{node.lineno}")
    return {name: places for name, places in sorted(found.items()) if len(places) > 1}


def functions_that_raise(source: Source) -> tuple[list[Finding], list[Finding]]:
    """Find public functions with a `raise` in their own body: those whose docstring has `Raises:`, and the others."""
    told: list[Finding] = []
    untold: list[Finding] = []
    for module, function, is_public in source.functions:
        if is_public and (raised := set(_raised(function)) - NOT_TOLD):
            kind = told if "Raises:" in (ast.get_docstring(function) or "") else untold
            kind.append(Finding(f"{module}:{function.lineno}", f"{function.name} raises {', '.join(sorted(raised))}"))
    return told, untold


def _raised(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(child, ast.Raise) and child.exc is not None:
            raised = child.exc.func if isinstance(child.exc, ast.Call) else child.exc
            if isinstance(raised, ast.Name) and raised.id[:1].isupper():
                yield raised.id
            elif isinstance(raised, ast.Attribute) and raised.attr[:1].isupper():
                yield raised.attr
        yield from _raised(child)


def documented(source: Source) -> Iterator[tuple[str, Function, str]]:
    """Yield the functions and methods that have a docstring, but for properties."""
    for module, function, _is_public in source.functions:
        if (text := ast.get_docstring(function)) and not is_property(function):
            yield module, function, text


def docstrings_without_verb(source: Source) -> list[Finding]:
    """Find docstrings of functions that do not begin with a verb. Properties may begin with a noun."""
    return [
        Finding(f"{module}:{function.lineno}", f"{function.name}: {text.splitlines()[0]}")
        for module, function, text in documented(source)
        if not begins_with_verb(text)
    ]


def is_property(function: Function) -> bool:
    """Tell whether a function is read as an attribute."""
    names = {_last_name(decorator) for decorator in function.decorator_list}
    return bool(names & {"property", "cached_property", "setter"})


def _last_name(decorator: ast.expr) -> str:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def begins_with_verb(text: str) -> bool:
    """Tell whether a sentence begins with a verb: "Return …", "Returns …", not "Name of …" or "The name …"."""
    words = re.findall(r"[\w'`-]+", text.splitlines()[0]) if text.strip() else []
    if not words or not words[0].isalpha():
        return False
    first, following, third = (*(word.lower() for word in words[:3]), "", "")[:3]
    if first in OTHER_STARTS:
        return True
    if first in VERBS:
        is_clause = (
            following == "that" and third in ARTICLES
        )  # "Record that a batch is stored", not "Record that is stored"
        return is_clause or not (first in ALSO_NOUNS and following in ("of", "that", "and", "for", "in"))
    return any(base in VERBS and base not in ALSO_NOUNS for base in _base_forms(first))


def _base_forms(word: str) -> Iterator[str]:
    if word.endswith("s"):
        yield word[:-1]
    if word.endswith("es"):
        yield word[:-2]
    if word.endswith("ies"):
        yield word[:-3] + "y"


def words_to_avoid(texts: dict[str, str]) -> dict[str, list[Finding]]:
    """Find the lines with each word that hides its subject."""
    return {
        word: [
            Finding(f"{name}:{number}", line.strip())
            for name, text in texts.items()
            for number, line in enumerate(text.splitlines(), 1)
            for _match in pattern.finditer(line)
        ]
        for word, pattern in WORDS_TO_AVOID.items()
    }


def docstrings_with_bad_start(source: Source) -> list[Finding]:
    """Find docstrings of modules, classes and functions that begin with "Of" or "That"."""
    return [
        Finding(f"{name}:{getattr(node, 'lineno', 1)}", text.splitlines()[0])
        for name, nodes in source.nodes.items()
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | Function)
        and (text := ast.get_docstring(node) or "").startswith(tuple(f"{word} " for word in DOCSTRING_STARTS_TO_AVOID))
    ]


# Public methods of named tuples, in spite of the underscore.
NOT_PRIVATE = frozenset({"_asdict", "_fields", "_make", "_replace"})
OWN = frozenset({"self", "cls"})
OUR_PACKAGES = frozenset({"sulina", "tests", "tools", "benchmarks"})
MAYBE_PRIVATE = re.compile(
    r"(?<!\bself)(?<!\bcls)\._[A-Za-z]|, \"_[A-Za-z]|import .*\b_[A-Za-z]|^    _[A-Za-z]\w*,$", re.MULTILINE
)


def private_attributes(texts: dict[str, str], modules: Container[str] = ()) -> list[Finding]:
    """Find the private attributes of other objects that a module uses, replaces or imports.

    Those of a library's modules and classes do not count: it may have no public way. Nor do private `modules` of ours.
    """
    return [
        Finding(f"{name}:{line}", what)
        for name, text in texts.items()
        if MAYBE_PRIVATE.search(text)  # parsing takes longer than everything else
        for line, what in sorted({*_private(ast.parse(text))})
        if what.rpartition(".")[2] not in modules
    ]


def _private(module: ast.Module) -> Iterator[tuple[int, str]]:
    nodes = [*ast.walk(module)]
    exempt = OWN.union(*map(_imported_from_libraries, nodes))
    for node in nodes:
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            owner = node.value
            if not (isinstance(owner, ast.Name) and owner.id in exempt) and not _is_super(owner):
                yield node.lineno, f"{ast.unparse(owner)}.{node.attr}"
        elif isinstance(node, ast.Call) and len(node.args) > 1 and _is_setattr(node.func):
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and _is_private(name.value):
                yield node.lineno, f"{ast.unparse(node.args[0])}.{name.value}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sulina"):
            yield from ((node.lineno, f"{node.module}.{name.name}") for name in node.names if _is_private(name.name))


def _imported_from_libraries(node: ast.AST) -> Iterator[str]:
    is_ours = isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OUR_PACKAGES
    if isinstance(node, ast.Import | ast.ImportFrom) and not is_ours:
        yield from (alias.asname or alias.name for alias in node.names if alias.name.split(".")[0] not in OUR_PACKAGES)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NOT_PRIVATE and name != "_"


def _is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _is_setattr(function: ast.AST) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("setattr", "getattr", "delattr", "object")  # patch.object


PUBLISHES = re.compile(r"(publish|produce)(_\w+)?")
READS = re.compile(r"(read|consume|consumer|fetch|subscribe)(_\w+)?")
NOT_A_WAY = re.compile(r"\w+_(policy|schema)|read_only")


def ways_of_client(source: Source) -> dict[str, list[str]]:
    """List the public methods that publish and that read, of the public classes of the client and of their bases."""
    names = public_names(source)
    classes = {
        node.name: node for module, node in source.classes if module.startswith(("client/", "_connect", "__init__"))
    }
    found: dict[str, set[str]] = {"publish": set(), "read": set()}
    for name in sorted(names & classes.keys()):
        for method in _methods(name, classes):
            for way, pattern in (("publish", PUBLISHES), ("read", READS)):
                if pattern.fullmatch(method) and not NOT_A_WAY.fullmatch(method):
                    found[way].add(f"{name}.{method}")
    return {way: sorted(methods) for way, methods in found.items()}


def public_names(source: Source) -> set[str]:
    """Return what `sulina` and `sulina.client` list in `__all__`."""
    return {
        element.value
        for name in ("__init__.py", "client/__init__.py")
        for node in source.modules[name].body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
        for element in getattr(node.value, "elts", [])
        if isinstance(element, ast.Constant) and isinstance(element.value, str)
    }


def _methods(name: str, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    for node in classes[name].body:
        if isinstance(node, Function):
            yield node.name
        elif isinstance(node, ast.Assign):  # publish = blocking(Client.publish)
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name):
            yield node.target.id
    for base in classes[name].bases:
        inner = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(inner, ast.Name) and inner.id in classes and inner.id != name:
            yield from _methods(inner.id, classes)

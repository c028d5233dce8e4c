"""Hooks of mkdocs: pages that are made from files outside docs/, and links that leave docs/.

README, CONTRIBUTING and CHANGELOG become pages. A link to a source file must lead to one that exists; the site has no
copy of it, so it is shown as a path.
"""

import os
import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import sulina

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are not files of docs/, and name the decisions in the navigation."""
    for source, target in PAGES.items():
        with open(os.path.join(ROOT, source), encoding="utf-8") as file:
            files.append(File.generated(config, target, content=file.read()))
    files.append(File.generated(config, "reference/python.md", content=python_page()))
    decisions = sorted(file.src_uri for file in files if file.src_uri.startswith("adr/"))
    for part in config.nav or []:
        for entry in next(iter(part.values())):
            if isinstance(entry, dict) and "adr/" in entry.values():
                entry["Decisions"] = decisions
    return files


def python_page() -> str:
    """Return the page of every public name, in the order of their docstrings."""
    return "# Python\n\n" + "\n\n".join(f"::: sulina.{name}" for name in sulina.__all__) + "\n"


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    """Rewrite the links that leave docs/, outside of code blocks."""
    source = next((name for name, target in PAGES.items() if target == page.file.src_uri), None)
    folder = "" if source else os.path.join("docs", os.path.dirname(page.file.src_uri))

    def rewritten(link: re.Match[str]) -> str:
        mark, text, target, anchor = link.groups()
        if "://" in target or target.startswith("mailto:"):
            return link.group()
        path = os.path.normpath(os.path.join(folder, target))
        is_page = files.get_file_from_path(path.removeprefix("docs/")) is not None
        if not is_page and not os.path.exists(os.path.join(ROOT, path)):
            raise PluginError(f"{page.file.src_uri}: a link leads to {target}, which does not exist")
        if path in PAGES:
            path = os.path.join("docs", PAGES[path])
        if os.path.isdir(os.path.join(ROOT, path)) or not path.startswith("docs/"):
            return text if text.startswith("`") else f"`{text}`"
        here = os.path.dirname(page.file.src_uri)
        return f"{mark}[{text}]({os.path.relpath(path.removeprefix('docs/'), here or '.')}{anchor or ''})"

    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(rewritten, markdown[end : fence.start()]), fence.group()]
        end = fence.end()
    return "".join([*parts, LINK.sub(rewritten, markdown[end:])])

"""Reads the documents of a repository: titles, anchors, links, and the order of the pages.

Without mkdocs, so that the tests can check all of it where mkdocs is not installed.
"""

import fnmatch
import functools
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DOCS: Final = "docs"
OUTSIDE: Final = "repository"
"""The folder of the site with files that are not in docs/."""
PICTURES: Final = (".svg", ".png", ".jpg", ".ico")

_FENCE: Final = re.compile(r"^([ \t]*)(```+|~~~+).*?^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
_INLINE: Final = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_LINK: Final = re.compile(r"(?<=\]\()(?P<target>[^)\s]+)(?=[^)]*\))")
_HEADING: Final = re.compile(r"^(#{1,6}) +(.*?) *#*$", re.MULTILINE)
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


@dataclass(frozen=True)
class Link:
    """Where a link of a page leads: a path from the root of the repository, and an anchor."""

    path: str
    anchor: str


def prose(text: str) -> str:
    """The text with code blanked out, each character in its place."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    return _INLINE.sub(blank, _FENCE.sub(blank, text))


def without_blocks(text: str) -> str:
    return _FENCE.sub("", text)


def title(text: str) -> str:
    """The first heading."""
    found = _HEADING.search(without_blocks(text))
    return found[2].replace("`", "") if found else ""


def slug(heading: str) -> str:
    """The anchor of a heading, as forges and the site make it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """What links to a page may name: the first heading of each name."""
    named = re.findall(r'<a (?:id|name)="([^"]+)"', text)
    return {slug(heading[2]) for heading in _HEADING.finditer(without_blocks(text))} | set(named)


def resolve(page: str, target: str) -> Link | None:
    """A link of a page of the repository; None for one to another host."""
    if _SCHEME.match(target) or target.startswith("//"):
        return None
    path, _, anchor = target.partition("#")
    folder = posixpath.dirname(page)
    return Link(posixpath.normpath(posixpath.join(folder, path)) if path else page, anchor)


def links(page: str, text: str) -> Iterator[Link]:
    for found in _LINK.finditer(prose(text)):
        link = resolve(page, found["target"])
        if link is not None:
            yield link


def replace_links(text: str, replaced: Callable[[str], str]) -> str:
    """The text with other targets; code stays as it is."""
    parts = []
    end = 0
    for found in _LINK.finditer(prose(text)):
        parts += [text[end : found.start()], replaced(found["target"])]
        end = found.end()
    return "".join([*parts, text[end:]])


class Repository:
    """The documents of a work tree, and what they link to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[str, set[str]] = {}

    def pages(self) -> list[str]:
        """All pages in docs/, from there."""
        docs = self.root / DOCS
        return sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))

    def text(self, path: str) -> str:
        return (self.root / path).read_text()

    def target(self, link: Link) -> str:
        """The file that a link leads to: a folder stands for its first page."""
        folder = self.root / link.path
        if not folder.is_dir():
            return link.path
        names = [name for name in ("index.md", "README.md") if (folder / name).exists()]
        names += sorted(path.name for path in folder.glob("*.md"))
        return f"{link.path}/{names[0]}" if names else link.path

    @functools.cached_property
    def outside(self) -> dict[str, str]:
        """The files outside docs/ that pages lead to, each with its place on the site."""
        found: dict[str, str] = {}
        waiting = [f"{DOCS}/{page}" for page in self.pages()]
        waiting += sorted(path.name for path in self.root.glob("*.md"))
        seen: set[str] = set()
        while waiting:
            path = waiting.pop()
            if path in seen or not (self.root / path).exists():
                continue
            seen.add(path)
            if (self.root / path).is_dir():
                found[path] = f"{place(path).removesuffix('.md')}/index.md"
                continue
            if not path.startswith(f"{DOCS}/"):
                found[path] = place(path)
            if path.endswith(".md"):
                waiting += [self.target(link) for link in links(path, self.text(path))]
        return found

    def _anchors(self, path: str) -> set[str]:
        if path not in self._known:
            self._known[path] = anchors(self.text(path))
        return self._known[path]

    def on_site(self, link: Link) -> str:
        """Where a link leads to on the site, from its root."""
        path = self.target(link)
        return self.outside.get(path) or place(path)

    def page_of(self, path: str) -> str:
        """What the site shows of a file or folder outside docs/, as Markdown."""
        file = self.root / path
        if file.is_dir():
            names = sorted(each.relative_to(file).as_posix() for each in file.rglob("*"))
            return f"# {path}/\n\n" + "".join(f"- `{name}`\n" for name in names)
        return file.read_text() if path.endswith(".md") else as_page(path, file.read_text())

    def broken(self) -> list[str]:
        """Links to files or headings that are not there."""
        pages = [f"{DOCS}/{page}" for page in self.pages()]
        pages += [path for path in self.outside if path.endswith(".md")]
        found = []
        for page in pages:
            for link in links(page, self.text(page)):
                path = self.target(link)
                if not (self.root / path).exists():
                    found.append(f"{page}: {link.path} does not exist")
                elif (self.root / path).is_dir() and path.startswith(f"{DOCS}/"):
                    found.append(f"{page}: {link.path} has no page")
                elif path.endswith(".md") and link.anchor not in {"", *self._anchors(path)}:
                    found.append(f"{page}: {path} has no heading #{link.anchor}")
        return found


def place(path: str) -> str:
    """Where a file of the repository is on the site, from its root."""
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    is_page = path.endswith((".md", *PICTURES))
    return f"{OUTSIDE}/{path}" if is_page else f"{OUTSIDE}/{path}.md"


def as_page(path: str, text: str) -> str:
    """A file that is not Markdown, to be looked at."""
    language = {"py": "python", "yaml": "yaml", "yml": "yaml", "toml": "toml", "json": "json"}
    kind = language.get(path.rpartition(".")[2], "text")
    return f"# {posixpath.basename(path)}\n\n`{path}`\n\n````{kind}\n{text.rstrip()}\n````\n"


def expanded(nav: list[Any], pages: Iterable[str], title_of: Callable[[str], str]) -> list[Any]:
    """The navigation with the pages for which an entry with * stands, in the order of titles.

    An entry takes what no other entry names, and no earlier one took; `**` takes all that is left.
    A section without pages is left out.
    """
    known = sorted(pages, key=lambda page: (title_of(page).lower(), page))
    named = {entry for entry in entries(nav) if "*" not in entry}
    left = [page for page in known if page not in named]
    for entry in sorted((each for each in entries(nav) if "*" in each), key=lambda e: e == "**"):
        taken = [page for page in left if entry == "**" or _is_in(entry, page)]
        left = [page for page in left if page not in taken]
        named.update(taken)
        nav = _with(nav, entry, taken)
    return _without_empty(nav)


def _is_in(entry: str, page: str) -> bool:
    same = posixpath.dirname(entry) == posixpath.dirname(page)
    return same and fnmatch.fnmatchcase(page, entry)


def entries(nav: list[Any]) -> Iterator[str]:
    """The pages of a navigation, in its order."""
    for item in nav:
        if isinstance(item, str):
            yield item
        else:
            for value in item.values():
                yield from entries(value if isinstance(value, list) else [value])


def _with(nav: list[Any], entry: str, pages: list[str]) -> list[Any]:
    made: list[Any] = []
    for item in nav:
        if item == entry:
            made += pages
        elif isinstance(item, dict):
            ((name, value),) = item.items()
            made.append({name: _with(value, entry, pages) if isinstance(value, list) else value})
        else:
            made.append(item)
    return made


def _without_empty(nav: list[Any]) -> list[Any]:
    made: list[Any] = []
    for item in nav:
        if isinstance(item, dict):
            ((name, value),) = item.items()
            inner = _without_empty(value) if isinstance(value, list) else value
            if inner:
                made.append({name: inner})
        else:
            made.append(item)
    return made

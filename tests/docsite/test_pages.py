"""The documents: every link and anchor leads somewhere, and every page is in the navigation."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from docsite.__main__ import foreign
from docsite.pages import (
    DOCS,
    Repository,
    anchors,
    entries,
    expanded,
    links,
    place,
    prose,
    replace_links,
    slug,
    title,
)

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = Repository(ROOT)


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, in which one value is a function of Python."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def settings() -> dict[str, Any]:
    found: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    return found


def navigation() -> list[Any]:
    pages = REPOSITORY.pages()
    return expanded(settings()["nav"], pages, lambda page: title(REPOSITORY.text(f"{DOCS}/{page}")))


def test_every_link_and_anchor_leads_somewhere() -> None:
    assert REPOSITORY.broken() == []


def test_every_page_is_once_in_the_navigation() -> None:
    named = list(entries(navigation()))
    inside = [page for page in named if not page.startswith("repository/")]
    assert sorted(inside) == REPOSITORY.pages()
    outside = set(REPOSITORY.outside.values())
    assert [page for page in named if page.startswith("repository/") and page not in outside] == []


def test_every_page_has_a_title_of_its_own_within_its_folder() -> None:
    titles = [
        (page.rpartition("/")[0], title(REPOSITORY.text(f"{DOCS}/{page}")))
        for page in REPOSITORY.pages()
    ]
    assert [each for each in titles if not each[1]] == []
    assert sorted(set(titles)) == sorted(titles)


def test_a_page_that_nobody_has_listed_finds_its_place() -> None:
    pages = ["index.md", "operate/b.md", "operate/a.md", "operate/new.md", "other/x.md"]
    nav = [
        "index.md",
        {"Operate": ["operate/b.md", "operate/*"]},
        {"Empty": ["no/*"]},
        {"More": ["**"]},
    ]
    assert expanded(nav, pages, lambda page: {"operate/new.md": "Alerts"}.get(page, page)) == [
        "index.md",
        {"Operate": ["operate/b.md", "operate/new.md", "operate/a.md"]},
        {"More": ["other/x.md"]},
    ]


def test_links_in_code_are_none() -> None:
    text = "[a](b.md#c) `[no](x.md)`\n\n```\n[no](y.md)\n```\n[d](../e/f.md) [h](https://h)\n"
    assert [(each.path, each.anchor) for each in links("docs/p/q.md", text)] == [
        ("docs/p/b.md", "c"),
        ("docs/e/f.md", ""),
    ]
    assert len(prose(text)) == len(text)
    assert replace_links(text, str.upper).count("B.MD#C") == 1
    assert "[no](x.md)" in replace_links(text, str.upper)


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("A lost disk", "a-lost-disk"),
        ("Replicas, min.insync.replicas, acks", "replicas-mininsyncreplicas-acks"),
        ("What `log.flush` does", "what-logflush-does"),
        ("[Links](x.md) & more", "links--more"),
    ],
)
def test_anchors_are_those_of_the_forge(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor
    assert anchors(f"# T\n\n## {heading}\n\n```\n## no\n```\n") == {"t", anchor}


def test_files_outside_docs_are_pages_of_the_site() -> None:
    outside = REPOSITORY.outside
    assert outside["ARCHITECTURE.md"] == "repository/ARCHITECTURE.md"
    page = "repository/deploy/pipelines/airflow_dag.py.md"
    assert outside["deploy/pipelines/airflow_dag.py"] == page
    assert place("docs/start/first-steps.md") == "start/first-steps.md"


def test_what_a_page_loads_from_another_host_is_seen() -> None:
    assert foreign('<script src="https://cdn.example/x.js"></script>') != []
    assert foreign("<link rel=stylesheet href=//fonts.example/x.css>") != []
    assert foreign('<img alt="a" src="images/x.svg"><a href="https://example.org">x</a>') == []
    assert foreign("a{background:url( 'https://x.example/y.png')}", is_style=True) != []
    assert foreign("a{background:url(y.png)}", is_style=True) == []


def test_pictures_have_a_text_in_place_and_colours_for_light_and_dark() -> None:
    pictures = sorted((ROOT / DOCS).rglob("concepts/images/*.svg"))
    assert len(pictures) >= 4
    pages = "".join(path.read_text() for path in (ROOT / DOCS / "concepts").glob("*.md"))
    for picture in pictures:
        text = picture.read_text()
        assert "<title" in text
        assert "<desc" in text
        assert "prefers-color-scheme:dark" in text
        (alternative,) = [
            part.rpartition("![")[2] for part in pages.split(f"](images/{picture.name})")[:-1]
        ]
        assert len(alternative) > 80, picture.name


def test_the_index_for_language_models_follows_its_convention() -> None:
    """A title, a summary, and sections of links, all of which exist: llmstxt.org."""
    text = (ROOT / DOCS / "llms.txt").read_text()
    lines = [line for line in text.splitlines() if line]
    assert lines[0].startswith("# ")
    assert lines[1].startswith("> ")
    listed = [line for line in lines if line.startswith("- ")]
    assert all(line.startswith("- [") and "): " in line for line in listed)
    found = [link.path for link in links(f"{DOCS}/llms.txt", text)]
    assert len(found) == len(listed)
    assert [path for path in found if not (ROOT / path).is_file()] == []

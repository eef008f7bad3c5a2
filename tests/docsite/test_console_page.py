"""docs/operate/console.md has every page of the console, with pictures that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/operate/console.md"
PICTURES = ROOT / "docs/operate/pictures"
SECTIONS = ROOT / "console/src/pages/all.ts"
BYTES_MAX = 100_000
NAMED = re.compile(r"pictures/(console-[\w-]+\.png)")
SHOWN = re.compile(r"^!\[(.*)\]\(pictures/(.*)\)$", re.MULTILINE)


def test_every_page_of_the_console_has_its_section_in_the_order_of_the_menu() -> None:
    titles = re.findall(r'\{ path: "[\w-]*", title: "(\w+)"', SECTIONS.read_text())
    assert "Overview" in titles
    (pages,) = re.findall(r"^## Pages\n(.*?)^## ", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert re.findall(r"^### (.+)$", pages, re.MULTILINE) == titles


@pytest.mark.parametrize("page", ["README.md", "docs/operate/console.md", "docs/operate/top.md"])
def test_pictures_that_a_page_names_are_there(page: str) -> None:
    named = set(NAMED.findall((ROOT / page).read_text()))
    assert named
    assert [name for name in named if not (PICTURES / name).is_file()] == []


def test_pictures_are_small_and_shown_with_a_text() -> None:
    pictures = sorted(PICTURES.glob("console-*.png"))
    assert [one.name for one in pictures if one.stat().st_size > BYTES_MAX] == []
    shown = {name: text for text, name in SHOWN.findall(PAGE.read_text())}
    assert sorted(shown) == [one.name for one in pictures]
    assert [name for name, text in shown.items() if len(text) < 20] == []

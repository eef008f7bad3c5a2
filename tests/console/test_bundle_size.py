"""What a browser loads of the console is small, and comes from the broker alone."""

import gzip
import re
from pathlib import Path

BUNDLE = Path(__file__).parents[2] / "src/moldau/edge/http/console/dist"
GZIPPED_BYTES_MAX = 250_000
LOADED = re.compile(r"""(?:src|href|url|import|fetch)\s*[=(]\s*["'`]?(https?:)?//""")


def test_a_browser_loads_less_than_250_kb() -> None:
    loaded = [path for path in BUNDLE.rglob("*") if path.suffix in {".html", ".js", ".css", ".svg"}]
    assert {path.suffix for path in loaded} == {".html", ".js", ".css", ".svg"}
    assert sum(len(gzip.compress(path.read_bytes())) for path in loaded) <= GZIPPED_BYTES_MAX


def test_nothing_is_loaded_from_another_host() -> None:
    for path in BUNDLE.rglob("*.*"):
        found = LOADED.search(path.read_text())
        assert found is None, f"{path.name}: {found}"


def test_the_page_has_no_script_of_its_own() -> None:
    page = (BUNDLE / "index.html").read_text()
    assert "style=" not in page
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert re.findall(r"\son\w+=", page) == []

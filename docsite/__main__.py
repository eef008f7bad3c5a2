"""Builds the site into build/site, and checks that its pages load nothing from other hosts.

Exit status: 1 for a warning of the build, or such a page.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SITE: Final = ROOT / "build" / "site"
_SECONDS_MAX: Final = 300
_TAG: Final = re.compile(
    r"<(?:script|link|img|iframe|source|object|embed|video|audio)\b[^>]*>", re.I
)
_URL: Final = re.compile(r"\b(?:src|srcset|href|data)=[\"']?(?:https?:)?//", re.I)
_STYLE: Final = re.compile(r"(?:url\(\s*[\"']?|@import\s+[\"'])(?:https?:)?//", re.I)


def foreign(text: str, is_style: bool = False) -> list[str]:
    """What a page or style sheet would load from another host; links to follow are none."""
    if is_style:
        return _STYLE.findall(text)
    return [tag[0] for tag in _TAG.finditer(text) if _URL.search(tag[0])]


def loads(site: Path) -> Iterator[str]:
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css", ".svg"):
            for found in foreign(path.read_text(), path.suffix == ".css"):
                yield f"{path.relative_to(site)}: loads from another host: {found}"


def main() -> int:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]
    # The theme announces plans of its own, as a warning.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS_MAX,
        check=False,
    )
    if done.returncode or "WARNING" in done.stdout:
        print(done.stdout, file=sys.stderr)
        return 1
    problems = list(loads(SITE))
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if not problems:
        pages = len(list(SITE.rglob("*.html")))
        print(f"{pages} pages in {SITE}: open {SITE / 'index.html'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

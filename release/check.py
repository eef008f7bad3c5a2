"""Checks that a commit can be released: version, changelog, fragments, tag, deployment.

python -m release.check              before the tag is set
python -m release.check v0.2.0       in CI, for the tag that was pushed

Exit status: 1 with a line for each problem.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from moldau.version import __version__
from release.deploy_files import outdated_files

ROOT: Final = Path(__file__).resolve().parent.parent
FRAGMENTS: Final = ROOT / "changelog.d"
_CANDIDATE: Final = r"(?:a|b|rc)\d+"
_VERSION: Final = re.compile(rf"\d+\.\d+\.\d+(?:{_CANDIDATE})?")
_FRAGMENT: Final = re.compile(r"[\w-]+\.(added|changed|fixed|removed)\.md")
_NOT_A_FRAGMENT: Final = ("README.md", "template.md.jinja")


def fragments(folder: Path = FRAGMENTS) -> list[str]:
    """The names of what is not in the changelog yet."""
    return sorted(path.name for path in folder.iterdir() if path.name not in _NOT_A_FRAGMENT)


def misnamed(names: Iterable[str]) -> list[str]:
    """Fragments that the changelog would leave out."""
    return [name for name in names if not _FRAGMENT.fullmatch(name)]


def problems(version: str, changelog: str, waiting: list[str], tag: str | None) -> list[str]:
    """What keeps this version from being released."""
    found = []
    if not _VERSION.fullmatch(version):
        found.append(f"the version {version} is not X.Y.Z or X.Y.ZrcN: see src/moldau/version.py")
    if tag is not None and tag != f"v{version}":
        found.append(f"the tag is {tag}, the version {version}: the tag must be v{version}")
    if waiting:
        found.append(
            f"{len(waiting)} fragments in changelog.d are not in the changelog: make changelog"
        )
    if not re.search(rf"^## {re.escape(version)}, \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        found.append(f"CHANGELOG.md has no section for {version} with a date: make changelog")
    if re.search(r"^## .*unreleased", changelog, re.MULTILINE):
        found.append("CHANGELOG.md has an unreleased section: merge it into the new one")
    for old in re.findall(rf"^## ({re.escape(version)}{_CANDIDATE}),", changelog, re.MULTILINE):
        found.append(
            f"CHANGELOG.md has a section for the candidate {old}: merge it into the new one"
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tag", nargs="?", help="the tag that was pushed")
    options = parser.parse_args()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    found = problems(__version__, changelog, fragments(), options.tag)
    changed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    if changed:
        found.append(f"{len(changed.splitlines())} files are not committed")
    found += [f"{name} is not what it is to be: make deploy-files" for name in outdated_files()]
    for line in found:
        print(f"error: {line}", file=sys.stderr)
    if not found:
        print(f"{__version__} can be released: git tag -s v{__version__}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

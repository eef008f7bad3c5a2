"""Names, logs, errors, help and documents use the terms of the field (glossary: CONTRIBUTING)."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
GLOSSARY = ROOT / "CONTRIBUTING.md"
PYTHON = (
    "src",
    "sim",
    "faults",
    "fuzz",
    "supply_chain",
    "release",
    "docsite",
    "benchmarks",
    "demo",
)

RETIRED = {
    r"owns": "is responsible for, or what it does",
    r"doors?": "protocol server, listener",
    r"defects?": "bug, internal error",
    r"questions?": "request, RPC",
    r"told": "returned, reported, sent, received",
    r"wish(?:e[sd])?": "desired",
    r"whoever": "name the subject: the client, the leader",
    r"patien(?:ce|t)": "deadline, timeout",
    r"anew": "again, from scratch",
    r"for ever": "forever, permanently",
    r"unasked": "in the background",
    r"hears? of": "receives, learns",
    r"be content": "ignore, succeed if",
    r"met a": "internal error while …",
    r"surroundings": "environment, dependencies",
    r"stewards?": "reconciler",
    r"desk": "request scheduler",
    r"keepers?": "host",
    r"is silent": "does not respond",
    r"(?<!there )(?<!this )is no(?! longer| more than)": "must be, is not a valid",
    r"strangers?": "unknown client",
    r"well being": "health",
    r"found(?:er|ers|ing|ed)": "bootstrap",
    r"shel(?:f|ves)": "delay bucket",
    r"beats?": "heartbeat",
    r"left behind": "leftover, remaining",
    r"elsewhere": "on another broker, in another place",
}
"""What to search for, in lower case with one blank between words, and what to say."""
STORED = re.compile(r'(?:name="wish"|tag="replicas-wished"|_BOOTSTRAP_MARK: Final = "founding")')
"""Names in stored records and RPCs between brokers, which cannot change."""
_SEARCHED = {name: re.compile(rf"\b(?:{name})\b") for name in RETIRED}
_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\s-]+")


def words_of(line: str) -> str:
    """A line as words: identifiers are split, so that `ToldBy` and `_told_by` are found."""
    return _BOUNDARY.sub(" ", line).lower()


def retired_words(path: Path) -> list[str]:
    lines = [words_of(STORED.sub("", line)) for line in path.read_text().splitlines()]
    return [
        f"{path.relative_to(ROOT)}:{number}: {found.group()!r}: say {RETIRED[name]}"
        for number, line in enumerate(lines, 1)
        for name, pattern in _SEARCHED.items()
        if (found := pattern.search(line))
    ]


def test_source_and_documents_use_the_terms_of_the_field() -> None:
    pages = {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - {GLOSSARY}
    sources = [
        path
        for folder in PYTHON
        for path in (ROOT / folder).rglob("*.py")
        if not path.stem.endswith(("_pb2", "_pb2_grpc"))
    ]
    found = [line for path in sorted([*pages, *sources]) for line in retired_words(path)]
    assert found == []


def test_names_of_tests_use_the_terms_of_the_field() -> None:
    """They are sentences, in which members own partitions, and something is no marker."""
    sentences = {name for name in RETIRED if name == "owns" or "is no" in name}
    found = [
        f"{path.relative_to(ROOT)}: {test}: say {RETIRED[name]}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for test in re.findall(r"def (test_\w+)\(", path.read_text())
        for name in RETIRED.keys() - sentences
        if _SEARCHED[name].search(words_of(test))
    ]
    assert found == []


def test_every_retired_word_is_in_the_glossary() -> None:
    text = words_of(GLOSSARY.read_text())
    assert [name for name, pattern in _SEARCHED.items() if not pattern.search(text)] == []

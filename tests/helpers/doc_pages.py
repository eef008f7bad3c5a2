"""Reads the documents: their code blocks, headings and links."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str, language: str, heading: str) -> list[str]:
    """The code blocks of one language under a heading."""
    section = re.split(rf"^## {re.escape(heading)}$", (ROOT / page).read_text(), flags=re.M)[1]
    section = re.split(r"^## ", section, flags=re.M)[0]
    found = re.findall(r"^```(\w*)\n(.*?)^```$", section, flags=re.M | re.S)
    return [text for kind, text in found if kind == language]


_BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>run[^\n]*?) -->\n)?"
    r"^ *```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A code block, and what is said about how it is tested (see tests/test_doc_blocks.py)."""

    page: str
    line: int
    language: str
    text: str
    mark: str

    @property
    def has_commands(self) -> bool:
        """What is printed, or written to files, is of another language: text, yaml."""
        return self.language in ("", "bash", "sh", "shell", "console", "python")

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def all_blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            str(page.relative_to(ROOT)),
            text.count("\n", 0, found.start("language")) + 1,
            found["language"],
            textwrap.dedent(found["text"]),
            found["mark"] or "",
        )
        for found in _BLOCK.finditer(text)
    ]

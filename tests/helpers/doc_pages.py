"""Reads the documents: their code blocks, headings and links."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str, language: str, heading: str) -> list[str]:
    """The code blocks of one language under a heading."""
    section = re.split(rf"^## {re.escape(heading)}$", (ROOT / page).read_text(), flags=re.M)[1]
    section = re.split(r"^## ", section, flags=re.M)[0]
    found = re.findall(r"^```(\w*)\n(.*?)^```$", section, flags=re.M | re.S)
    return [text for kind, text in found if kind == language]

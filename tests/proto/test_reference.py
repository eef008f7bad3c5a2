"""The page about the gRPC API and its .proto file say the same."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "grpc.md"


def test_the_committed_page_is_what_the_proto_file_says(tmp_path: Path) -> None:
    made = tmp_path / "grpc.md"
    subprocess.run(
        [sys.executable, "proto/reference.py", str(made)],
        cwd=ROOT,
        check=True,
        timeout=60,
        stdout=subprocess.DEVNULL,
    )
    assert PAGE.read_text() == made.read_text(), "run: python proto/reference.py"


def test_every_link_within_the_page_leads_somewhere() -> None:
    text = PAGE.read_text()
    lines = text.splitlines()
    titles = {
        line.lstrip("# ").lower().replace(".", "").replace(" ", "-").replace("`", "")
        for line in lines
        if line.startswith("#")
    }
    links = set(re.findall(r"\]\(#([^)]+)\)", text))
    assert links
    assert links <= titles

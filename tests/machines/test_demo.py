"""The demo, as docs/start/demo.md has it: some ten minutes."""

from pathlib import Path

import pytest
from doc_pages import ROOT, Block, all_blocks
from doc_stories import run_script

pytestmark = [pytest.mark.machine, pytest.mark.timeout(3600)]

BLOCKS = all_blocks(ROOT / "docs/start/demo.md")


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_the_demo_finds_nothing_missing_and_nothing_doubled(block: Block, tmp_path: Path) -> None:
    commands = block.text.replace("/tmp/demo", f"{tmp_path}/demo")
    said = run_script(commands.replace("make", f"make -C {ROOT}"), tmp_path, seconds_max=3000)
    assert "\nAll is well" in said

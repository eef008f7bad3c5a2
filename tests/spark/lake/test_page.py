"""What the page about tables says works as pasted."""

import re
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed: no tests of lakes")

pytestmark = pytest.mark.inprocess

ROOT = Path(__file__).parent.parent.parent.parent
PAGE = ROOT / "docs" / "spark" / "lake.md"


def test_the_page_about_tables_works_as_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.M | re.S)
    exec(code.replace("/lake/events", str(tmp_path / "events")), {})
    assert capsys.readouterr().out == "True\nFalse\n1 0\n"

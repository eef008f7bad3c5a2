"""Rows, and what is in a table, for the tests of lakes."""

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed: no tests of lakes")

"""The table of metrics: names by Prometheus' conventions, and a page that is current."""

from pathlib import Path

import pytest

from moldau.edge.http.metrics.reference import PAGE, render
from moldau.edge.http.metrics.table import DEFINITIONS, SECTIONS, family


def test_the_page_is_current() -> None:
    page = (Path(__file__).parents[4] / PAGE).read_text()
    assert page == render(), "run: make docs"


def test_names_follow_the_conventions_of_prometheus() -> None:
    for name, one in DEFINITIONS.items():
        assert name.startswith(("moldau_", "process_")), name
        assert (one.kind == "counter") == name.endswith("_total"), name
        assert not name.endswith(("_count", "_bucket", "_ms", "_kb", "_mb")), name
        if one.kind == "histogram":
            assert name.endswith("_seconds"), name
        assert one.help.endswith("."), name
        assert not {"le", "job", "instance", "quantile"} & set(one.labels), name


def test_every_name_is_defined_once() -> None:
    assert sum(len(section.families) for section in SECTIONS) == len(DEFINITIONS)


def test_what_is_not_in_the_table_cannot_be_exposed() -> None:
    with pytest.raises(KeyError):
        family("moldau_something_else")

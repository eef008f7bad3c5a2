"""The text format, read back by the parser of those who collect it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from moldau.model.prometheus_text import MetricFamily, counter, gauge, render


def read_back(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(text)
    }


def test_the_format_is_the_one_that_is_documented():
    family = MetricFamily("moldau_x_total", "counter", "Two\nlines \\ one.")
    family.add(3, {"topic": 'a"b\\c\nd', "partition": "0"})
    family.add(True)
    assert render([family]) == (
        "# HELP moldau_x_total Two\\nlines \\\\ one.\n"
        "# TYPE moldau_x_total counter\n"
        'moldau_x_total{topic="a\\"b\\\\c\\nd",partition="0"} 3\n'
        "moldau_x_total 1\n"
    )


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False)),
)
def test_any_name_and_number_are_read_back_as_they_were(name, value):
    family = gauge("moldau_y", "About.")
    family.add(value, {"group": name})
    assert read_back(render([family])) == {"moldau_y": [({"group": name}, float(value))]}


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_numbers_without_an_end_have_words(value):
    ((_, found),) = read_back(render([gauge("moldau_y", "About.", value)]))["moldau_y"]
    assert found == value or (math.isnan(found) and math.isnan(value))


def test_a_name_that_is_no_text_spoils_nothing():
    family = gauge("moldau_y", "About.")
    family.add(1, {"group": "a\udcffb"})
    assert read_back(render([family]).encode().decode()) == {"moldau_y": [({"group": "a?b"}, 1.0)]}


def test_what_has_no_samples_is_not_mentioned():
    assert render([gauge("moldau_y", "About."), counter("moldau_z", "About.")]) == ""

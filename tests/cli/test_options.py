"""Values of options: what is accepted, and what an error says."""

import click
import pytest

from moldau.cli.options import Brokers, Duration, Integer, Number
from moldau.cli.pipeline.kind_options import Interval


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5), ("250ms", 0.25), ("30s", 30), ("5m", 300), ("2h", 7200)]
)
def test_a_duration_has_a_unit(text, seconds):
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (Integer(1), "abc", "'abc' is not an integer of at least 1"),
        (Integer(1), "0", "'0' is not an integer of at least 1"),
        (Integer(0, 65535), "70000", "'70000' is not an integer from 0 to 65535"),
        (Number(0, 1), "2", "'2' is not a number from 0 to 1"),
        (Duration(), "soon", "'soon' is not a valid duration"),
        (Brokers(), "host:kafka", "write HOST:PORT"),
    ],
)
def test_an_error_says_what_is_accepted(kind, text, why):
    with pytest.raises(click.BadParameter, match=why):
        kind.convert(text, None, None)


def test_a_port_alone_is_one_of_this_machine():
    assert Brokers().convert(":9092, b:9093,[::1]:1", None, None) == "localhost:9092,b:9093,[::1]:1"


@pytest.mark.parametrize("text", ["10m", "10 minutes"])
def test_an_interval_is_passed_to_spark_in_its_words(text):
    assert Interval().convert(text, None, None) == "10 minutes"

"""Suffixes, bounds and addresses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.model.topology import Endpoint
from moldau.server.config.keys import KEYS
from moldau.server.config.scalars import BadValue, parse_address
from moldau.server.config.values import format_value, parse_value


@pytest.mark.parametrize(
    ("key", "raw", "value"),
    [
        ("log.retention_ms", "7d", 604_800_000),
        ("log.retention_ms", "1.5h", 5_400_000),
        ("log.retention_ms", 250, 250),
        ("log.retention_ms", "250 ms", 250),
        ("log.retention_ms", "-1", -1),
        ("log.retention_ms", "0.1s", 100),
        ("log.segment_bytes", "1GiB", 2**30),
        ("log.segment_bytes", "64 MB", 64_000_000),
        ("log.segment_bytes", "64k", 65_536),
        ("log.segment_bytes", "1_000_000", 1_000_000),
        ("group.offsets_retention_minutes", "7d", 10_080),
        ("group.offsets_retention_minutes", 5, 5),
        ("topic.auto_create", "off", False),
        ("topic.auto_create", True, True),
        ("topic.auto_create", "YES", True),
        ("rack", 3, "3"),
        ("rack", "null", None),
        ("cluster_id", "", None),
        ("kafka.addr", 9093, Endpoint("127.0.0.1", 9093)),
        ("kafka.addr", ":9093", Endpoint("127.0.0.1", 9093)),
        ("kafka.addr", "[::1]:9093", Endpoint("::1", 9093)),
        ("kafka.advertised", "b.example:1", Endpoint("b.example", 1)),
    ],
)
def test_values_are_read_with_their_suffix(key, raw, value):
    assert parse_value(KEYS[key], raw) == value


@pytest.mark.parametrize(
    ("key", "raw", "reason"),
    [
        ("log.retention_ms", "7 fortnights", "a duration"),
        ("log.retention_ms", "-2", "at least 0, or -1"),
        ("log.retention_ms", True, "a duration"),
        ("log.retention_ms", None, "a duration"),
        ("log.retention_ms", [1], "a duration"),
        ("log.retention_ms", "1.0001s1", "a duration"),
        ("log.retention_ms", "0.0001s", "whole number of milliseconds"),
        ("group.offsets_retention_minutes", "90s", "whole number of minutes"),
        ("log.segment_bytes", "10d", "a size"),
        ("log.segment_bytes", "3GiB", "at most"),
        ("log.flush_threads", "0", "at least 1"),
        ("log.flush_threads", "4k", "a whole number"),
        ("log.flush_threads", 4.5, "whole number"),
        ("topic.auto_create", "maybe", "true or false"),
        ("topic.auto_create", 2, "true or false"),
        ("data_dir", "  ", "must not be empty"),
        ("rack", True, "a text"),
        ("kafka.addr", "localhost", "HOST:PORT"),
        ("kafka.addr", "localhost:99999", "at most 65535"),
        ("kafka.addr", "::1:9092", "brackets"),
        ("kafka.addr", "http://localhost:9092", "brackets|scheme"),
        ("kafka.addr", "//localhost:9092", "scheme"),
        ("kafka.addr", "", "HOST:PORT"),
        ("logging.level", "inof", "did you mean info"),
    ],
)
def test_values_that_a_setting_cannot_take_are_refused_with_what_it_takes(key, raw, reason):
    with pytest.raises(BadValue, match=reason):
        parse_value(KEYS[key], raw)


@given(st.integers(min_value=0, max_value=2**40))
def test_formatted_numbers_read_back_as_they_were(number):
    for name in ("log.retention_ms", "log.retention_bytes", "kafka.inflight_bytes_max"):
        key = KEYS[name]
        if number >= (key.setting.min or 0):
            assert parse_value(key, format_value(key, number)) == number


@pytest.mark.parametrize("name", list(KEYS))
def test_every_default_is_a_value_that_its_setting_takes(name):
    key = KEYS[name]
    assert parse_value(key, format_value(key, key.default)) == key.default
    assert parse_value(key, key.default) == key.default


@given(st.text(max_size=30))
def test_an_address_is_read_or_refused_and_never_crashes(text):
    try:
        address = parse_address(text)
    except BadValue:
        return
    assert parse_address(str(address)) == address

"""Whose properties count, and who sees librdkafka's log."""

import logging

import pytest

from moldau.client.kafka.librdkafka_settings import (
    consumer_settings,
    producer_settings,
    with_properties,
)


def test_fatal_errors_are_not_logged_besides_ours() -> None:
    for settings in (producer_settings("b:1"), consumer_settings("b:1")):
        assert not settings["logger"].isEnabledFor(logging.CRITICAL)


@pytest.mark.parametrize("name", ["log_level", "debug"])
def test_a_user_who_asks_for_the_log_gets_it_where_librdkafka_writes_it(name: str) -> None:
    assert "logger" not in producer_settings("b:1", extra={name: "7"})
    # Added later, as the configuration of a Producer does.
    assert "logger" not in with_properties(producer_settings("b:1"), {name: "7"})


def test_the_properties_of_the_user_override_ours() -> None:
    mine = logging.getLogger("mine")
    found = with_properties(producer_settings("b:1"), {"acks": "1", "logger": mine})
    assert (found["acks"], found["logger"]) == ("1", mine)

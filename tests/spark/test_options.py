"""Options: any case of letters, clear words about what is wrong, nothing unknown let through."""

import logging

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.spark.options import Options


def test_names_are_found_whatever_their_case() -> None:
    options = Options({"failondataloss": "FALSE", "KAFKA.bootstrap.SERVERS": " a:1 "})
    assert options.flag("failOnDataLoss", True) is False
    assert options.bootstrap() == "a:1"


def test_the_short_name_of_the_servers_will_do() -> None:
    assert Options({"bootstrap.servers": "a:1,b:2"}).bootstrap() == "a:1,b:2"


def test_missing_servers_are_asked_for_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match=r"kafka\.bootstrap\.servers is missing"):
        Options({}).bootstrap()


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidArgumentError, match="did you mean startingOffsets"):
        Options({"startingofset": "earliest"}).check_names(["startingOffsets", "subscribe"])


def test_a_name_unlike_any_other_is_refused_all_the_same() -> None:
    with pytest.raises(InvalidArgumentError, match="unknown option zzz") as caught:
        Options({"zzz": "1"}).check_names(["subscribe"])
    assert "subscribe" in caught.value.hint


def test_settings_of_kafkas_clients_are_let_go_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        Options({"kafka.max.poll.records": "5"}).check_names(["subscribe"])
    assert "kafka.max.poll.records" in caplog.text


def test_a_secured_connection_is_refused_since_none_would_be_made() -> None:
    with pytest.raises(InvalidArgumentError, match="plain text only"):
        Options({"kafka.security.protocol": "SASL_SSL"}).check_names([])
    Options({"kafka.security.protocol": "plaintext"}).check_names([])


@pytest.mark.parametrize("value", ["yes", "", "1"])
def test_a_flag_is_true_or_false(value: str) -> None:
    with pytest.raises(InvalidArgumentError, match="failOnDataLoss is true or false"):
        Options({"failOnDataLoss": value}).flag("failOnDataLoss", True)


@pytest.mark.parametrize("value", ["many", "1.5", "0", "-3"])
def test_a_count_is_a_whole_number_of_at_least_one(value: str) -> None:
    with pytest.raises(InvalidArgumentError, match="option minPartitions is"):
        Options({"minPartitions": value}).whole_number("minPartitions")

"""Options: any case of letters, clear words about what is wrong, nothing unknown let through."""

import logging

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.client.security import Security
from moldau.spark.option_table import OPTIONS, Option, OptionSupport, Side
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
        Options({"startingofset": "earliest"}).check_names(Side.READ)


def test_a_name_unlike_any_other_is_refused_all_the_same() -> None:
    with pytest.raises(InvalidArgumentError, match="unknown option zzz") as caught:
        Options({"zzz": "1"}).check_names(Side.READ)
    assert "subscribe" in caught.value.hint


def test_settings_of_kafkas_clients_are_let_go_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        Options({"kafka.max.poll.records": "5"}).check_names(Side.READ)
    assert "kafka.max.poll.records" in caplog.text


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("kafka.security.protocl", "kafka.security.protocol"),
        ("kafka.ssl.truststore.locaton", "kafka.ssl.truststore.location"),
        ("kafka.sasl.jaas.conf", "kafka.sasl.jaas.config"),
    ],
)
def test_a_typo_in_an_option_of_security_is_refused(name: str, meant: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"did you mean {meant}"):
        Options({name: "x"}).check_names(Side.READ)


@pytest.mark.parametrize(
    "name",
    [
        *("kafka.security.providers", "kafka.ssl.protocol", "kafka.sasl.kerberos.service.name"),
        *("kafka.sasl.oauthbearer.token.endpoint.url", "kafka.sasl.mechanisms"),
    ],
)
def test_other_options_of_security_that_kafkas_clients_have_are_let_go(name: str) -> None:
    options = Options({name: "PLAIN"})
    options.check_names(Side.READ)
    assert options.security() == Security(prefix="kafka.")


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_has_the_fate_that_the_table_says(
    option: Option, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moldau.spark.options._warned", set())
    side = Side.READ if option.side is Side.BOTH else option.side
    options = Options({option.name.lower(): "1"})
    if option.support in (OptionSupport.REFUSED, OptionSupport.CANNOT):
        with pytest.raises(InvalidArgumentError, match=option.name):
            options.check_names(side)
        return
    for _ in range(2):
        options.check_names(side)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (1 if option.support is OptionSupport.NO_EFFECT else 0)
    assert all(option.name in text for text in said)


def test_options_that_read_and_write_share_are_reported_where_they_mean_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moldau.spark.options._warned", set())
    shared = Options({"subscribe": "a", "topic": "b", "kafka.transactional.id": "c"})
    shared.check_names(Side.READ)
    assert sorted(record.getMessage() for record in caplog.records) == [
        "option kafka.transactional.id has no effect on a read",
        "option topic has no effect on a read",
    ]


def test_how_connections_are_secured_is_read_from_the_options() -> None:
    assert Options({"kafka.security.protocol": "plaintext"}).security() == Security(prefix="kafka.")
    found = Options(
        {
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "ann",
            "kafka.sasl.password": "secret",
            "kafka.ssl.endpoint.identification.algorithm": "",
        }
    ).security()
    assert found.tls is not None
    assert not found.tls.checks_host
    assert found.sasl is not None
    assert (found.sasl.username, found.sasl.password) == ("ann", "secret")
    assert "secret" not in repr(found)


def test_what_is_wrong_with_security_is_said_by_the_name_of_the_option() -> None:
    with pytest.raises(InvalidArgumentError, match=r"option kafka\.sasl\.mechanism is GSSAPI"):
        Options({"kafka.security.protocol": "SASL_SSL"}).security()


def test_passwords_that_are_not_used_are_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moldau.spark.options._warned", set())
    Options({"kafka.sasl.password": "secret", "kafka.ssl.ca.location": "x"}).security()
    assert "option kafka.sasl.password has no effect" in caplog.text
    assert "option kafka.ssl.ca.location has no effect" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("value", ["yes", "", "1"])
def test_a_flag_is_true_or_false(value: str) -> None:
    with pytest.raises(InvalidArgumentError, match="failOnDataLoss must be true or false"):
        Options({"failOnDataLoss": value}).flag("failOnDataLoss", True)


@pytest.mark.parametrize("value", ["many", "1.5", "0", "-3"])
def test_a_count_is_a_whole_number_of_at_least_one(value: str) -> None:
    with pytest.raises(InvalidArgumentError, match="option minPartitions must be"):
        Options({"minPartitions": value}).whole_number("minPartitions")

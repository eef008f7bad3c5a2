"""Which connection the options, the environment and the profile of a command describe."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from moldau.cli.click_groups import Command
from moldau.cli.cluster.topology import http_option
from moldau.cli.connection import passwords
from moldau.cli.connection.current import (
    current_properties,
    current_security,
    security_at,
    use_local_tokens,
)
from moldau.cli.connection.options import connection_options
from moldau.cli.connection.profiles import Profile, changed_profiles
from moldau.cli.errors import CommandError
from moldau.cli.options import brokers_option, plain_brokers_option
from moldau.client.errors import InvalidArgumentError
from moldau.client.sasl import Sasl

SECRET = "pl4nted-s3cret"
TOKEN = "t0ken"
Properties = Callable[..., dict[str, str]]


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    path = tmp_path / "password"
    path.write_text(SECRET + "\nnot this\n")
    return str(path)


@pytest.fixture
def properties() -> Properties:
    """The properties that a command with these arguments uses."""

    def run(*arguments: str) -> dict[str, str]:
        found: list[dict[str, str]] = []

        @plain_brokers_option
        def callback(brokers: str) -> None:
            found.append({**current_properties(), "brokers": brokers})

        made = click.command("test", cls=Command, examples=())(callback)
        made.main(list(arguments), standalone_mode=False)
        return found[0]

    return run


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """None responds: see test_negotiation.py."""
    monkeypatch.setattr(
        "moldau.cli.connection.negotiation.chosen_mechanism", lambda brokers, tls: "SCRAM-SHA-512"
    )
    monkeypatch.setattr(
        "moldau.cli.connection.negotiation.check_takes_tokens", lambda brokers, tls: None
    )


def save(**fields: Any) -> None:
    with changed_profiles() as file:
        file.profiles["prod"] = Profile(**fields)
        file.current = "prod"


def test_without_any_of_them_connections_are_plain(properties: Properties) -> None:
    assert properties() == {"brokers": "localhost:9092"}


def test_a_user_logs_in_with_the_password_of_a_file(
    properties: Properties, password_file: str
) -> None:
    assert properties("--user", "ann", "--password-file", password_file) == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ann",
        "sasl.password": SECRET,
        "brokers": "localhost:9092",
    }


def test_the_environment_says_the_same(
    properties: Properties, password_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "MOLDAU_USER": "ann",
        "MOLDAU_PASSWORD_FILE": password_file,
        "MOLDAU_MECHANISM": "SCRAM-SHA-256",
        "MOLDAU_CAFILE": "ca.pem",
        "MOLDAU_BROKERS": "b1:1",
    }.items():
        monkeypatch.setenv(name, value)
    assert properties() == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "ann",
        "sasl.password": SECRET,
        "ssl.ca.location": "ca.pem",
        "brokers": "b1:1",
    }


def test_a_password_may_be_in_the_environment(
    properties: Properties, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOLDAU_PASSWORD", SECRET)
    assert properties("--user", "ann")["sasl.password"] == SECRET


def test_without_a_terminal_nobody_is_asked(properties: Properties) -> None:
    with pytest.raises(CommandError, match="no password for user ann") as caught:
        properties("--user", "ann")
    assert "--password-file" in caught.value.hint


def test_on_a_terminal_the_user_is_asked(
    properties: Properties, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "can_prompt", lambda: True)
    asked: list[dict[str, Any]] = []

    def prompt(text: str, **options: Any) -> str:
        asked.append({"text": text, **options})
        return SECRET

    monkeypatch.setattr(click, "prompt", prompt)
    assert properties("--user", "ann")["sasl.password"] == SECRET
    assert asked == [{"text": "Password of ann", "hide_input": True, "err": True}]


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\n"])
def test_a_bad_password_file_is_reported(
    properties: Properties, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "password"
    path.write_bytes(content)
    with pytest.raises(CommandError, match=f"the password file {path} is"):
        properties("--user", "ann", "--password-file", str(path))


def test_certificates_imply_tls(properties: Properties) -> None:
    found = properties("--certfile", "own.pem")
    assert found["security.protocol"] == "SSL"
    assert found["ssl.key.location"] == found["ssl.certificate.location"] == "own.pem"
    assert properties("--tls")["security.protocol"] == "SSL"
    assert "security.protocol" not in properties("--cafile", "ca.pem", "--no-tls")


def test_an_address_with_https_implies_tls() -> None:
    found: list[dict[str, str]] = []

    @http_option
    def callback(http: str) -> None:
        found.append(current_properties())

    made = click.command("test", cls=Command, examples=())(callback)
    for address in ("https://b1:8080", "http://b1:8080", "b1:8080"):
        made.main(["--http", address], standalone_mode=False)
    assert found == [{"security.protocol": "SSL"}, {}, {}]


def test_the_data_directory_of_a_broker_makes_an_administrator(
    properties: Properties, tmp_path: Path
) -> None:
    (tmp_path / "admin.token").write_text(SECRET + "\n")
    found = properties("--data-dir", str(tmp_path))
    assert (found["sasl.username"], found["sasl.password"]) == ("moldau-admin", SECRET)


@pytest.mark.parametrize("content", [None, ""])
def test_a_directory_without_a_token_is_reported(
    properties: Properties, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "admin.token").write_text(content)
    with pytest.raises(CommandError, match=r"admin\.token"):
        properties("--data-dir", str(tmp_path))


def test_a_user_and_a_data_directory_exclude_each_other(
    properties: Properties, tmp_path: Path
) -> None:
    with pytest.raises(CommandError, match="exclude each other"):
        properties("--data-dir", str(tmp_path), "--user", "ann")


@pytest.mark.parametrize("mechanism", ["PLAIN", "plain"])
def test_a_readable_password_needs_tls(
    properties: Properties, password_file: str, mechanism: str
) -> None:
    given = ("--user", "ann", "--password-file", password_file, "--mechanism", mechanism)
    assert properties(*given)["sasl.mechanism"] == "PLAIN"
    with pytest.raises(CommandError, match="will not send a password or token to b1 without TLS"):
        properties(*given, "-b", "localhost:1,b1:1")
    assert properties(*given, "-b", "b1:1", "--tls")["security.protocol"] == "SASL_SSL"


def test_brokers_of_a_local_cluster_need_no_login(tmp_path: Path) -> None:
    (tmp_path / "admin.token").write_text(SECRET)
    found: list[Sasl | None] = []

    @connection_options
    def callback() -> None:
        use_local_tokens({"b1:1": tmp_path, "b2:1": tmp_path / "none"})
        found.extend(security_at(address).sasl for address in ("b1:1", "b2:1", "b3:1"))

    click.command("test", cls=Command, examples=())(callback).main([], standalone_mode=False)
    assert found[0] is not None
    assert (found[0].username, found[0].password) == ("moldau-admin", SECRET)
    assert found[1:] == [None, None]


# ---- profiles


def test_the_current_profile_has_addresses_and_a_token(properties: Properties) -> None:
    save(brokers="b1:1,b2:1", token=TOKEN, tls=True, cafile="/ca.pem")
    assert properties() == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token": TOKEN,
        "ssl.ca.location": "/ca.pem",
        "brokers": "b1:1,b2:1",
    }
    assert properties("-b", "b2:1")["sasl.oauthbearer.token"] == TOKEN


def test_its_token_is_not_sent_to_another_cluster(properties: Properties) -> None:
    save(brokers="b1:1", token=TOKEN, tls=True)
    assert properties("-b", "b1:1,other:1") == {"brokers": "b1:1,other:1"}
    # Unless the profile is named.
    assert properties("-b", "other:1", "--profile", "prod")["sasl.oauthbearer.token"] == TOKEN


def test_a_user_on_the_command_line_counts_more(properties: Properties, password_file: str) -> None:
    save(brokers="b1:1", token=TOKEN, tls=True)
    found = properties("--user", "ann", "--password-file", password_file)
    assert (found["brokers"], found["sasl.username"]) == ("b1:1", "ann")


def test_a_profile_on_the_command_line_counts_more_than_a_user_in_the_environment(
    properties: Properties, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(brokers="b1:1", token=TOKEN, tls=True)
    monkeypatch.setenv("MOLDAU_USER", "ann")
    assert properties("--profile", "prod")["sasl.oauthbearer.token"] == TOKEN


def test_a_token_that_has_expired_is_reported(
    properties: Properties, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 100.0)
    save(brokers="b1:1", token=TOKEN, tls=True, expires_at_ms=99_999)
    with pytest.raises(CommandError, match="the token of profile prod has expired") as caught:
        properties()
    assert caught.value.hint == "log in again: moldau login --profile prod"


def test_a_profile_that_does_not_exist_is_reported(properties: Properties) -> None:
    with pytest.raises(CommandError, match="there is no profile nine"):
        properties("--profile", "nine")


def test_a_token_in_plain_text_stays_here(properties: Properties) -> None:
    save(brokers="b1:1", token=TOKEN)
    with pytest.raises(CommandError, match="will not send"):
        properties()


# ---- with properties of librdkafka


def test_properties_override_the_options(password_file: str) -> None:
    found: list[dict[str, str]] = []

    @brokers_option
    def callback(brokers: str, properties: tuple[tuple[str, str], ...]) -> None:
        found.append(dict(properties))

    made = click.command("test", cls=Command, examples=())(callback)
    made.main(
        ["--user", "ann", "--password-file", password_file, "-X", "sasl.mechanism=PLAIN"],
        standalone_mode=False,
    )
    assert found[0]["sasl.mechanism"] == "PLAIN"
    assert found[0]["sasl.username"] == "ann"


def test_a_bad_file_is_reported_by_its_option(tmp_path: Path) -> None:
    @connection_options
    def callback() -> None:
        current_security()

    made = click.command("test", cls=Command, examples=())(callback)
    with pytest.raises(InvalidArgumentError, match="cannot read"):
        made.main(["--cafile", str(tmp_path / "none")], standalone_mode=False)

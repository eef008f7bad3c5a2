"""`moldau profile`: addresses and credentials under names."""

import json

import pytest
import yaml

from moldau.cli.connection.profiles import Profile, changed_profiles, load_profiles, profiles_path
from moldau.cli.errors import ExitCode

SECRET = "pl4nted-s3cret"


@pytest.fixture
def password_file(tmp_path):
    path = tmp_path / "password"
    path.write_text(SECRET + "\n")
    return path


def test_addresses_are_kept_under_a_name(cli):
    done = cli("profile", "add", "local", "-b", ":9192,b2.example:9092", "--use")
    assert done.code == 0, done.err
    assert "added profile local; it is now the current one" in done.err
    assert "no address for commands with --http" in done.err
    found = load_profiles()
    assert found.current == "local"
    assert found.profiles["local"] == Profile(brokers="localhost:9192,b2.example:9092")
    assert profiles_path().stat().st_mode & 0o777 == 0o600


def test_a_profile_needs_an_address_and_a_new_name(cli):
    assert cli("profile", "add", "p").code == ExitCode.USAGE
    assert cli("profile", "add", "p", "-b", "b1:9092").code == 0
    again = cli("profile", "add", "p", "-b", "b2:9092")
    assert again.code == ExitCode.FAILED
    assert "replace it: --replace" in again.err
    assert cli("profile", "add", "p", "-b", "b2:9092", "--replace").code == 0
    assert load_profiles().profiles["p"].brokers == "b2:9092"


def test_the_addresses_of_the_current_profile_are_not_taken_over(cli):
    with changed_profiles() as file:
        file.profiles["tls"] = Profile(http="https://b1:8080", brokers="b1:9092", tls=True)
        file.current = "tls"
    assert cli("profile", "add", "plain", "--grpc", "b2:8000").code == 0
    assert load_profiles().profiles["plain"] == Profile(grpc="b2:8000")


def test_only_the_name_of_a_password_file_is_kept(cli, password_file, tmp_path):
    ca = tmp_path / "ca.pem"
    login = ("--user", "ann", "--password-file", password_file, "--mechanism", "plain")
    done = cli("profile", "add", "prod", "--http", "b1:8080", *login, "--cafile", ca)
    assert done.code == 0, done.err
    assert SECRET not in profiles_path().read_text()
    assert load_profiles().profiles["prod"] == Profile(
        http="b1:8080",
        user="ann",
        password_file=str(password_file),
        mechanism="PLAIN",
        tls=True,
        cafile=str(ca),
    )
    shown = json.loads(cli("profile", "show", "prod", "-o", "json").out)
    assert (shown["user"], shown["login"]) == ("ann", f"password in {password_file}")
    lost = cli("profile", "add", "x", "-b", "b1:9092", "--user", "a", "--password-file", "/no")
    assert "cannot read the password file /no" in lost.err


def test_a_password_is_kept_and_never_printed(cli, monkeypatch):
    monkeypatch.setenv("MOLDAU_PASSWORD", SECRET)
    printed = cli("profile", "add", "prod", "-b", "b1:9092", "--user", "ann", "--use")
    monkeypatch.delenv("MOLDAU_PASSWORD")
    assert yaml.safe_load(profiles_path().read_text())["profiles"]["prod"]["password"] == SECRET
    outcomes = [printed, cli("profile", "list"), cli("profile", "show")]
    outcomes += [cli("profile", "show", "prod", "-o", form) for form in ("json", "yaml", "name")]
    for outcome in outcomes:
        assert outcome.code == 0
        assert SECRET not in outcome.out + outcome.err
    assert SECRET not in repr(load_profiles())


def test_a_profile_that_does_not_exist_is_not_found(cli):
    missing = cli("profile", "show", "nine")
    assert missing.code == ExitCode.NOT_FOUND
    assert "moldau profile add nine" in missing.err
    assert cli("profile", "show").code == ExitCode.NOT_FOUND
    assert cli("profile", "remove", "nine").code == ExitCode.NOT_FOUND


def test_profiles_are_removed_with_their_secrets(cli):
    with changed_profiles() as file:
        file.profiles = {"a": Profile(password=SECRET), "b": Profile(), "c": Profile()}
        file.current = "a"
    assert cli("profile", "remove", "a", "b").code == 0
    assert load_profiles().current == ""
    assert SECRET not in profiles_path().read_text()
    assert cli("profile", "delete", "c").code == 0, "the earlier name"
    assert load_profiles().profiles == {}

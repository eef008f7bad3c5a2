"""`moldau login`, `logout` and `profile`, with a server that gives tokens."""

import json
import time

import click
import pytest
import yaml

pytest.importorskip("cryptography", reason="certificates are made with it")

from login_server import LoginServer, login_server
from secure_front import identity, server_context

from moldau.cli.connection.options import complete_profiles
from moldau.cli.connection.profiles import Profile, changed_profiles, load_profiles, profiles_path
from moldau.cli.errors import ExitCode
from moldau.cli.main import cli as cli_root
from moldau.model.topology import Endpoint, Topology, TopologyBroker

pytestmark = pytest.mark.inprocess

SECRET = "pl4nted-s3cret"
TOKEN = "t0ken-0f-ann"
CA = identity("tests' authority")
SERVER = identity("server", hosts=("localhost", "127.0.0.1"), signer=CA)


def topology() -> Topology:
    broker = TopologyBroker(
        id=1,
        kafka=Endpoint("b1.example", 9092),
        http=Endpoint("b1.example", 8080),
        grpc=Endpoint("b1.example", 8000),
        alive=True,
        epoch=1,
        leaders=0,
        replicas=0,
    )
    return Topology(
        cluster_id="c", version=1, controller=1, answered_by=1, brokers=(broker,), topics=()
    )


@pytest.fixture
def server():
    with login_server(password=SECRET, token=TOKEN) as made:
        yield made


@pytest.fixture
def password_file(tmp_path):
    path = tmp_path / "password"
    path.write_text(SECRET + "\n")
    return path


def log_in(cli, server: LoginServer, password_file, *more: object):
    address = f"127.0.0.1:{server.port}"
    login = ("--user", "ann", "--password-file", password_file)
    return cli("login", "--http", address, *login, *more)


def test_a_login_keeps_token_and_addresses(cli, server, password_file):
    server.topology = topology()
    server.expires_at_ms = int(time.time() * 1000) + 3_600_000
    done = log_in(cli, server, password_file)
    assert done.code == 0, done.err
    assert "logged in as ann; profile default is now the current one, for " in done.err
    assert SECRET not in done.out + done.err
    assert TOKEN not in done.out + done.err
    assert load_profiles().profiles["default"] == Profile(
        http=f"127.0.0.1:{server.port}",
        brokers="b1.example:9092",
        grpc="b1.example:8000",
        user="ann",
        token=TOKEN,
        expires_at_ms=server.expires_at_ms,
    )
    assert SECRET not in profiles_path().read_text()
    # The token is what the next command sends, to the address of the profile.
    assert cli("broker", "list", "-o", "name").out == "1\n"
    assert server.calls[-1] == ("/api/v1/topology", f"Bearer {TOKEN}")


def test_a_user_who_may_not_see_the_cluster_names_its_addresses(cli, server, password_file):
    assert log_in(cli, server, password_file, "-b", "b2:1", "--grpc", "b2:2").code == 0
    found = load_profiles().profiles["default"]
    assert (found.brokers, found.grpc) == ("b2:1", "b2:2")


def test_a_login_by_https_keeps_the_authorities(cli, password_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ca.pem").write_text(CA.pem)
    with login_server(server_context(SERVER, tmp_path), password=SECRET, token=TOKEN) as server:
        login = ("--user", "ann", "--password-file", password_file, "--profile", "prod")
        address = f"https://localhost:{server.port}"
        untrusted = cli("login", "--http", address, *login)
        assert untrusted.code == 1
        assert "is not trusted" in untrusted.err
        assert "--cafile" in untrusted.err
        assert server.calls == []
        assert cli("login", "--http", address, *login, "--cafile", "ca.pem").code == 0
    found = load_profiles().profiles["prod"]
    assert (found.tls, found.cafile) == (True, str(tmp_path / "ca.pem"))


def test_a_wrong_password_changes_nothing(cli, server, password_file):
    server.password = "another"
    refused = log_in(cli, server, password_file)
    assert refused.code == 1
    assert "requires a valid user and password" in refused.err
    assert "wrong user or password" in refused.err
    assert "check name and password: --user and --password-file" in refused.err
    assert "pass --user" not in refused.err
    assert SECRET not in refused.err
    assert not profiles_path().exists()


def test_a_user_is_needed(cli, server):
    refused = cli("login", "--http", f"127.0.0.1:{server.port}")
    assert refused.code == ExitCode.USAGE
    assert "pass --user NAME" in refused.err


def test_a_logout_deletes_the_token(cli, server, password_file):
    assert log_in(cli, server, password_file).code == 0
    assert cli("logout").code == 0
    assert TOKEN not in profiles_path().read_text()
    assert "not logged in" in cli("logout").err
    # The user and the addresses are kept for the next login.
    again = cli("login", "--profile", "default", "--password-file", password_file)
    assert "logged in as ann" in again.err


def test_profiles_are_listed_chosen_and_deleted(cli):
    with changed_profiles() as file:
        file.profiles = {
            "old": Profile(http="b1:8080", user="ann", token=TOKEN, expires_at_ms=1),
            "prod": Profile(http="b2:8080", user="bob", token=TOKEN),
        }
    listed = cli("profile", "list", "-o", "json")
    assert TOKEN not in listed.out
    rows = {row["name"]: (row["current"], row["login"]) for row in json.loads(listed.out)}
    assert rows == {"old": (False, "expired"), "prod": (False, "valid")}
    assert cli("profile", "use", "prod").code == 0
    assert yaml.safe_load(profiles_path().read_text())["current"] == "prod"
    assert cli("profile", "use", "nine").code == ExitCode.NOT_FOUND
    assert cli("profile", "use").code == ExitCode.USAGE
    assert cli("profile", "use", "--none").code == 0
    assert load_profiles().current == ""
    assert cli("profile", "delete", "nine", "old").code == ExitCode.NOT_FOUND
    assert cli("profile", "delete", "old").code == 0
    assert list(load_profiles().profiles) == ["prod"]


def test_profiles_are_completed():
    with changed_profiles() as file:
        file.profiles = {"prod": Profile(http="b1:8080", token=TOKEN), "test": Profile()}
    found = complete_profiles(click.Context(cli_root), click.Option(["--profile"]), "p")
    assert [(item.value, item.help) for item in found] == [("prod", "b1:8080")]
    profiles_path().chmod(0o644)
    assert complete_profiles(click.Context(cli_root), click.Option(["--profile"]), "p") == []

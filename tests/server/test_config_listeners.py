"""Named listeners, the rules of all listeners, and secrets among the settings."""

import json

import pytest

from moldau.model.loopback import is_loopback
from moldau.model.secret import Secret
from moldau.model.topology import Endpoint
from moldau.server.config.keys import KEYS
from moldau.server.config.listener_rules import doubts
from moldau.server.config.listeners import (
    SECTION_SETTINGS,
    listeners_for,
    listeners_of,
    parse_listeners,
)
from moldau.server.config.load import InvalidConfigError, load_config
from moldau.server.config.scalars import BadValue
from moldau.server.config.security_schema import (
    Authentication,
    ListenerProtocol,
    ListenerSecurity,
)

CERTS = {"security.cert_file": "b.pem", "security.key_file": "b.key"}


def problems(*args, **kwargs):
    with pytest.raises(InvalidConfigError) as caught:
        load_config(*args, **kwargs)
    return caught.value.problems


def test_without_settings_there_is_one_listener_per_protocol_on_loopback():
    listeners = listeners_of(load_config({}, {}).config)
    assert [one.name for one in listeners] == ["kafka", "peers", "grpc", "http"]
    assert all(is_loopback(one.address.host) and not one.uses_tls for one in listeners)
    assert listeners[1].setting == "raft.addr"


def test_a_section_says_how_its_listener_is_secured():
    flags = {
        **CERTS,
        "kafka.security": "tls",
        "kafka.sasl_mechanisms": "plain, scram-sha-256",
        "kafka.read_only": "yes",
        "http.authentication": "users",
        "grpc.addr": "",
    }
    config = load_config(flags, {}).config
    (kafka,) = listeners_for(config, ListenerProtocol.KAFKA)
    assert (kafka.security, kafka.sasl) == (ListenerSecurity.TLS, ("PLAIN", "SCRAM-SHA-256"))
    assert kafka.read_only
    (http,) = listeners_for(config, ListenerProtocol.HTTP)
    assert http.authentication is Authentication.USERS
    assert listeners_for(config, ListenerProtocol.GRPC) == ()


@pytest.mark.parametrize("name", ["b.yaml", "b.toml", "b.json", "environment"])
def test_listeners_are_read_from_files_and_the_environment(tmp_path, name):
    entries: list[dict[str, object]] = [
        {"name": "inside", "protocol": "kafka", "address": "127.0.0.1:9092", "security": "mtls"},
        {"name": "outside", "protocol": "kafka", "address": "0.0.0.0:9093", "security": "tls",
         "advertised": "h:9093", "sasl": ["SCRAM-SHA-512"]},
    ]  # fmt: skip
    environ, path = {}, tmp_path / name
    if name == "environment":
        environ["MOLDAU_LISTENERS"] = json.dumps(entries)
    elif name == "b.toml":
        path.write_text(
            "\n".join(
                "[[listeners]]\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in one.items())
                for one in entries
            )
        )
    else:
        path.write_text(json.dumps({"listeners": entries}))
    flags = {**CERTS, "security.client_ca_file": "ca.pem"}
    file = None if name == "environment" else str(path)
    config = load_config(flags, environ, file).config
    inside, outside = listeners_for(config, ListenerProtocol.KAFKA)
    assert (inside.name, inside.security) == ("inside", ListenerSecurity.MTLS)
    assert outside.advertised == Endpoint("h", 9093)
    assert outside.sasl == ("SCRAM-SHA-512",)
    assert [one.name for one in listeners_of(config)][:3] == ["peers", "grpc", "http"]
    assert parse_listeners(str(config.listeners)) == config.listeners


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"protocol": "kafka", "address": "h:1"}, "must have a name"),
        ({"name": "a", "address": "h:1"}, "must have protocol in listener a"),
        ({"name": "a", "protocol": "kafka"}, "must have address in listener a"),
        ({"name": "a", "protocol": "kafak", "address": "h:1"}, "did you mean kafka"),
        ({"name": "a", "protocol": "kafka", "addres": "h:1"}, "did you mean address"),
        ({"name": "a", "protocol": "kafka", "addr": "h:1"}, "did you mean address"),
        ({"name": "a", "sasl_mechanisms": "PLAIN"}, "unknown key sasl_mechanisms .* mean sasl?"),
        ({"name": "a", "protocol": "kafka", "address": "h"}, "HOST:PORT"),
        ({"name": "a", "protocol": "kafka", "address": "h:1", "sasl": ["GSSAPI"]}, "GSSAPI is not"),
        ("a", "must have keys and values"),
    ],
)
def test_a_listener_that_cannot_be_understood_is_refused(entry, text):
    with pytest.raises(BadValue, match=text):
        parse_listeners([entry])


SECTION_OF_PROTOCOL = {"kafka": "kafka", "peers": "raft", "grpc": "grpc", "http": "http"}
OF_LISTENERS = {"addr", "advertised", "security", "sasl_mechanisms", "authentication", "read_only"}
VALUES = {"security": "mtls", "sasl_mechanisms": "PLAIN", "authentication": "users"}


@pytest.mark.parametrize(
    ("protocol", "key"),
    [
        (protocol, key)
        for protocol, section in SECTION_OF_PROTOCOL.items()
        for key in KEYS
        if key.startswith(f"{section}.") and key.rpartition(".")[2] in OF_LISTENERS
    ],
)
def test_what_a_named_listener_would_ignore_is_refused(protocol, key):
    """The broker would start without the encryption or the login that its file asks for."""
    one = {"name": "mine", "protocol": protocol, "address": "127.0.0.1:7"}
    field = key.rpartition(".")[2]
    value = VALUES.get(field, "true" if field == "read_only" else "h:1")
    (problem,) = problems({"listeners": [one], key: value, **CERTS}, {})
    assert problem.text.startswith(f"{key} = '{value}' (flag ")
    assert f"together with the listener mine of {protocol}" in problem.text
    name = {"addr": "address", "sasl_mechanisms": "sasl"}.get(field, field)
    assert problem.hint == f"set {name} in listeners.mine instead"


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("kafka.address", "kafka.addr"),
        ("kafka.sasl", "kafka.sasl_mechanisms"),
        ("http.address", "http.addr"),
        ("raft.address", "raft.addr"),
    ],
)
def test_for_a_key_of_a_listener_in_a_section_its_own_is_suggested(key, meant):
    (problem,) = problems({key: "x"}, {})
    assert problem.hint == f"did you mean {meant}?"
    variable = f"MOLDAU_{key.replace('.', '__').upper()}"
    (problem,) = problems({}, {variable: "x"})
    assert problem.hint == f"did you mean {KEYS[meant].variable}?"


@pytest.mark.parametrize("section", SECTION_OF_PROTOCOL.values())
def test_no_setting_of_a_listener_is_forgotten(section):
    """All that differs between two listeners of sections comes from settings that are refused."""
    keys = {key.field for key in KEYS.values() if key.section == section}
    assert keys & OF_LISTENERS == set(SECTION_SETTINGS[section])


def test_limits_of_a_section_stay_allowed_beside_a_named_listener():
    one = {"name": "mine", "protocol": "kafka", "address": "127.0.0.1:7"}
    flags = {"listeners": [one], "kafka.connections_max": "5000", "http.hosts": "h"}
    taken_back = {"MOLDAU_KAFKA__SASL_MECHANISMS": ""}
    assert load_config(flags, taken_back).config.kafka.connections_max == 5000


@pytest.mark.parametrize("raw", ["{", "7", {"name": "a"}, 3])
def test_what_is_no_list_is_refused(raw):
    with pytest.raises(BadValue, match="must be a list"):
        parse_listeners(raw)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"kafka.security": "tls"}, "has no cert_file"),
        ({**CERTS, "kafka.security": "mtls"}, "no client_ca_file"),
        ({**CERTS, "raft.security": "tls"}, "no client_ca_file to check their certificates"),
        ({**CERTS, "security.cert_file": "a,b", "kafka.security": "tls"}, "2 certificates, but 1"),
        ({"kafka.sasl_mechanisms": "MD5"}, "MD5 is not supported"),
        ({"kafka.sasl_mechanisms": "PLAIN,PLAIN"}, "one time only"),
        ({"kafka.addr": "h:1", "kafka.advertised": "h:1"}, "serves everyone"),
        ({"http.addr": "10.0.0.1:8080"}, "serves everyone"),
        ({"grpc.addr": "[2001:db8::1]:8000"}, "serves everyone"),
    ],
)
def test_a_listener_that_lacks_something_is_refused(flags, text):
    assert any(text in problem.text for problem in problems(flags, {}))


def named(**changes):
    return {"name": "a", "protocol": "kafka", "address": "127.0.0.1:9092", **changes}


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([named(), named(address="127.0.0.1:9093")], "2 listeners with the name a"),
        ([named(), named(name="b")], "is also the address of listeners.a"),
        ([named(name="http")], "2 listeners with the name http"),
        ([named(protocol="http"), named(name="b", protocol="http", address="127.0.0.1:2")],
         "has 2 listeners of http"),
        ([named(protocol="http", address="127.0.0.1:1", sasl=["PLAIN"])], "has sasl"),
        ([named(authentication="users")], "has authentication"),
        ([named(address="0.0.0.0:1", sasl=["PLAIN"])], "binds all interfaces"),
        ([named(security="tls", cert_file="x", key_file=None)], "both cert_file and key_file"),
    ],
)  # fmt: skip
def test_named_listeners_that_do_not_fit_together_are_refused(entries, text):
    found = problems(CERTS, {"MOLDAU_LISTENERS": json.dumps(entries)})
    assert any(text in problem.text for problem in found)


def test_an_address_and_a_named_listener_of_the_same_protocol_are_refused():
    environ = {"MOLDAU_LISTENERS": json.dumps([named()])}
    (problem,) = problems({"kafka.addr": "127.0.0.1:1"}, environ)
    assert "kafka.addr" in problem.text
    assert "together with the listener a" in problem.text


def test_the_refusal_of_an_open_listener_names_both_ways_out():
    (problem,) = problems({"http.addr": "10.0.0.1:8080"}, {})
    assert "http.authentication=users" in problem.hint
    assert "MOLDAU_SECURITY__INSECURE=true" in problem.hint


@pytest.mark.parametrize(
    "flags",
    [
        {"kafka.sasl_mechanisms": "SCRAM-SHA-256"},
        {**CERTS, "security.client_ca_file": "ca", "kafka.security": "mtls"},
        {"security.insecure": True},
    ],
)
def test_an_open_address_is_served_with_authentication_or_on_demand(flags):
    address = {"kafka.addr": "10.0.0.1:9092", "raft.addr": "10.0.0.1:19092"}
    assert load_config({**address, **flags}, {}).config.kafka.addr.host == "10.0.0.1"


def test_dangerous_listeners_are_logged():
    flags = {
        "security.insecure": True,
        "kafka.addr": "10.0.0.1:9092",
        "http.addr": "10.0.0.1:8080",
        "http.authentication": "users",
    }
    first, second = doubts(load_config(flags, {}).config)
    assert "kafka.addr serves everyone" in first
    assert "http.addr receives passwords" in second


def test_peers_without_encryption_are_logged_where_others_can_listen():
    flags = {"raft.addr": "10.0.0.1:19092"}
    (danger,) = doubts(load_config(flags, {}).config)
    assert "raft.addr sends and receives all data of the cluster without encryption" in danger
    secured = {**flags, **CERTS, "security.client_ca_file": "ca", "raft.security": "mtls"}
    assert list(doubts(load_config(secured, {}).config)) == []
    assert list(doubts(load_config({"raft.addr": "127.0.0.1:19092"}, {}).config)) == []


def test_a_password_is_hidden_and_refused_on_the_command_line(tmp_path):
    path = tmp_path / "b.yaml"
    path.write_text("security: {key_password: hunter2}\n")
    resolved = load_config({}, {}, str(path))
    assert resolved.config.security.key_password == Secret("hunter2")
    assert "hunter2" not in repr(resolved)
    assert "hunter2" not in str(resolved.value("security.key_password"))
    (problem,) = problems({"security.key_password": "hunter2"}, {})
    assert "must not be on a command line" in problem.text
    assert "hunter2" not in str(problem)

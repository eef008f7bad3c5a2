"""`moldau config`, and the configuration errors of commands."""

import json

import yaml

from moldau.cli.errors import ExitCode
from moldau.server.config.keys import KEYS
from moldau.server.config.load import load_config
from moldau.server.config.schema import ServerConfig


def test_init_writes_a_file_that_a_broker_reads(cli, tmp_path):
    path = tmp_path / "broker.yaml"
    outcome = cli("config", "init", path)
    assert outcome.code == 0
    assert outcome.out == ""
    assert f"moldau broker start --bootstrap --config {path}" in outcome.err
    assert load_config({}, {}, str(path)).config == ServerConfig()


def test_init_sets_the_given_values_and_checks_them(cli, tmp_path):
    path = tmp_path / "broker.yaml"
    assert cli("config", "init", path, "--set", "broker_id=4", "--set", "port=9999").code == 0
    config = load_config({}, {}, str(path)).config
    assert (config.broker_id, config.kafka.addr.port) == (4, 9999)
    outcome = cli("config", "init", tmp_path / "other.yaml", "--set", "broker_id=x")
    assert outcome.code == ExitCode.CONFIG
    assert not (tmp_path / "other.yaml").exists()


def test_init_does_not_replace_a_file_unless_forced(cli, tmp_path):
    path = tmp_path / "broker.yaml"
    path.write_text("mine")
    outcome = cli("config", "init", path)
    assert outcome.code == ExitCode.FAILED
    assert "--force" in outcome.err
    assert path.read_text() == "mine"
    assert cli("config", "init", path, "--force").code == 0
    assert path.read_text() != "mine"


def test_init_can_print_and_refuses_other_formats(cli, tmp_path):
    outcome = cli("config", "init", "-")
    assert yaml.safe_load(outcome.out) is None
    assert "#log.flush: always" in outcome.out
    assert cli("config", "init", tmp_path / "broker.toml").code == ExitCode.FAILED


def test_show_prints_each_value_with_its_source(cli, tmp_path, monkeypatch):
    path = tmp_path / "broker.toml"
    path.write_text("[log]\nretention_ms = 1000\n")
    monkeypatch.setenv("MOLDAU_LOG__FLUSH", "never")
    outcome = cli("config", "show", "--config", path, "--set", "broker_id=9", "-o", "json")
    document = json.loads(outcome.out)
    assert set(document) == set(KEYS)
    assert document["log.retention_ms"] == {"value": 1000, "source": f"file {path}:2"}
    assert document["log.flush"] == {
        "value": "never",
        "source": "environment MOLDAU_LOG__FLUSH",
    }
    assert document["broker_id"] == {"value": 9, "source": "flag --set broker_id"}
    assert document["rack"] == {"value": None, "source": "default"}


def test_show_changed_leaves_defaults_out(cli):
    outcome = cli("config", "show", "--changed", "--set", "log.retention_ms=2d")
    assert [line.split() for line in outcome.out.splitlines()] == [
        ["KEY", "VALUE", "SOURCE"],
        ["log.retention_ms", "2d", "flag", "--set", "log.retention_ms"],
    ]


def test_the_file_may_come_from_the_environment(cli, tmp_path, monkeypatch):
    path = tmp_path / "x.yaml"
    path.write_text("rack: a1\n")
    monkeypatch.setenv("MOLDAU_CONFIG", str(path))
    assert json.loads(cli("config", "show", "-o", "json").out)["rack"]["value"] == "a1"


def test_every_problem_gets_a_line_and_its_hint(cli, tmp_path):
    path = tmp_path / "broker.yaml"
    path.write_text("log:\n  flsh: never\nbroker_id: -1\n")
    outcome = cli("broker", "start", "--config", path)
    assert outcome.code == ExitCode.CONFIG
    assert outcome.err.splitlines() == [
        f"error: unknown key log.flsh (file {path}:2)",
        "hint:  did you mean log.flush?",
        f"error: broker_id = -1 (file {path}:3) must be at least 0",
    ]


def test_a_flag_of_the_broker_is_named_as_typed(cli):
    assert "(flag --id)" in cli("broker", "start", "--id", "x").err
    assert "(flag --kafka-addr)" in cli("broker", "start", "--kafka-addr", "x").err
    assert "(flag --port)" in cli("dev", "--port", "x").err


def test_one_setting_twice_on_the_command_line_is_refused(cli):
    outcome = cli("broker", "start", "--id", "1", "--set", "broker_id=2")
    assert outcome.code == ExitCode.USAGE
    assert "broker_id is set twice" in outcome.err


def test_nothing_changed_is_said(cli):
    outcome = cli("config", "show", "--changed")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == "all settings have their default\n"


def test_show_hides_passwords_and_refuses_them_on_the_command_line(cli, monkeypatch):
    monkeypatch.setenv("MOLDAU_SECURITY__KEY_PASSWORD", "hunter2")
    for output in ("table", "json", "yaml"):
        outcome = cli("config", "show", "-o", output)
        assert outcome.code == 0
        assert "hunter2" not in outcome.out + outcome.err
        assert "(hidden)" in outcome.out
    monkeypatch.delenv("MOLDAU_SECURITY__KEY_PASSWORD")
    outcome = cli("config", "show", "--set", "security.key_password=hunter2")
    assert outcome.code == ExitCode.CONFIG
    assert "must not be on a command line" in outcome.err
    assert "hunter2" not in outcome.err


def test_an_open_listener_is_refused_with_both_ways_out(cli):
    outcome = cli("config", "show", "--set", "http.addr=10.0.0.1:8080")
    assert outcome.code == ExitCode.CONFIG
    assert "can be reached from other machines, and serves everyone" in outcome.err
    assert "http.authentication=users" in outcome.err
    assert "--insecure" in outcome.err

"""Rows as tables, JSON, YAML and names."""

import json

import click
import pytest
import yaml

from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.output import (
    confirm,
    emit_rows,
    emit_table,
    existing_names,
    format_bytes,
    report,
)
from moldau.client.errors import NotFoundError

ROWS = [
    {"name": "a", "count": 1, "isr": [1, 2], "note": None},
    {"name": "long-name", "count": 1000, "isr": [], "note": "ü"},
]


def test_a_table_is_aligned_with_numbers_to_the_right(capsys):
    emit_rows(ROWS, "table", name="name")
    assert capsys.readouterr().out.splitlines() == [
        "NAME       COUNT  ISR  NOTE",
        "a              1  1,2  -",
        "long-name   1000  -    ü",
    ]


def test_json_and_yaml_hold_the_same_values(capsys):
    emit_rows(ROWS, "json", name="name")
    assert json.loads(capsys.readouterr().out) == ROWS
    emit_rows(ROWS, "yaml", name="name")
    assert yaml.safe_load(capsys.readouterr().out) == ROWS


def test_names_come_one_per_line(capsys):
    emit_rows(ROWS, "name", name="name")
    assert capsys.readouterr().out == "a\nlong-name\n"


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_nothing_is_an_empty_list(capsys, output):
    emit_rows([], output, name="name")
    assert capsys.readouterr().out.strip() == "[]"


def test_long_values_are_neither_cut_nor_wrapped(capsys):
    emit_table([{"value": "x" * 500}])
    assert "x" * 500 in capsys.readouterr().out


def test_without_a_terminal_a_destructive_command_needs_a_yes():
    with pytest.raises(CommandError, match="confirmation needed") as caught:
        confirm("Delete?", yes=False)
    assert caught.value.code is ExitCode.USAGE
    assert "-y" in caught.value.hint
    confirm("Delete?", yes=True)


def test_on_a_terminal_it_asks(monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    answers = iter([True, False])
    monkeypatch.setattr(click, "confirm", lambda question, err: next(answers))
    confirm("Delete?", yes=False)
    with pytest.raises(click.Abort):
        confirm("Delete?", yes=False)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**50, "1024.0 TiB")]
)
def test_bytes_are_shown_in_their_unit(count, text):
    assert format_bytes(count) == text


def test_a_hint_that_the_error_says_already_is_not_said_twice(capsys):
    report("records are gone: set failOnDataLoss to false", "set failOnDataLoss to false")
    report("records are gone", "set failOnDataLoss to false")
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "error: records are gone: set failOnDataLoss to false",
        "error: records are gone",
        "hint:  set failOnDataLoss to false",
    ]


def test_a_file_is_named_by_its_option(capsys):
    report("option ssl.ca.location: cannot read ca.pem (no such file or directory)")
    report("options ssl.keystore…: the key cannot be read", "see option ssl.key.password")
    report("option kafka.ssl.ca.location: cannot read ca.pem")
    assert capsys.readouterr().err.splitlines() == [
        "error: --cafile: cannot read ca.pem (no such file or directory)",
        "error: --certfile and --keyfile: the key cannot be read",
        "hint:  see MOLDAU_KEY_PASSWORD",
        "error: option kafka.ssl.ca.location: cannot read ca.pem",
    ]


@pytest.mark.parametrize("deletes", [True, False])
def test_only_a_command_that_deletes_says_that_nothing_was_deleted(deletes):
    context = click.Context(click.Command("moldau"))
    context.params = {"if_exists": False} if deletes else {}
    with context, pytest.raises(NotFoundError, match="user ghost does not exist") as caught:
        existing_names("user", ["ghost"], (), if_exists=False)
    assert ("nothing was deleted" in str(caught.value)) is deletes
    assert ("--if-exists" in caught.value.hint) is deletes
    assert "moldau user list" in caught.value.hint

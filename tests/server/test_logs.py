"""Lines of the log, whatever the text in them."""

import json
import logging

import pytest

from moldau.model.log_events import PARTITION_OFFLINE
from moldau.server.logs import TEXT_LINE, JsonFormatter, TextFormatter

FORGED = "x\n2026-11-18 12:00:00 WARNING moldau: a forged line\r\x1b[2Kgone\u2028\x85\x00end"


def record(text: str, error: bool = False) -> logging.LogRecord:
    found = None
    if error:
        try:
            raise ValueError("it failed")
        except ValueError as raised:
            found = (ValueError, raised, raised.__traceback__)
    return logging.LogRecord("moldau", logging.INFO, "f", 1, "group %s", (text,), found)


@pytest.mark.parametrize("formatter", [TextFormatter("%(message)s"), JsonFormatter()])
def test_a_name_stays_in_its_line(formatter: logging.Formatter):
    text = formatter.format(record(FORGED))
    assert text.splitlines() == [text]
    assert text.isprintable()
    assert "forged" in text


def test_what_is_readable_stays_so():
    assert TextFormatter("%(message)s").format(record("café — ü")) == "group café — ü"
    assert json.loads(JsonFormatter().format(record("a\nb")))["message"] == "group a\nb"


def test_a_traceback_keeps_its_lines():
    first, *others = TextFormatter("%(message)s").format(record("a\nb", error=True)).splitlines()
    assert first == "group a\\nb"
    assert others[0].startswith("  Traceback")
    assert others[-1] == "  ValueError: it failed"


def test_the_text_of_an_error_forges_no_line():
    try:
        raise ValueError(FORGED)
    except ValueError as raised:
        found = (ValueError, raised, raised.__traceback__)
    made = logging.LogRecord("moldau", logging.INFO, "f", 1, "failed", (), found)
    made.stack_info = f"Stack:\n{FORGED}"
    first, *others = TextFormatter(TEXT_LINE).format(made).split("\n")
    assert first.endswith("failed")
    assert sum("a forged line" in line for line in others) == 2
    for line in others:
        assert line.startswith("  ")
        assert line.isprintable()


def json_line(message: object = "m", *arguments: object, **fields: object) -> dict[str, object]:
    made = logging.LogRecord("moldau.data.x", logging.ERROR, "f", 1, message, arguments, None)
    made.created, made.msecs = 1795032476.5, 500.0
    made.__dict__.update(fields)
    line = JsonFormatter().format(made)
    assert line.isascii()
    assert line.isprintable()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found: dict[str, object] = json.loads(line, parse_constant=refuse)
    return found


def test_json_has_time_in_utc_level_component_event_and_fields():
    extra = PARTITION_OFFLINE(topic="orders", partition=3)
    assert json_line("partition %s is offline", "orders-3", **extra) == {
        "time": "2026-11-18T20:07:56.500Z",
        "level": "error",
        "component": "log",
        "event": "partition-offline",
        "message": "partition orders-3 is offline",
        "logger": "moldau.data.x",
        "topic": "orders",
        "partition": 3,
    }


class Unprintable:
    def __str__(self) -> str:
        return "\x1b[2J\ud800"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (b"\xff", "b'\\xff'"),
        ({1: (2, {"a"})}, {"1": [2, ["a"]]}),
        ([[[[[["deep"]]]]]], [[[["[['deep']]"]]]]),
        (Unprintable(), "\x1b[2J\ud800"),
    ],
)
def test_json_is_valid_whatever_the_fields(value, written):
    assert json_line(given=value)["given"] == written


def test_fields_replace_nothing_of_the_line():
    found = json_line("real", time="forged", level="debug", component="x", logger="y")
    assert (found["level"], found["component"], found["logger"]) == (
        *("error", "log", "moldau.data.x"),
    )
    assert found["time"] != "forged"
    assert json_line("two %s and %s", "one")["message"] == "two %s and %s ('one',)"


def test_text_ends_with_the_event():
    made = record("x")
    made.__dict__["event"] = "disk-full"
    made.created, made.msecs = 1795032476.0, 7.0
    line = TextFormatter(TEXT_LINE).format(made)
    assert line == "2026-11-18T20:07:56.007Z INFO    server: group x [disk-full]"

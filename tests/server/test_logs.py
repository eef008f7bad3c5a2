"""Lines of the log, whatever the text in them."""

import json
import logging

import pytest

from moldau.server.logs import JsonFormatter, TextFormatter

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
    assert others[0].startswith("Traceback")
    assert others[-1] == "ValueError: it failed"

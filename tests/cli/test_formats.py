"""How messages are printed."""

import json
from dataclasses import dataclass, field

import pytest

from moldau.cli.errors import CommandError
from moldau.cli.formats import PLACEHOLDERS, json_formatter, template_formatter, text_formatter


@dataclass
class Message:
    key_: bytes | None = b"k"
    value_: bytes | None = b"v"
    headers_: list | None = field(default_factory=lambda: [("a", b"1"), ("b", None)])

    def topic(self):
        return "t"

    def partition(self):
        return 3

    def offset(self):
        return 42

    def timestamp(self):
        return (1, 1700000000000)

    def key(self):
        return self.key_

    def value(self):
        return self.value_

    def headers(self):
        return self.headers_


def test_text_is_the_value_and_on_request_key_and_headers():
    assert text_formatter(key=False, headers=False)(Message()) == b"v\n"
    assert text_formatter(key=True, headers=True)(Message()) == b"a=1,b=\tk\tv\n"
    assert text_formatter(key=True, headers=False)(Message(key_=None)) == b"null\tv\n"


def test_text_passes_bytes_through_as_they_are():
    assert text_formatter(key=False, headers=False)(Message(value_=b"\xff\x00")) == b"\xff\x00\n"


def test_json_holds_everything_and_bytes_survive():
    document = json.loads(json_formatter(Message(key_=None, value_=b"\xff", headers_=None)))
    assert document == {
        "topic": "t",
        "partition": 3,
        "offset": 42,
        "timestamp": 1700000000000,
        "key": None,
        "value": {"base64": "/w=="},
        "headers": [],
    }
    assert json.loads(json_formatter(Message()))["headers"] == [["a", "1"], ["b", None]]


def test_json_is_one_line_whatever_the_value():
    assert json_formatter(Message(value_=b"a\nb\r")).count(b"\n") == 1


def test_a_template_fills_every_placeholder():
    template = "%t/%p:%o@%T %k=%s {%h} %K %S 100%%\\n\\t"
    assert template_formatter(template)(Message()) == (
        b"t/3:42@1700000000000 k=v {a=1,b=} 1 1 100%\n\t"
    )


def test_missing_key_and_value_have_length_minus_one():
    assert template_formatter("%K,%S,%k%s")(Message(key_=None, value_=None)) == b"-1,-1,"


@pytest.mark.parametrize("template", ["%x", "50%", "\\q", "end\\"])
def test_an_unknown_placeholder_is_refused_with_the_known_ones(template):
    with pytest.raises(CommandError) as caught:
        template_formatter(template)
    assert "placeholders" in caught.value.hint or "escapes" in caught.value.hint


def test_every_placeholder_of_the_help_works():
    for name in PLACEHOLDERS:
        assert template_formatter(f"%{name}")(Message()) != b""

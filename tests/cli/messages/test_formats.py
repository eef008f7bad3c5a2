"""How messages are printed."""

import json
from dataclasses import dataclass, field

import pytest

from moldau.cli.errors import CommandError
from moldau.cli.messages.formats import (
    NULL,
    PLACEHOLDERS,
    json_formatter,
    template_formatter,
    text_formatter,
)


@dataclass
class Message:
    key_: bytes | None = b"k"
    value_: bytes | None = b"v"
    headers_: list[tuple[str, bytes | None]] | None = field(
        default_factory=lambda: [("a", b"1"), ("b", None)]
    )

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
    assert text_formatter(key=True, headers=True)(Message()) == b"a=1,b=NULL\tk\tv\n"
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
        b"t/3:42@1700000000000 k=v {a=1,b=NULL} 1 1 100%\n\t"
    )


def test_missing_key_and_value_have_length_minus_one():
    assert template_formatter("%K,%S,%k%s")(Message(key_=None, value_=None)) == b"-1,-1,"


def test_null_is_nothing_as_with_kcat_unless_it_is_to_be_seen():
    nothing = Message(key_=None, value_=None)
    assert template_formatter("%k|%s", NULL)(nothing) == b"NULL|NULL"
    assert template_formatter("%k|%s", NULL)(Message(key_=b"", value_=b"")) == b"|"
    assert text_formatter(key=True, headers=False, null=NULL)(nothing) == b"NULL\tNULL\n"
    assert text_formatter(key=True, headers=False)(nothing) == b"null\t\n"


def test_the_length_of_a_value_is_written_in_binary_for_programs():
    assert template_formatter("%R%s")(Message(value_=b"abc")) == b"\0\0\0\x03abc"
    assert template_formatter("%R")(Message(value_=None)) == b"\xff\xff\xff\xff"


def test_a_template_can_write_any_byte():
    assert template_formatter("\\x00\\xfF\\0\\\\x41")(Message()) == b"\0\xff\0\\x41"


def test_the_topic_comes_first_where_there_are_several():
    assert text_formatter(key=True, headers=False, topic=True)(Message()) == b"t\tk\tv\n"


def test_colours_set_off_what_stands_before_the_value_and_mark_what_was_looked_for():
    plain = text_formatter(key=True, headers=True, marked=b"v")
    assert b"\033[" not in plain(Message())
    line = text_formatter(key=True, headers=False, color=True, marked=b"v")(Message(value_=b"avb"))
    assert line == b"\033[36mk\033[0m\ta\033[31mv\033[0mb\n"


@pytest.mark.parametrize("template", ["%x", "50%", "\\q", "end\\", "\\xZZ", "\\x1"])
def test_an_unknown_placeholder_is_refused_with_the_known_ones(template):
    with pytest.raises(CommandError) as caught:
        template_formatter(template)
    assert "placeholders" in caught.value.hint or "escapes" in caught.value.hint


def test_every_placeholder_of_the_help_works():
    for name in PLACEHOLDERS:
        assert template_formatter(f"%{name}")(Message()) != b""

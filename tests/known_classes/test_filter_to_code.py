"""Known class: a filter that leads to code: it is parsed, never executed, and bounded in time.

There are four kinds of filters. `--filter` of the command line, `key`, `contains` and `header` of
HTTP, the patterns of consumer groups (KIP-848), which the broker matches, and the filters and
patterns of Spark reads.
"""

import json
import pickle
from contextlib import suppress
from typing import Any

import pytest
from code_watch import code_watch

from moldau.cli.errors import CommandError
from moldau.cli.messages.filter_terms import FilteredMessage
from moldau.cli.messages.filters import parse_filter
from moldau.client.errors import ClientError
from moldau.edge.http.record_json import RecordSelection, show
from moldau.groups.consumer.patterns import Budget, Pattern, PatternError
from moldau.model.ids import Offset, TimestampMs
from moldau.records.record import Record
from moldau.spark.source.java_pattern import python_pattern

# The command line brings modules along that start threads when they are imported.
pytestmark = pytest.mark.inprocess


class Tripwire:
    """What a pickle of it would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("pass",)


PICKLED = pickle.dumps(Tripwire())
CODE = (
    "__import__('os').system('id')",
    "().__class__.__base__.__subclasses__()",
    "{0.__class__.__mro__}",
    "%(x)s %s %n",
    "${jndi:ldap://127.0.0.1/a}",
    "#{T(java.lang.Runtime).getRuntime().exec('id')}",
    "' OR '1'='1",
    "1; DROP TABLE t",
    "reflect('java.lang.Runtime', 'getRuntime')",
    "(?{system('id')})",
    "$(id) `id` | id & id > /tmp/x",
    "\x00\x1b]0;id\x07",
    "__class__",
    "lambda: 0",
    PICKLED.decode("latin-1"),
)
FIELDS = (
    "key",
    "value",
    "topic",
    "header.h",
    ".a",
    ".__class__",
    ".a.__init__.__globals__",
    ".a[0]",
)
SIGNS = ("=", "!=", "~", "<")


class Message:
    """One whose every part is an attack."""

    def __init__(self, text: str) -> None:
        self.text = text.encode()

    def key(self) -> bytes:
        return PICKLED

    def value(self) -> bytes:
        return json.dumps({"a": self.text.decode(), "__class__": "x"}).encode()

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 0

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def headers(self) -> list[tuple[str, bytes]]:
        return [("h", self.text)]


def test_the_watch_sees_code():
    """The check of these tests."""
    with code_watch() as seen:
        eval("1 + 1")
        pickle.loads(PICKLED)
    assert any(each.startswith("compile") for each in seen)
    assert any(each.startswith("pickle.find_class") for each in seen)


@pytest.mark.parametrize("text", CODE, ids=range(len(CODE)))
def test_filters_of_the_command_line_run_nothing(text: str):
    parse_filter("value = harmless").matches(FilteredMessage(Message("harmless")))
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    wanted = [text, f".{text} = 1", f"header.{text} = 1"]
    wanted += [f'{field} {sign} "{quoted}"' for field in FIELDS for sign in SIGNS]
    with code_watch() as seen:
        for each in wanted:
            with suppress(CommandError):
                parse_filter(each).matches(FilteredMessage(Message(text)))
    assert seen == []


def test_a_path_leads_into_json_and_not_into_objects():
    message = FilteredMessage(Message("x"))
    for path in (".a.__class__", ".a.__len__", ".__dict__", ".a.upper", ".keys", "._document"):
        assert not parse_filter(path).matches(message)
    assert parse_filter('.__class__ = "x"').matches(message)


@pytest.mark.parametrize("text", CODE, ids=range(len(CODE)))
def test_filters_of_http_compare_bytes(text: str):
    """And what they select is shown as it is: a pickle is bytes, not an object."""
    record = Record(Offset(0), TimestampMs(0), PICKLED, text.encode(), [("h", PICKLED)])
    given: dict[str, Any] = {"headers": ((text, None),)}
    with code_watch() as seen:
        assert RecordSelection(contains=text.encode(), key=PICKLED).matches(record)
        assert not RecordSelection(**given).matches(record)
        for encoding in ("text", "json", "base64"):
            show(record, RecordSelection(key_encoding=encoding, value_encoding=encoding))
    assert seen == []


@pytest.mark.parametrize("text", CODE, ids=range(len(CODE)))
def test_patterns_of_groups_run_nothing(text: str):
    with code_watch() as seen, suppress(PatternError):
        Pattern(text).matches(text, Budget(1))
    assert seen == []


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|aa)+$", "(.*)*x", "(a*)*b", "(?:a?){50}a{50}", "([a-z]+)*!"]
)
def test_patterns_of_groups_do_not_keep_the_broker_busy(pattern: str):
    """They take years in a matcher that backtracks: this test would never end."""
    name = "a" * 249
    with suppress(PatternError):
        assert isinstance(Pattern(pattern).matches(name, Budget(1)), bool)


@pytest.mark.parametrize("text", CODE, ids=range(len(CODE)))
def test_patterns_of_spark_run_nothing(text: str):
    with code_watch() as seen, suppress(ClientError):
        python_pattern(text, "subscribePattern")
    assert seen == []

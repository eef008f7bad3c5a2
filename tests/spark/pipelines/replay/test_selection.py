"""Which records a replay means."""

from pathlib import Path
from typing import Any

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.replay.selection import Span, selection_of
from moldau.spark.pipelines.replay.settings import ReplaySettings

NOW_MS = 1_800_000_000_000


def asked(**values: Any) -> ReplaySettings:
    given = {"topics": ("orders",), **values}
    return ReplaySettings(name="r", bootstrap="b:1", home="/nowhere", target="again", **given)


def test_times_are_read_as_iso_as_milliseconds_and_as_ago() -> None:
    found = selection_of(
        asked(from_time="2027-01-15T08:00:00+00:00", to_time="-10m"), now_ms=NOW_MS + 700_000
    )
    assert (found.from_ms, found.to_ms) == (NOW_MS, NOW_MS + 100_000)
    assert (
        selection_of(asked(from_time="1700000000000"), now_ms=NOW_MS).from_ms == 1_700_000_000_000
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"from_time": "yesterday"}, "--from-time 'yesterday' is no time"),
        ({"from_time": "-1h", "to_time": "-2h"}, "nothing lies between"),
        ({"from_time": "-1h", "to_time": "-1h"}, "nothing lies between"),
        ({"offsets": ("0:5",)}, "--offsets '0:5' is not"),
        ({"offsets": ("0:5-4",)}, "is empty"),
        ({"offsets": ("0:1-2", "0:5-6")}, "names partition 0 twice"),
        ({"offsets": ("bills/0:1-2",)}, "names bills, which is not among what is read"),
        ({"keys": ("zz",), "key_encoding": "hex"}, "'zz' is no hex"),
        ({"keys": ("=",), "key_encoding": "base64"}, "is no base64"),
        ({"key_encoding": "rot13"}, "--key-encoding is text, hex, base64"),
        ({"key_file": "/nowhere/keys"}, "--key-file /nowhere/keys cannot be read"),
    ],
)
def test_what_cannot_be_right_names_the_option_to_change(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        selection_of(asked(**values), now_ms=NOW_MS)


def test_offsets_include_both_ends_and_may_lack_one() -> None:
    found = selection_of(asked(offsets=("0:100-199", "1:7-", "orders/2:-9")), now_ms=NOW_MS)
    assert found.span("orders", 0) == Span(100, 200)
    assert found.span("orders", 1) == Span(7, None)
    assert found.span("orders", 2) == Span(None, 10)
    # Only partitions that are named are meant.
    assert found.span("orders", 3) is None
    assert selection_of(asked(), now_ms=NOW_MS).span("orders", 3) == Span(None, None)


def test_keys_come_from_the_command_line_and_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"one\n\ntwo\r\nb\xff\xfe\n")
    found = selection_of(asked(keys=("three",), key_file=str(file)), now_ms=NOW_MS)
    assert found.keys == {b"one", b"two", b"b\xff\xfe", b"three"}
    file.write_text("00ff\n 61 \n")
    found = selection_of(asked(key_file=str(file), key_encoding="hex"), now_ms=NOW_MS)
    assert found.keys == {b"\x00\xff", b"a"}


def test_an_empty_file_of_keys_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\n\n")
    with pytest.raises(InvalidArgumentError, match="holds no key"):
        selection_of(asked(key_file=str(file)), now_ms=NOW_MS)


def test_a_digest_tells_other_keys_apart(tmp_path: Path) -> None:
    one = selection_of(asked(keys=("a", "b")), now_ms=NOW_MS).keys_digest()
    assert one == selection_of(asked(keys=("b", "a")), now_ms=NOW_MS).keys_digest()
    assert one != selection_of(asked(keys=("ab",)), now_ms=NOW_MS).keys_digest()
    assert selection_of(asked(), now_ms=NOW_MS).keys_digest() is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"table": "/lake/orders"}, "from topics or from a table"),
        ({"topics": ()}, "from topics or from a table"),
        ({"batch_rows": 0}, "--batch-rows is at least 1"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        asked(**values).check()

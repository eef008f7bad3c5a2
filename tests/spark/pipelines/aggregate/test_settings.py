"""Settings that cannot be right say which option to change."""

from pathlib import Path
from typing import Any

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.aggregate.remembered import Remembered, asked_of, recall, remember
from moldau.spark.pipelines.aggregate.settings import AggregateSettings, check, decoder_of


def made(**fields: Any) -> AggregateSettings:
    usual: dict[str, Any] = {
        "name": "sums",
        "bootstrap": "localhost:1",
        "home": "/nowhere",
        "topics": ("clicks",),
        "sql": "SELECT 1",
        "to_topic": "sums",
    }
    return AggregateSettings(**usual | fields)


@pytest.mark.parametrize("watermark", ["10 minutes", "0 seconds", "1 hour 30 Seconds", " 2 days "])
def test_usual_settings_are_fine(watermark: str) -> None:
    check(made(watermark=watermark))
    check(made(to_topic=None, to_table="/lake/sums", table_format="delta"))


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ({"topics": ()}, "--topic"),
        ({"sql": " "}, "--sql"),
        ({"view": "a b"}, "--view"),
        ({"watermark": "10"}, "--watermark"),
        ({"watermark": "-1 minutes"}, "--watermark"),
        ({"watermark": "1 month"}, "--watermark"),
        ({"mode": "complete"}, "--mode"),
        ({"start": "now"}, "--from"),
        ({"to_topic": None}, "--to and --to-table"),
        ({"to_table": "/lake"}, "--to and --to-table"),
        ({"to_topic": None, "to_table": "/lake", "table_format": "csv"}, "--format"),
        ({"to_topic": None, "to_table": "/lake", "key": "a"}, "--key"),
        ({"to_topic": None, "to_table": "/lake", "mode": "update"}, "--mode update"),
        ({"storage": {"a": "b"}}, "--storage"),
        ({"master": "sc://there"}, "--master"),
        ({"to_topic": "clicks"}, "never ends"),
        ({"late_topic": "clicks"}, "never ends"),
        ({"to_topic": "clicks.late"}, "results and rows that are none"),
    ],
)
def test_what_cannot_be_right_names_the_option(fields: dict[str, Any], option: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check(made(**fields))
    assert option in f"{caught.value} {caught.value.hint}"


def test_side_topics_have_names_of_their_own() -> None:
    assert (made().late, made().dead) == ("clicks.late", "clicks.dlq")
    named = made(late_topic="l", dead_letter_topic="d")
    assert (named.late, named.dead) == ("l", "d")


def test_values_are_decoded_as_asked() -> None:
    assert decoder_of(made()) is None
    inferred = decoder_of(made(), '{"properties": {"a": {"type": "integer"}}}')
    assert inferred is not None
    assert str(inferred.struct) == "struct<a: int64>"
    raw = decoder_of(made(decode="raw"))
    assert raw is not None
    assert raw.struct is None
    with pytest.raises(InvalidArgumentError, match="values cannot be decoded") as caught:
        decoder_of(made(decode="avro"))
    assert "--schema" in caught.value.hint


def test_what_was_asked_before_is_remembered(tmp_path: Path) -> None:
    settings = made(home=str(tmp_path))
    assert recall(settings) is None
    kept = Remembered(start={"clicks": {"0": 7}}, schema="`a`: int", asked=asked_of(settings))
    remember(settings, kept)
    assert recall(settings) == kept
    assert recall(made(home=str(tmp_path), watermark="1 hour")) == kept
    with pytest.raises(InvalidArgumentError, match="another --sql: SELECT 1"):
        recall(made(home=str(tmp_path), sql="SELECT 2"))

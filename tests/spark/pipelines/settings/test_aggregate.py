"""Settings that cannot be right say which option to change."""

from typing import Any

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.settings.aggregate import AggregateSettings


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
    made(watermark=watermark).check()
    made(to_topic=None, to_table="/lake/sums", table_format="delta").check()


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
        ({"to_topic": None}, "one of --to and --to-table"),
        ({"to_table": "/lake"}, "one of --to and --to-table"),
        ({"to_topic": None, "to_table": "/lake", "table_format": "csv"}, "--format"),
        ({"to_topic": None, "to_table": "/lake", "key": "a"}, "--key"),
        ({"to_topic": None, "to_table": "/lake", "mode": "update"}, "--mode update"),
        ({"storage": {"a": "b"}}, "--storage"),
        ({"master": "sc://there"}, "--master"),
        ({"to_topic": "clicks"}, "an endless loop"),
        ({"late_topic": "clicks"}, "an endless loop"),
        ({"to_topic": "clicks.late"}, "would mix results with late or bad rows"),
    ],
)
def test_what_cannot_be_right_names_the_option(fields: dict[str, Any], option: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        made(**fields).check()
    assert option in f"{caught.value} {caught.value.hint}"


def test_side_topics_have_names_of_their_own() -> None:
    assert (made().late, made().dead) == ("clicks.late", "clicks.dlq")
    named = made(late_topic="l", dead_letter_topic="d")
    assert (named.late, named.dead) == ("l", "d")

"""What an archive may be told."""

from typing import Any

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.settings.archive import ArchiveSettings


def made(**values: Any) -> ArchiveSettings:
    given: dict[str, Any] = {"topics": ("orders",), "to": "/lake/orders", **values}
    return ArchiveSettings(name="keep", bootstrap="localhost:9092", home="/tmp/keep", **given)


@pytest.mark.parametrize(
    ("values", "option"),
    [
        ({"topics": ()}, "--topic"),
        ({"table_format": "orc"}, "--format"),
        ({"decode": "xml"}, "--decode"),
        ({"schema": "id bigint"}, "--decode"),
        ({"decode": "json", "topics": ("orders", "orders.dlq")}, "--dead-letter-topic"),
        ({"to": "s3://bucket"}, "--to"),
        ({"to": "ftp://name/lake"}, "--to"),
        ({"offsets_per_trigger_max": 0}, "--max-offsets"),
        ({"master": "sc://host"}, "--master"),
        ({"start": "yesterday"}, "--from"),
    ],
)
def test_what_cannot_be_is_refused_with_the_option_to_change(
    values: dict[str, Any], option: str
) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        made(**values).check()
    assert option in f"{refused.value} {refused.value.hint}"


def test_topics_share_a_table_or_have_one_each() -> None:
    both = made(topics=("orders", "clicks"), to="/lake")
    assert both.locations() == {"orders": "/lake", "clicks": "/lake"}
    each = made(topics=("orders", "clicks"), to="s3://lake/all/", table_per_topic=True)
    assert each.locations() == {
        "orders": "s3://lake/all/orders",
        "clicks": "s3://lake/all/clicks",
    }


def test_options_of_the_user_go_before_what_is_usual_and_not_before_what_is_ours() -> None:
    with pytest.raises(InvalidArgumentError, match="groupId is set by the pipeline"):
        made(options={"groupId": "mine"}).source_options()
    options = made(options={"maxOffsetsPerTrigger": "7"}).source_options()
    assert options["maxOffsetsPerTrigger"] == "7"
    assert options["groupId"] == "keep"
    assert options["startingOffsets"] == "earliest"
    # In whichever case: what says where to begin must not be said twice.
    options = made(options={"startingtimestamp": "5", "ISOLATION": "x"}).source_options()
    assert (options["startingTimestamp"], options["isolation"]) == ("5", "x")
    assert len({name.lower() for name in options}) == len(options)

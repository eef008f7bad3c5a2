"""`moldau pipeline run audit`: what the command line asks for becomes settings, or is refused."""

from typing import Any

import pytest
from pipeline_words import settings_from

from moldau.cli.pipeline.audit import EXAMPLES
from moldau.client.errors import InvalidArgumentError


def parsed(*words: str) -> Any:
    found = settings_from("audit", words)
    found.check()
    return found


def test_a_table_is_named_with_its_format_and_storage() -> None:
    found = parsed(
        *("--topic", "orders", "--topic", "returns", "--table", "s3://lake/orders"),
        *(
            "--format",
            "delta",
            "--storage",
            "region=eu",
            "--group",
            "archive",
            "--through",
            "group",
        ),
    )
    assert found.topics == ("orders", "returns")
    assert (found.table, found.table_format) == ("s3://lake/orders", "delta")
    assert found.storage == {"region": "eu"}
    assert (found.groups, found.through) == (("archive",), "group")


def test_a_copy_is_matched_by_pairs_of_terms() -> None:
    words = ("--topic", "a", "--against-topic", "b", "--match", "key", "--match", "value")
    assert parsed(*words).match == ("key", "value")
    with pytest.raises(InvalidArgumentError, match="are pairs"):
        parsed(*words, "--match-against", "key")


@pytest.mark.parametrize(
    "words",
    [
        ("--topic", "a"),
        ("--topic", "a", "--table", "/t", "--against-topic", "b"),
        ("--topic", "a", "--against-topic", "a"),
        ("--topic", "a", "--against-topic", "b", "--through", "group"),
    ],
)
def test_what_does_not_fit_together_is_refused_with_a_word_about_the_option(
    words: tuple[str, ...],
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"--|topic"):
        parsed(*words)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_can_be_parsed(example: str) -> None:
    words = example.removeprefix("moldau pipeline run audit ").removesuffix(" -o json").split()
    assert parsed(*words).topics

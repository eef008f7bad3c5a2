"""The command line of archives."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from pipeline_words import settings_from

from moldau.cli.pipeline import archive
from moldau.cli.pipeline.kinds import _parameters
from moldau.spark.pipelines.archive.settings import OFFSETS_PER_TRIGGER_DEFAULT

PAGE = Path(__file__).parents[3] / "docs" / "spark" / "archive.md"


def parsed(words: list[str]) -> Any:
    return settings_from("archive", words)


@pytest.mark.parametrize("example", archive.EXAMPLES)
def test_examples_are_what_an_archive_takes(example: str) -> None:
    words = shlex.split(example)
    assert words[:4] == ["moldau", "pipeline", "run", "archive"]
    settings = parsed(words[4:])
    settings.check()
    assert (settings.kind, settings.name, settings.bootstrap) == ("archive", "n", "b:1")
    assert settings.offsets_per_trigger_max == OFFSETS_PER_TRIGGER_DEFAULT


def test_what_is_said_arrives() -> None:
    words = (
        "--topic a --topic b --topic a --to /lake --format iceberg --storage catalog=sqlite:///c "
        "--decode json --schema x.json --dead-letter-topic bad --from latest --max-offsets 9"
    )
    settings = parsed(words.split())
    assert settings.topics == ("a", "b")
    assert settings.storage == {"catalog": "sqlite:///c"}
    assert (settings.table_format, settings.decode, settings.schema) == (
        "iceberg",
        "json",
        "x.json",
    )
    assert settings.source_options()["startingOffsets"] == "latest"
    assert settings.source_options()["maxOffsetsPerTrigger"] == "9"
    assert settings.dead == "bad"


def test_every_option_is_on_the_page_about_archives() -> None:
    text = PAGE.read_text()
    names = [name for param in _parameters(archive.OPTIONS) for name in param.opts]
    assert len(names) == len(archive.OPTIONS)
    assert [name for name in names if f"`{name}`" not in text] == []


def test_commands_of_the_page_about_archives_are_what_an_archive_takes() -> None:
    lines = re.findall(r"^\$ moldau pipeline run archive (.*)$", PAGE.read_text(), re.M)
    assert len(lines) == 5
    for line in lines:
        parsed(shlex.split(line)).check()

"""How commands are made of kinds: the name of a pipeline that is given none."""

import pytest

from moldau.cli.pipeline.kind_options import kind_options
from moldau.cli.pipeline.kinds import _words, parameters
from moldau.spark.pipelines.kinds import KINDS


def test_a_pipeline_of_a_table_has_the_same_name_from_everywhere(tmp_path, monkeypatch):
    options = parameters(kind_options(KINDS["compact"]))
    monkeypatch.chdir(tmp_path)
    asked = ("./lake", "lake", "lake/", f"../{tmp_path.name}/lake", str(tmp_path / "lake"))
    names = {_words(options, {"table": place})[0] for place in asked}
    assert len(names) == 1
    assert names.pop().startswith("lake-")
    assert _words(options, {"table": "other/lake"}) != _words(options, {"table": "lake"})


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        ("archive", {"topics": ("a", "b"), "to": "/lake"}, ["a", "b"]),
        ("compact", {"table": "s3://lake/orders"}, ["s3://lake/orders"]),
        ("replay", {"target": "again", "topics": ("a",)}, ["again"]),
        ("aggregate", {"topics": ("a",), "sql": "SELECT 1"}, ["a"]),
        ("audit", {"topics": ("a",)}, ["a"]),
    ],
)
def test_a_pipeline_is_named_by_its_first_required_option(kind, values, words):
    assert _words(parameters(kind_options(KINDS[kind])), values) == words

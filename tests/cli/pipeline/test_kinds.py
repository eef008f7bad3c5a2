"""How commands are made of kinds: the name of a pipeline that is given none."""

from moldau.cli.pipeline import compact
from moldau.cli.pipeline.kinds import _parameters, _words


def test_a_pipeline_of_a_table_has_the_same_name_from_everywhere(tmp_path, monkeypatch):
    parameters = _parameters(compact.OPTIONS)
    monkeypatch.chdir(tmp_path)
    asked = ("./lake", "lake", "lake/", f"../{tmp_path.name}/lake", str(tmp_path / "lake"))
    names = {_words(parameters, {"table": place})[0] for place in asked}
    assert len(names) == 1
    assert names.pop().startswith("lake-")
    assert _words(parameters, {"table": "other/lake"}) != _words(parameters, {"table": "lake"})

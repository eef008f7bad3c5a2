"""What keeps a version from being released, and which names fragments have."""

import shutil
from pathlib import Path

import pytest

from release.check import ROOT, fragments, misnamed, problems
from release.deploy_files import (
    RENDERED,
    expected_files,
    is_sealed,
    outdated_files,
    semantic_version,
)
from release.dist import differences

DATED = "# Changelog\n\n## 1.2.3, 2030-01-02\n"


def test_a_version_with_a_dated_section_and_its_tag_can_be_released() -> None:
    assert problems("1.2.3", DATED, [], "v1.2.3") == []
    assert problems("1.2.3rc1", DATED.replace("1.2.3", "1.2.3rc1"), [], None) == []


def test_each_thing_that_is_missing_is_named() -> None:
    assert len(problems("1.2", DATED.replace("1.2.3", "1.2"), [], None)) == 1
    assert problems("1.2.3", DATED, [], "v1.2.4") == [
        "the tag is v1.2.4, the version 1.2.3: the tag must be v1.2.3"
    ]
    assert "2 fragments" in problems("1.2.3", DATED, ["a.added.md", "b.fixed.md"], None)[0]
    assert "no section for 1.2.4" in problems("1.2.4", DATED, [], None)[0]
    merge = "CHANGELOG.md has an unreleased section: merge it into the new one"
    assert problems("1.2.3", DATED + "## 1.2.2, unreleased\n", [], None) == [merge]
    # Its changes are those of the release, which most people update to from the release before.
    merge = "CHANGELOG.md has a section for the candidate 1.2.3rc1: merge it into the new one"
    assert problems("1.2.3", DATED + "## 1.2.3rc1, 2030-01-01\n", [], None) == [merge]
    older = "## 1.2.3rc1, 2030-01-01\n## 1.2.2rc1, 2029-01-01\n"
    assert problems("1.2.3rc2", DATED.replace("1.2.3", "1.2.3rc2") + older, [], None) == []


def test_every_fragment_gets_into_the_changelog() -> None:
    assert misnamed(["a-b.added.md", "c.md", "d.feature.md", "e.fixed.txt"]) == [
        "c.md",
        "d.feature.md",
        "e.fixed.txt",
    ]
    assert misnamed(fragments()) == []
    assert [name for name in fragments() if not (ROOT / "changelog.d" / name).read_text()] == []


def test_files_that_differ_are_named(tmp_path: Path) -> None:
    one, same, other = (tmp_path / name / "moldau.whl" for name in "abc")
    for path, text in ((one, "x"), (same, "x"), (other, "y")):
        path.parent.mkdir()
        path.write_text(text)
    assert differences([one], [same]) == []
    assert differences([one], [other]) == ["moldau.whl differs"]


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.2.0", "0.2.0"), ("0.2.0.dev0", "0.2.0-dev.0"), ("0.2.0rc10", "0.2.0-rc.10")],
)
def test_charts_and_images_have_semantic_versions(version: str, expected: str) -> None:
    assert semantic_version(version) == expected
    for path, text in expected_files(version).items():
        assert path.name in ("alerts.yml", "values.schema.json") or expected in text


def test_the_version_after_a_candidate_leaves_nothing_of_it(tmp_path: Path) -> None:
    root = tmp_path / "copy"
    shutil.copytree(ROOT / "deploy", root / "deploy")
    shutil.copytree(ROOT / "docs/operate", root / "docs/operate")
    before = expected_files("0.2.0", root)
    for path, text in expected_files("0.2.0rc1", root).items():
        path.write_text(text)
    assert expected_files("0.2.0", root) == before


def test_a_version_without_a_semantic_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the version 1\.2 is not"):
        semantic_version("1.2")


@pytest.mark.parametrize("name", RENDERED)
def test_a_chart_that_is_changed_and_not_rendered_is_noticed_without_helm(
    name: str, tmp_path: Path
) -> None:
    assert outdated_files() == [], "make deploy-files"
    folder, chart = tmp_path / "kubernetes", tmp_path / "chart"
    shutil.copytree(ROOT / "deploy/kubernetes", folder)
    shutil.copytree(ROOT / "deploy/helm/moldau", chart)
    values = RENDERED[name]
    assert is_sealed(name, values, chart, folder)
    changed = [chart / "values.yaml", chart / "templates/pdb.yaml", chart / "files/zone.py"]
    for path in (*changed, folder / values, folder / name):
        before = path.read_text()
        path.write_text(before + "# changed\n")
        assert not is_sealed(name, values, chart, folder), path
        path.write_text(before)
    (chart / "templates/new.yaml").write_text("")
    assert not is_sealed(name, values, chart, folder)

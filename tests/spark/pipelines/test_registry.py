"""Which kinds of pipelines there are."""

import sys

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines import registry


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Installs entry points: `package(kind="module", …)`; `commands` are those of command lines."""

    def install(commands=None, **kinds):
        info = tmp_path / "extra-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n")
        lines = [f"[{registry.GROUP}]", *(f"{name} = {value}" for name, value in kinds.items())]
        lines += [f"[{registry.COMMANDS_GROUP}]"]
        lines += [f"{name} = {value}" for name, value in (commands or {}).items()]
        (info / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.syspath_prepend(str(tmp_path))
        registry.kinds.cache_clear()

    yield install
    registry.kinds.cache_clear()


def test_the_ready_made_kinds_are_known_without_being_imported():
    assert tuple(registry.kinds()) == registry.READY_MADE
    for kind in registry.kinds().values():
        assert kind.module.startswith(f"moldau.spark.pipelines.{kind.name}")


def test_a_package_adds_a_kind(package):
    package(count="counting_kind", commands={"count": "counting_command"})
    assert registry.find("count").command == "counting_command"
    loaded = registry.load("count")
    assert loaded.settings.kind == "count"
    assert callable(loaded.run)


def test_a_kind_without_a_command_line_is_for_files_alone(package):
    package(count="counting_kind")
    assert registry.find("count").command is None


def test_nobody_takes_the_name_of_a_ready_made_kind(package):
    name = next(iter(registry.kinds()))
    package(**{name: "counting_kind"})
    assert registry.find(name).module == f"moldau.spark.pipelines.{name}"


def test_an_unknown_kind_is_refused_with_the_nearest_one(package):
    package(count="counting_kind")
    with pytest.raises(InvalidArgumentError, match="no kind of pipeline 'coutn'") as caught:
        registry.load("coutn")
    assert "did you mean count?" in caught.value.hint


@pytest.mark.parametrize(
    ("module", "said"),
    [("no_such_module", "is not there"), ("textwrap", "is no pipeline")],
)
def test_an_entry_point_that_is_no_pipeline_is_refused(package, module, said):
    package(odd=module)
    with pytest.raises(InvalidArgumentError, match=said):
        registry.load("odd")


def test_a_package_that_a_kind_needs_and_that_is_missing_is_named(package, tmp_path, monkeypatch):
    (tmp_path / "needy.py").write_text("import not_installed_at_all.part\n")
    package(needy="needy")
    with pytest.raises(InvalidArgumentError, match="package not_installed_at_all is not") as caught:
        registry.load("needy")
    assert "moldau[spark]" in caught.value.hint
    sys.modules.pop("needy", None)

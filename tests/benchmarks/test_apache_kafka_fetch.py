"""What comes of a fetch by Maven: a script plays Maven, well or badly."""

from pathlib import Path

import pytest

from benchmarks import apache_kafka
from benchmarks.apache_kafka import UnavailableError, distribution, fetch

pytestmark = pytest.mark.system

FAILS = "#!/bin/sh\necho cannot reach repo.example.org\nexit 1\n"
HAS_ONLY_OTHERS = """#!/bin/sh
grep -q '>4.3.1<' pom.xml && exit 1
for word; do case $word in -DoutputDirectory=*) folder=${word#*=};; esac; done
mkdir "$folder" && touch "$folder/kafka_2.13-4.2.7.jar"
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "build" / "apache-kafka"


def play_maven(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "bin" / "mvn"
    program.parent.mkdir()
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def test_a_failed_fetch_is_one_line_without_an_address_and_leaves_nothing_half_done(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_maven(tmp_path, FAILS, monkeypatch)
    with pytest.raises(UnavailableError) as caught:
        fetch(cache, tmp_path)
    assert str(caught.value) == "Maven cannot fetch it, see build/apache-kafka/maven.log"
    assert [path.name for path in cache.iterdir()] == ["maven.log"]


def test_the_newest_of_4_is_taken_where_the_wanted_one_is_missing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_maven(tmp_path, HAS_ONLY_OTHERS, monkeypatch)
    folder = fetch(cache, tmp_path)
    assert folder == cache / "4.2.7"
    assert apache_kafka.version_in(folder) == "4.2.7"
    assert apache_kafka.cached(cache) == folder


def test_without_maven_there_is_a_line_that_says_so(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"^there is no Maven \(mvn\)$"):
        fetch(cache, tmp_path)


def test_without_java_nothing_is_fetched(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"^there is no Java 17 or newer$"):
        distribution(cache)
    assert not cache.exists()

"""How Spark sessions are made: what is set for which master, and what is said where none is."""

import importlib.util
import os
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import moldau.spark
from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.spark import sessions
from moldau.spark.java import Java
from moldau.spark.sessions import (
    check_master,
    compiled_home,
    cores_of,
    defaults,
    is_this_machine,
    java_options,
)
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLUSTERS = ["spark://master:7077", "spark://a:7077,b:7077", "k8s://https://10.0.0.1:443", "yarn"]


@pytest.mark.parametrize(
    "master", ["local", "local[4]", "local[*]", "local[2,3]", "sc://server:15002", *CLUSTERS]
)
def test_masters_of_spark_are_taken(master: str) -> None:
    check_master(master)


@pytest.mark.parametrize(
    "master", ["", "locla[2]", "local[0]", "local[x]", "local[2", "spark://", "host:7077", "sc://"]
)
def test_what_is_no_master_is_refused_with_examples(master: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a valid Spark master") as raised:
        moldau.spark.session(master)
    assert "spark://HOST:7077" in raised.value.hint


def test_a_local_session_stays_on_this_machine_and_has_as_many_partitions_as_cores() -> None:
    found = defaults("local[3]", {})
    assert found["spark.sql.shuffle.partitions"] == "3"
    assert found["spark.driver.host"] == found["spark.driver.bindAddress"] == "127.0.0.1"
    assert found["spark.ui.enabled"] == "false"
    assert int(defaults("local[*]", {})["spark.sql.shuffle.partitions"]) >= 1
    assert defaults("local", {})["spark.sql.shuffle.partitions"] == "1"


@pytest.mark.parametrize("master", CLUSTERS)
def test_the_workers_of_a_cluster_can_reach_the_driver(master: str) -> None:
    found = defaults(master, {})
    assert not [key for key in found if key.startswith(("spark.driver.", "spark.ui."))]
    assert "spark.sql.shuffle.partitions" not in found


@pytest.mark.parametrize("master", ["local[2]", "sc://server", *CLUSTERS])
def test_every_session_has_moments_in_utc_and_filters_that_reach_the_source(master: str) -> None:
    found = defaults(master, {})
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert found["spark.sql.python.filterPushdown.enabled"] == "true"


def test_the_cores_of_a_cluster_are_taken_from_what_is_asked_for() -> None:
    assert cores_of("spark://m:7077", {"spark.cores.max": "12"}) == 12
    many = {"spark.executor.instances": "3", "spark.executor.cores": "4"}
    assert cores_of("k8s://https://m:443", many) == 12
    assert cores_of("k8s://https://m:443", {"spark.executor.instances": "3"}) == 3
    assert cores_of("yarn", {"spark.executor.cores": "4"}) is None


def test_only_workers_of_this_machine_get_this_python() -> None:
    for here in ("local[2]", "spark://127.0.0.1:7077", "spark://localhost:7077", "spark://[::1]:1"):
        assert is_this_machine(here), here
    for elsewhere in ("spark://10.1.2.3:7077", "k8s://https://localhost:443", "sc://localhost"):
        assert not is_this_machine(elsewhere), elsewhere


def java(major: int, build: str = "build 1") -> Java:
    return Java(Path("/jvm"), major, build)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SPARK_CONF_DIR", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "the cache"))
    return tmp_path / "the cache" / "moldau" / "spark"


def test_java_keeps_an_archive_of_classes_where_it_can(cache: Path) -> None:
    assert java_options(java(17), {}) == ""
    assert not cache.exists()
    options = shlex.split(java_options(java(19), {}))
    assert options[0] == "-XX:+AutoCreateSharedArchive"
    assert options[1].startswith(f"-XX:SharedArchiveFile={cache}/classes-")
    assert cache.is_dir(), "Java would fail at its end"
    theirs = java_options(java(19), {"spark.driver.extraJavaOptions": "-Dx=1"})
    assert shlex.split(theirs) == [*options, "-Dx=1"], "the caller's come last"
    other = java_options(java(19, "build 2"), {})
    assert other != java_options(java(19), {}), "two builds do not take turns"


def test_no_archive_is_asked_for_where_java_options_set_one(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for told in ("-Xshare:off", "-XX:-AutoCreateSharedArchive", "-XX:SharedArchiveFile=/mine.jsa"):
        own = {"spark.driver.extraJavaOptions": f"-Dx=1 {told}"}
        assert java_options(java(25), own) == f"-Dx=1 {told}"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:SharedArchiveFile=/mine.jsa")
    assert java_options(java(25), {}) == ""
    monkeypatch.delenv("JAVA_TOOL_OPTIONS")
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    assert java_options(java(25), {}) == ""
    monkeypatch.delenv("SPARK_CONF_DIR")
    assert java_options(java(25), {}) != ""


def test_a_cache_that_cannot_be_made_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert java_options(java(25), {}) == ""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """An installed Spark, as far as it matters."""
    home = tmp_path / "site-packages" / "pyspark"
    for name in ("jars", "bin", "python/lib", "__pycache__"):
        (home / name).mkdir(parents=True)
    (home / "jars" / "spark.jar").write_text("jar")
    (home / "python" / "lib" / "pyspark.zip").write_text("zip")
    return home


def test_everything_is_there_but_the_zip(installed: Path, tmp_path: Path) -> None:
    home = compiled_home(installed, tmp_path / "cache")
    assert home is not None
    assert (home / "jars" / "spark.jar").read_text() == "jar"
    assert sorted(found.name for found in home.iterdir()) == ["bin", "jars"]
    assert compiled_home(installed, tmp_path / "cache") == home
    assert [found.name for found in (tmp_path / "cache").iterdir()] == [home.name]


def test_each_installed_spark_has_a_home_of_its_own_and_so_has_each_of_its_versions(
    installed: Path, tmp_path: Path
) -> None:
    other = installed.with_name("other")
    installed.rename(other)
    first = compiled_home(other, tmp_path / "cache")
    other.rename(installed)
    second = compiled_home(installed, tmp_path / "cache")
    (installed / "sbin").mkdir()
    third = compiled_home(installed, tmp_path / "cache")
    assert third is not None
    assert len({first, second, third}) == 3
    assert (third / "sbin").is_dir()


def test_there_is_none_without_the_zip_or_where_nothing_can_be_written(
    installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert compiled_home(installed, tmp_path / "file" / "cache") is None
    (installed / "python" / "lib" / "pyspark.zip").unlink()
    assert compiled_home(installed, tmp_path / "cache") is None


def test_the_configured_spark_and_python_are_left_alone(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spark_home(**chosen: str) -> str | None:
        environ = {"XDG_CACHE_HOME": str(cache.parent.parent), **chosen}
        with monkeypatch.context() as patched:
            patched.setattr(sessions, "find_java", lambda: java(17))
            patched.setattr(os, "environ", environ)
            sessions._prepared("local[2]", {})
        assert environ["JAVA_HOME"] == "/jvm"
        return environ.get("SPARK_HOME")

    assert str(spark_home()).startswith(f"{cache}/home-")
    assert spark_home(PYSPARK_PYTHON=sys.executable) == spark_home()
    assert spark_home(PYSPARK_PYTHON="/usr/bin/python3") is None
    assert spark_home(SPARK_HOME="/opt/spark") == "/opt/spark"


def test_importing_the_package_imports_no_spark() -> None:
    code = (
        "import sys, moldau.spark, moldau.spark.sessions;"
        "print([name for name in ('pyspark', 'pyarrow', 'pandas') if name in sys.modules])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=wait_seconds_max(),
    )
    assert said.stdout.strip() == "[]"


def test_the_function_stays_a_function_whichever_way_it_is_first_asked_for() -> None:
    from moldau.spark import session

    assert callable(session)
    assert session is sessions.session is moldau.spark.session


def test_without_spark_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ClientError, match="not installed") as raised:
        moldau.spark.session()
    assert raised.value.hint == "pip install 'moldau[spark]'"
    assert raised.value.__notes__ == ["hint: pip install 'moldau[spark]'"]


def test_the_session_of_the_tests_is_as_asked_for(spark: "SparkSession") -> None:
    assert spark.sparkContext.master == "local[2]"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.pythonExec == os.environ["PYSPARK_PYTHON"]
    assert spark.sparkContext.getConf().get("spark.driver.host") == "127.0.0.1"
    assert "SPARK_LOCAL_IP" not in os.environ


def test_a_session_that_is_there_is_given_back_as_it_is(spark: "SparkSession") -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert moldau.spark.session() is spark
        assert moldau.spark.session("local[2]", config={"spark.driver.memory": "1g"}) is spark
    asked: dict[str, Any] = {"spark.sql.shuffle.partitions": "7"}
    with pytest.warns(
        UserWarning, match=r"other values of spark.sql.shuffle.partitions, spark.master\."
    ):
        assert moldau.spark.session("local[3]", config=asked) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"

"""A home of Spark without the zip that every Python process would compile anew."""

import sys
from pathlib import Path

import pytest

from moldau.spark.spark_home import compiled_home, is_chosen


@pytest.fixture
def spark(tmp_path: Path) -> Path:
    """An installed Spark, as far as it matters."""
    home = tmp_path / "site-packages" / "pyspark"
    for name in ("jars", "bin", "python/lib", "__pycache__"):
        (home / name).mkdir(parents=True)
    (home / "jars" / "spark.jar").write_text("jar")
    (home / "python" / "lib" / "pyspark.zip").write_text("zip")
    return home


def test_everything_is_there_but_the_zip(spark: Path, tmp_path: Path) -> None:
    home = compiled_home(spark, tmp_path / "cache")
    assert home is not None
    assert (home / "jars" / "spark.jar").read_text() == "jar"
    assert sorted(found.name for found in home.iterdir()) == ["bin", "jars"]
    assert compiled_home(spark, tmp_path / "cache") == home
    assert [found.name for found in (tmp_path / "cache").iterdir()] == [home.name]


def test_a_home_that_lacks_something_is_made_again(spark: Path, tmp_path: Path) -> None:
    home = compiled_home(spark, tmp_path / "cache")
    assert home is not None
    (home / "jars").unlink()
    (spark / "sbin").mkdir()
    assert compiled_home(spark, tmp_path / "cache") == home
    assert sorted(found.name for found in home.iterdir()) == ["bin", "jars", "sbin"]


def test_each_installed_spark_has_a_home_of_its_own(spark: Path, tmp_path: Path) -> None:
    other = spark.with_name("other")
    spark.rename(other)
    first = compiled_home(other, tmp_path / "cache")
    other.rename(spark)
    assert compiled_home(spark, tmp_path / "cache") != first


def test_there_is_none_without_the_zip_or_where_nothing_can_be_written(
    spark: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert compiled_home(spark, tmp_path / "file" / "cache") is None
    (spark / "python" / "lib" / "pyspark.zip").unlink()
    assert compiled_home(spark, tmp_path / "cache") is None


def test_what_somebody_chose_is_left_alone() -> None:
    assert not is_chosen({})
    assert not is_chosen({"PYSPARK_PYTHON": sys.executable})
    assert is_chosen({"PYSPARK_PYTHON": "/usr/bin/python3"})
    assert is_chosen({"SPARK_HOME": "/opt/spark"})

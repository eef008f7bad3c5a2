"""Settings as plain values, in files, and without secrets."""

import json
from datetime import date
from pathlib import Path

import msgspec
import pytest
from counting_cli import add_count
from counting_kind import CountSettings

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.secrets import MASK, without_secrets
from moldau.spark.pipelines.settings_file import (
    check_conf,
    from_plain,
    read_conf,
    read_file,
)

FULL = CountSettings(
    name="n",
    bootstrap="b:1",
    home="/h/n",
    topics=("a", "b"),
    rows=3,
    options={"kafka.ssl.key.password": "p1", "kafka.sasl.jaas.config": "p2", "x": "y"},
)


PLAIN = {"kind": "count", **msgspec.to_builtins(FULL)}


@pytest.fixture(autouse=True)
def _kind(monkeypatch):
    add_count(monkeypatch)


def test_secrets_are_masked_whatever_they_are_called():
    plain = without_secrets(FULL)
    assert plain["options"] == {
        "kafka.ssl.key.password": MASK,
        "kafka.sasl.jaas.config": MASK,
        "x": "y",
    }
    assert plain["kind"] == "count"
    assert plain["topics"] == ["a", "b"]
    for secret in ("p1", "p2"):
        assert secret not in json.dumps(plain)


@pytest.mark.parametrize("name", ["secret_key", "aws.access.key", "SessionToken", "credentials"])
def test_options_that_open_something_are_secrets(name):
    settings = CountSettings(name="n", bootstrap="b", home="h", topics=(), options={name: "s3cr3t"})
    assert "s3cr3t" not in json.dumps(without_secrets(settings))


def test_passwords_in_addresses_are_masked():
    settings = CountSettings(name="n", bootstrap="pg://me:pw@db/x", home="h", topics=())
    assert without_secrets(settings)["bootstrap"] == f"pg://me:{MASK}@db/x"
    # A schema or a query is not for nobody's eyes because of a name in it.
    told = CountSettings(name="n", bootstrap="token:string, id:int", home="h", topics=())
    assert without_secrets(told)["bootstrap"] == told.bootstrap


def test_a_file_may_have_variables_and_numbers_for_options(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PW", "p")
    file = tmp_path / "p.yml"
    file.write_text(
        "kind: count\nname: n\nhome: h\nbootstrap: b\ntopics: ['x${PW}x']\nrows: '7'\n"
        "options: {maxOffsetsPerTrigger: 10, failOnDataLoss: false, pw: '${PW}'}\n"
    )
    found = from_plain(read_file(file))
    assert isinstance(found, CountSettings)
    assert (found.topics, found.rows) == (("xpx",), 7)
    assert found.options == {"maxOffsetsPerTrigger": "10", "failOnDataLoss": "false", "pw": "p"}


def test_a_file_that_is_no_text_is_refused(tmp_path: Path):
    file = tmp_path / "p.yml"
    file.write_bytes("kind: count\nname: größe\n".encode("latin-1"))
    for read in (read_file, read_conf):
        with pytest.raises(InvalidArgumentError, match=r"p\.yml is n"):
            read(file)


def test_a_file_with_dates_for_options_is_refused_by_their_names(tmp_path: Path):
    file = tmp_path / "p.yml"
    file.write_text("kind: count\nname: n\nhome: h\nbootstrap: b\noptions: {at: 2026-01-01, n: }\n")
    with pytest.raises(InvalidArgumentError, match="options"):
        from_plain(read_file(file))


@pytest.mark.parametrize("text", ["rows: 2026-99-99", "[" * 5000], ids=["date", "deep"])
def test_a_file_that_cannot_be_parsed_is_refused_without_a_traceback(tmp_path: Path, text: str):
    file = tmp_path / "p.yaml"
    file.write_text(text)
    with pytest.raises(InvalidArgumentError, match="neither YAML nor JSON"):
        read_file(file)


def test_json_is_fine_for_a_file_too(tmp_path: Path):
    file = tmp_path / "p.json"
    file.write_text(json.dumps(PLAIN))
    assert from_plain(read_file(file)) == FULL


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": None}, "unknown kind of pipeline None"),
        ({"kind": "cuont"}, "unknown kind of pipeline"),
        ({"rwos": 1}, "unknown setting 'rwos'"),
        ({"rows": "many"}, "rows: Expected"),
        ({"topics": 3}, "topics: Expected"),
        ({"options": {"startingTimestamp": date(2026, 1, 1)}}, "Expected `str`"),
        ({"options": {"x": None}}, "Expected `str`"),
    ],
)
def test_what_is_wrong_is_named(change, said):
    with pytest.raises(InvalidArgumentError, match=said):
        from_plain(PLAIN | change)


def test_a_setting_that_is_missing_is_named():
    plain = {name: value for name, value in PLAIN.items() if name != "topics"}
    with pytest.raises(InvalidArgumentError, match="missing required field `topics`"):
        from_plain(plain)


# -- settings of Spark


def test_a_file_of_settings_is_read_as_spark_reads_it(tmp_path: Path):
    file = tmp_path / "spark-defaults.conf"
    file.write_text(
        "# ours\n\nspark.executor.memory   4g\nspark.executor.cores=2\n"
        "  spark.driver.extraJavaOptions -Dx=1 -Dy=2\nspark.app.name : a name \n"
        "spark.executor.cores = 3\n"
    )
    assert read_conf(file) == {
        "spark.executor.memory": "4g",
        "spark.executor.cores": "3",
        "spark.driver.extraJavaOptions": "-Dx=1 -Dy=2",
        "spark.app.name": "a name",
    }


@pytest.mark.parametrize("data", [b"spark.x 1\nspark.password-is-hunter2\n", b"\xff\xfe"])
def test_a_file_that_is_none_of_settings_is_refused_without_its_contents(tmp_path: Path, data):
    file = tmp_path / "spark.conf"
    file.write_bytes(data)
    with pytest.raises(InvalidArgumentError, match=str(file)) as refused:
        read_conf(file)
    assert "hunter2" not in str(refused.value)


def test_what_spark_would_pass_over_is_refused():
    check_conf({"spark.executor.memory": "4g"})
    with pytest.raises(InvalidArgumentError, match="their names begin with spark"):
        check_conf({"executor.memory": "4g"})
    with pytest.raises(InvalidArgumentError, match=r"spark\.master") as refused:
        check_conf({"spark.master": "yarn"})
    assert "--master" in refused.value.hint


def test_secrets_among_settings_of_spark_are_masked():
    conf = {
        "spark.hadoop.fs.s3a.secret.key": "hunter2",
        "spark.driver.extraJavaOptions": "-Dx=1 -Djavax.net.ssl.keyStorePassword=hunter2 -Dy=2",
        "spark.executor.memory": "4g",
    }
    settings = CountSettings(name="n", bootstrap="b", home="h", topics=(), conf=conf)
    told = without_secrets(settings)["conf"]
    assert "hunter2" not in json.dumps(told)
    assert told["spark.driver.extraJavaOptions"].endswith("-Dy=2")
    assert told["spark.executor.memory"] == "4g"

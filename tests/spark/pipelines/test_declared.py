"""Settings as plain values, in files, and without secrets."""

import json
from pathlib import Path

import pytest
from counting_kind import CountSettings

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines import registry
from moldau.spark.pipelines.declared import (
    MASK,
    from_plain,
    read_file,
    to_plain,
    without_secrets,
)

FULL = CountSettings(
    name="n",
    bootstrap="b:1",
    home="/h/n",
    topics=("a", "b"),
    rows=3,
    options={"kafka.ssl.key.password": "p1", "kafka.sasl.jaas.config": "p2", "x": "y"},
    password="p3",
)


@pytest.fixture(autouse=True)
def _kind(monkeypatch):
    kind = registry.Kind(name="count", module="counting_kind", command="counting_command")
    monkeypatch.setattr(registry, "kinds", lambda: {"count": kind})


def test_settings_come_back_from_json_as_they_were():
    assert from_plain(json.loads(json.dumps(to_plain(FULL)))) == FULL


def test_secrets_are_masked_whatever_they_are_called():
    plain = without_secrets(FULL)
    assert plain["options"] == {
        "kafka.ssl.key.password": MASK,
        "kafka.sasl.jaas.config": MASK,
        "x": "y",
    }
    assert plain["password"] == MASK
    assert plain["topics"] == ["a", "b"]
    for secret in ("p1", "p2", "p3"):
        assert secret not in json.dumps(plain)


@pytest.mark.parametrize("name", ["secret_key", "aws.access.key", "SessionToken", "credentials"])
def test_options_that_open_something_are_secrets(name):
    settings = CountSettings(name="n", bootstrap="b", home="h", topics=(), options={name: "s3cr3t"})
    assert "s3cr3t" not in json.dumps(without_secrets(settings))


def test_passwords_in_addresses_are_masked_and_empty_ones_stay_empty():
    settings = CountSettings(name="n", bootstrap="pg://me:pw@db/x", home="h", topics=())
    assert without_secrets(settings)["bootstrap"] == f"pg://me:{MASK}@db/x"
    assert without_secrets(settings)["password"] == ""


def test_a_file_may_say_one_text_for_several_and_numbers_for_options(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PW", "p")
    file = tmp_path / "p.yml"
    file.write_text(
        "kind: count\nname: n\nhome: h\ntopics: a\nrows: '7'\npassword: x${PW}x\n"
        "options: {maxOffsetsPerTrigger: 10, failOnDataLoss: false}\n"
    )
    found = from_plain(read_file(file, {"bootstrap": "b", "rows": 1}), lax=True)
    assert isinstance(found, CountSettings)
    assert (found.topics, found.rows, found.password, found.bootstrap) == (("a",), 7, "xpx", "b")
    assert found.options == {"maxOffsetsPerTrigger": "10", "failOnDataLoss": "false"}


def test_json_is_fine_for_a_file_too(tmp_path: Path):
    file = tmp_path / "p.json"
    file.write_text(json.dumps(to_plain(FULL)))
    assert from_plain(read_file(file, {}), lax=True) == FULL


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": None}, "kind is missing"),
        ({"kind": "cuont"}, "no kind of pipeline"),
        ({"rwos": 1}, "no setting 'rwos'"),
        ({"rows": "many"}, "rows: Expected"),
        ({"topics": 3}, "topics: Expected"),
    ],
)
def test_what_is_wrong_is_named(change, said):
    with pytest.raises(InvalidArgumentError, match=said):
        from_plain(to_plain(FULL) | change)


def test_a_setting_that_is_missing_is_named():
    plain = to_plain(FULL)
    del plain["topics"]
    with pytest.raises(InvalidArgumentError, match="needs the setting 'topics'"):
        from_plain(plain)

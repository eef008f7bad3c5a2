"""`moldau quota` on a broker that requires a login."""

import json

import click
import pytest

from moldau.cli.quota import EntityParam, QuotaEntity, RateParam

pytestmark = pytest.mark.system


@pytest.mark.parametrize(
    ("text", "entity"),
    [
        ("User:ann", ("ann", None)),
        ("Client:app", (None, "app")),
        ("User:ann/Client:app/2", ("ann", "app/2")),
        ("User:*/Client:*", ("", "")),
    ],
)
def test_an_entity_is_a_user_a_client_id_or_both(text, entity):
    found = EntityParam().convert(text, None, None)
    assert found == QuotaEntity(*entity)
    assert str(found) == text


@pytest.mark.parametrize("text", ["", "/", "ann", "User:", "Ip:1.2.3.4"])
def test_nothing_else_is_an_entity(text):
    with pytest.raises(click.BadParameter, match="is not an entity"):
        EntityParam().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1000", 1000), ("1.5kB", 1500), ("10MB/s", 10_000_000), ("1GiB", 1024**3), ("2 KiB", 2048)],
)
def test_a_rate_has_a_unit(text, rate):
    assert RateParam().convert(text, None, None) == rate


@pytest.mark.parametrize("text", ["", "0", "-1", "fast", "1 TB"])
def test_nothing_else_is_a_rate(text):
    with pytest.raises(click.BadParameter, match="is not a rate"):
        RateParam().convert(text, None, None)


def test_quotas_are_set_listed_and_deleted(admin):
    assert admin("quota", "set", "User:ned", "--produce", "1MB", "--request", "50").code == 0
    assert admin("quota", "set", "User:*", "--fetch", "2.5kB").code == 0
    listed = {
        row.pop("entity"): row for row in json.loads(admin("quota", "list", "-o", "json").out)
    }
    assert listed["User:ned"]["producer_byte_rate"] == 1_000_000
    assert listed["User:ned"]["request_percentage"] == 50
    assert listed["User:*"]["consumer_byte_rate"] == 2500
    for entity in ("User:ned", "User:*"):
        assert admin("quota", "delete", entity, "-y").code == 0
    assert json.loads(admin("quota", "list", "-o", "json").out) == []
    assert "there is no quota of User:ned" in admin("quota", "delete", "User:ned", "-y").err
    assert "no limit given" in admin("quota", "set", "User:ned").err

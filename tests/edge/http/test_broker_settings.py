"""GET /api/v1/brokers/{id}: the settings of a broker, with the source of each value."""

import pytest

from http_client import ask

pytestmark = pytest.mark.system


def test_what_nobody_set_is_a_default(moldau_session_broker):
    shown = ask(moldau_session_broker.http_address, "GET", "/api/v1/brokers/1").body["configs"]
    source = {one["name"]: one["source"] for one in shown}
    assert source["group.max.size"] == "default_config"
    assert source["log.dirs"] == "static_broker_config"

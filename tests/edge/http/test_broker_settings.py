"""GET /api/v1/brokers/{id}: the settings of a broker, with meaning, default and source of each."""

from typing import Any

import pytest

from http_client import ask
from moldau.testing.broker import Broker
from moldau.testing.cluster import Cluster

pytestmark = pytest.mark.system


def settings(address: str, broker: int = 1) -> dict[str, dict[str, Any]]:
    shown = ask(address, "GET", f"/api/v1/brokers/{broker}").body["configs"]
    return {one["name"]: one for one in shown}


def test_what_nobody_set_is_a_default(moldau_session_broker: Broker) -> None:
    shown = settings(moldau_session_broker.http_address)
    assert shown["group.max.size"]["source"] == "default_config"
    assert shown["log.dirs"]["source"] == "static_broker_config"
    assert shown["log.dirs"]["default"] == "./.moldau"


def test_every_setting_is_explained(moldau_session_broker: Broker) -> None:
    shown = settings(moldau_session_broker.http_address)
    assert [name for name, one in shown.items() if not one["doc"].endswith(".")] == []
    dynamic, fixed = shown["min.insync.replicas"], shown["group.max.size"]
    assert (dynamic["read_only"], dynamic["default"]) == (False, "1")
    assert dynamic["doc"].endswith("At least 1.")
    assert (fixed["read_only"], fixed["default"], fixed["type"]) == (True, "5000", "long")
    assert fixed["doc"].endswith("Set at the start, as group.size_max.")


def test_a_broker_tells_its_settings_through_any_other() -> None:
    with Cluster(brokers=2, settings={"GROUP__OFFSETS_PARTITIONS": "3"}) as cluster:
        first = cluster.brokers[1].http_address
        own = settings(cluster.brokers[2].http_address, 2)
        assert settings(first, 2) == own
        assert own["broker.id"]["value"] == "2"
        assert own["log.dirs"] != settings(first, 1)["log.dirs"]

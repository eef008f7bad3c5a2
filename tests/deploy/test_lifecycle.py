"""The life of a cluster on Kubernetes, played with processes by what the rendered manifests say.

Install, scale, rolling update, a broken configuration, lost nodes with and without their volumes,
and a lost majority: under a producer with acks=all, of which nothing may fail or be lost.
"""

import copy
import json
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_player import Player
from kubernetes_api import kubernetes_api
from moldau_command import run_moldau
from secure_front import identity
from steady_load import SteadyLoad

from faults.checker import check
from moldau.testing.waiting import wait_until

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(sys.platform != "linux", reason="every pod has an address in 127.0.0.0/8"),
]

MANIFESTS = Path(__file__).parents[2] / "deploy/kubernetes/moldau-try.yaml"
TOPIC, PARTITIONS = "orders", 3
READY, NOT_READY, ALIVE = 200, 503, 200


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFESTS.read_text()))


def with_config(text: str) -> list[dict[str, Any]]:
    """The manifests, with another line in the broker's configuration."""
    changed = copy.deepcopy(manifests())
    (config,) = (each for each in changed if each and each["kind"] == "ConfigMap")
    config["data"]["broker.yaml"] += f"\n{text}\n"
    return changed


@contextmanager
def played(folder: Path) -> Iterator[Player]:
    run_moldau("cluster", "secret", "new", str(folder / "secret"))
    secret = (folder / "secret").read_text()
    player = Player(folder, manifests(), {"moldau-cluster": {"cluster.secret": secret}})
    try:
        yield player
    finally:
        player.close()


def topology(player: Player, ordinal: int) -> dict[str, Any]:
    url = f"http://{player.address_of(ordinal)}:8080/api/v1/topology"
    with urllib.request.urlopen(url, timeout=5) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def wait_in_sync(player: Player, ordinal: int) -> None:
    def holds() -> bool:
        parts = [p for topic in topology(player, ordinal)["topics"] for p in topic["partitions"]]
        return bool(parts) and all(set(p["in_sync"]) == set(p["replicas"]) for p in parts)

    wait_until(holds, "all replicas are in sync", ignoring=OSError)


def can_stop(broker: int, http: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "moldau", "broker", "can-stop", str(broker), "--http", http, *words],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.safety
def test_nothing_is_lost_from_install_to_the_loss_of_nodes(tmp_path: Path) -> None:
    with played(tmp_path) as player:
        player.scale(3)
        cluster = topology(player, 0)["cluster_id"]
        assert len(topology(player, 2)["brokers"]) == 3
        http = f"{player.address_of(0)}:8080"
        bootstrap = ",".join(f"{player.address_of(n)}:9092" for n in range(3))
        run_moldau("topic", "create", TOPIC, "-p", str(PARTITIONS), "-b", bootstrap)
        with SteadyLoad(bootstrap, TOPIC, PARTITIONS) as load:
            load.wait_for_more()

            player.scale(5)
            assert len(topology(player, 4)["brokers"]) == 5
            # Without this, the new ones would only be beside it.
            run_moldau("partition", "move", TOPIC, "--to", "1,4,5", "-y", "-b", bootstrap)
            wait_in_sync(player, 0)

            # A broken configuration stops the update at its first pod.
            player.apply(with_config("unknown_key: 1"))
            assert "unknown key unknown_key" in player.start_failing(4)
            load.wait_for_more()

            player.apply(with_config("logging: {level: warning}"))
            player._start(4).wait_ready()
            player.update()
            load.wait_for_more()

            # A zone is down: meanwhile the first broker is needed, and preStop says so.
            player.pods[4].kill()
            wait_until(lambda: can_stop(1, http).returncode == 1, "broker 1 is needed")
            assert f"{TOPIC}:0" in can_stop(1, http).stderr
            load.wait_for_more()
            # Its volume comes back with the pod.
            player.restart_lost(4, with_volume=True).wait_ready()
            assert can_stop(1, http, "--timeout", "1m").returncode == 0
            load.wait_for_more()

            # A node is lost with its volume: that of the broker that bootstrapped the cluster.
            player.restart_lost(0, with_volume=False).wait_ready()
            after = topology(player, 0)
            assert after["cluster_id"] == cluster, "it must not bootstrap a second cluster"
            assert len(after["brokers"]) == 6
            load.wait_for_more()
            run_moldau("broker", "remove", "1", "-y", "--http", http)
            wait_in_sync(player, 0)
            load.wait_for_more()
        load.read_all()
    assert load.failures == []
    verdict = check(load.events)
    assert verdict.clean, verdict
    assert verdict.acked == load.acked > 0


@pytest.mark.safety
def test_without_a_majority_no_pod_is_restarted_and_no_second_cluster_is_made(
    tmp_path: Path,
) -> None:
    with played(tmp_path) as player:
        player.scale(3)
        cluster = topology(player, 0)["cluster_id"]
        # Two zones are down; the volume of the first broker is lost with its node.
        player.pods[1].kill()
        player.pods[2].kill()
        first = player.restart_lost(0, with_volume=False)
        wait_until(lambda: "waiting for" in first.output, "it waits for the others")
        assert first.probe("liveness") == ALIVE
        assert first.probe("readiness") == NOT_READY
        # One comes back: alone it has no majority, and lives all the same.
        one = player.restart_lost(1, with_volume=True)
        wait_until(lambda: one.probe("liveness") == ALIVE, "it lives")
        assert one.probe("readiness") == NOT_READY
        two = player.restart_lost(2, with_volume=True)
        for pod in (one, two, first):
            pod.wait_ready()
        assert topology(player, 0)["cluster_id"] == cluster


@pytest.mark.safety
def test_the_secured_manifests_make_a_cluster_with_zones_that_stops_cleanly(tmp_path: Path) -> None:
    labels = {f"node-{n}": {"topology.kubernetes.io/zone": f"zone-{n}"} for n in range(3)}
    manifests = list(yaml.safe_load_all((MANIFESTS.parent / "moldau.yaml").read_text()))
    with kubernetes_api(tmp_path, labels) as api:
        player = Player(tmp_path, manifests, {}, api)
        authority = identity("authority")
        hosts = tuple(player.address_of(n) for n in range(3))
        broker = identity("brokers", hosts=hosts, signer=authority)
        tls = {"tls.crt": broker.pem, "tls.key": broker.key_pem, "ca.crt": authority.pem}
        # A secret as `openssl rand -hex 32` makes it.
        secrets = {"moldau-tls": tls, "moldau-cluster": {"cluster.secret": "5a" * 32}}
        player.secrets.update(secrets)
        try:
            player.scale(3)
            environment = player.pods[0].environment()
            admin = ("--data-dir", environment["MOLDAU_DATA_DIR"])
            listed = subprocess.run(
                [sys.executable, "-m", "moldau", "broker", "list", "-o", "json", *admin],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert listed.returncode == 0, listed.stderr
            assert {each["rack"] for each in json.loads(listed.stdout)} == {
                "zone-0",
                "zone-1",
                "zone-2",
            }
            # preStop logs in as the administrator of its own data directory.
            player.replace(2)
            url = f"https://{environment['MOLDAU_HTTP']}/api/v1/topology"
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(
                    url, context=ssl.create_default_context(cadata=authority.pem)
                )
        finally:
            player.close()

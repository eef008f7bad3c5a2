"""A live cluster and a real Prometheus: every panel has data, and staged faults fire their alerts.

Durations of the rules are divided by SPEEDUP. Each test leaves the cluster without an alert.
"""

import re
import shutil
from collections.abc import Iterator

import pytest
from cluster_load import GROUP, PIPELINE, WORKERS
from confluent_kafka.admin import AdminClient, NewTopic
from deploy.grafana import generate
from prometheus_server import RULES, need, shortened
from watched_cluster import Watched

from faults.flags import put
from moldau.spark.pipelines.spec import PipelineState
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system

SPEEDUP = 40
SLOW_FLUSH_SECONDS = 0.9
SKEW_SECONDS = 1.5


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    need("prometheus")
    home = tmp_path_factory.mktemp("watched")
    if shutil.disk_usage(home).free < 0.1 * shutil.disk_usage(home).total:
        pytest.skip(f"the disk of {home} is almost full, which is an alert")
    rules = shortened(RULES.read_text(), SPEEDUP)
    with Watched(home).running(rules) as running:
        yield running


@pytest.fixture
def watched(cluster: Watched) -> Iterator[Watched]:
    yield cluster
    cluster.mend()


def queries() -> dict[str, str]:
    """Each query of a panel or variable by its place, with the variables of Grafana filled in."""
    found = {
        f"{name} / {panel['title']} / {target['refId']}": target["expr"]
        for name, table in generate.load().items()
        for panel in generate.dashboard(name, table)["panels"]
        if panel["type"] != "row"
        for target in panel["targets"]
    }
    for name, query in generate.VARIABLES.items():
        found[f"${name}"] = re.sub(r"^label_values\((.+), (\w+)\)$", r"count by (\2) (\1)", query)
    return {
        place: re.sub(r"\$\w+", ".*", query.replace("$__rate_interval", "10s"))
        for place, query in found.items()
    }


def test_every_query_of_every_panel_returns_data(watched: Watched) -> None:
    missing = queries()
    assert len(missing) > 80

    def nothing_is_missing() -> bool:
        for place, query in list(missing.items()):
            if watched.prometheus.query(query):
                del missing[place]
        return not missing

    wait_until(nothing_is_missing, "all panels have data", describe=lambda: "\n".join(missing))


def test_alerts_use_metrics_that_exist(watched: Watched) -> None:
    names = set(re.findall(r"\bmoldau_[a-z_]+\b", RULES.read_text()))
    missing = {name for name in names if not watched.prometheus.query(name)}
    assert missing == set()


def test_nothing_fires_while_all_is_well(watched: Watched) -> None:
    watched.clears()


def test_faults_fire_their_alerts_and_clear(watched: Watched) -> None:
    """Those that do not disturb each other."""
    one, _, three = watched.instances
    staged = [
        ("CertificateExpires", watched.tls_instance, watched.certificate),
        ("ClockSkew", one),
        ("DeadLetters", WORKERS),
        ("GroupLagGrows", GROUP),
        ("PipelineStopped", PIPELINE),
        ("TransactionHangs",),
    ]
    if watched.disk is not None:
        staged.append(("DiskAlmostFull", three))
        watched.disk.fill(leave_bytes=watched.disk.total_bytes // 20)
    put(watched.clock, str(SKEW_SECONDS))
    watched.load.pause("consume")
    watched.load.pause("transact")
    watched.use_certificate("short")
    watched.load.pipeline_state = PipelineState.FAILED
    watched.load.fails_jobs = True
    watched.fires(("DeadLetters", WORKERS), before=staged)
    # This alert is about the last minutes: it stays for that long.
    watched.load.fails_jobs = False
    watched.fires(*(alert for alert in staged if alert[0] != "DeadLetters"), before=staged)

    watched.mend()
    watched.clears(*staged)


def test_slow_flushes_fire_their_alert_and_clear(watched: Watched) -> None:
    slow = ("FlushSlow", watched.instances[1])
    put(watched.flushes, str(SLOW_FLUSH_SECONDS))
    # On a busy machine the replicas on this disk are not in sync before the alert comes, which is
    # what a slow disk does.
    behind = ("UnderReplicated",)
    watched.fires(slow, before=[behind])

    watched.mend()
    watched.clears(slow, behind)


def test_a_broker_down_and_a_partition_without_leader_fire_their_alerts_and_clear(
    watched: Watched,
) -> None:
    number = watched.kill_a_follower()
    down = [("BrokerDown", watched.instances[number - 1]), ("UnderReplicated",)]
    watched.fires(*down)

    leaderless = ("PartitionWithoutLeader",)
    client = AdminClient({"bootstrap.servers": watched.cluster.bootstrap})
    topic = NewTopic("alone", num_partitions=1, replica_assignment=[[number]])
    client.create_topics([topic])["alone"].result()
    watched.fires(leaderless, before=down)

    watched.mend()
    watched.clears(leaderless, *down)

"""docs/operate/kubernetes.md, typed into a Kubernetes of three nodes that are made on this machine.

Its parts, and what stands in for the rest: tests/helpers/kubernetes_cluster.py. The operator of
Prometheus is not there: the API server knows the kinds of its objects, and nobody reads them.
Each test leaves three brokers that are ready. On two cores the first run builds Kubernetes for half
an hour; later ones take ten minutes.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from doc_pages import ROOT, Block, all_blocks
from kubernetes_cluster import Cluster, made_cluster
from kubernetes_person import Person

from moldau.testing.waiting import wait_until

pytestmark = [pytest.mark.machine, pytest.mark.timeout(7200)]

PAGE = "docs/operate/kubernetes.md"
PASSWORD = "pl4nted-s3cret"
POD_0, POD_1, POD_2, POD_3, POD_4 = PODS = [f"moldau-{number}" for number in range(5)]
THREE = PODS[:3]
UPGRADE = "helm upgrade moldau deploy/helm/moldau -n messages --reset-then-reuse-values"
ROLLOUT = "kubectl -n messages rollout status statefulset/moldau"


def block(part: str) -> Block:
    """The block of the page with this in it."""
    (found,) = (each for each in all_blocks(ROOT / PAGE) if each.mark and part in each.text)
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with made_cluster(nodes=3) as made:
        yield made


@pytest.fixture(scope="module")
def person(cluster: Cluster) -> Person:
    """Has installed the chart, with TLS and a user."""
    person = Person(cluster, "messages")
    person.types(block("moldau certs dev"))
    questions = ("New password of root:", "The same again:")
    person.types(block("helm install"), answers=[(each, PASSWORD) for each in questions])
    return person


def test_brokers_are_spread_over_nodes_and_know_their_zones(person: Person) -> None:
    person.wait_until_ready(*THREE)
    zones = {each.name: each.zone for each in person.cluster.nodes}
    nodes = {name: each["spec"]["nodeName"] for name, each in person.pods().items()}
    assert sorted(nodes.values()) == sorted(zones)
    found = {each["http"].partition(".")[0]: each["rack"] for each in person.brokers()}
    assert found == {name: zones[node] for name, node in nodes.items()}
    # It is the first for a moment only.
    assert "single-broker" not in person.kubectl("logs", POD_0)


def test_an_upgrade_restarts_one_broker_after_the_other(person: Person) -> None:
    before = person.uids()
    (person.folder / "your-values.yaml").write_text(
        "{tls: {enabled: true, secretName: moldau-tls}, config: {log: {retention_ms: 3d}}}"
    )
    with person.steady_load("upgrade", PASSWORD):
        person.types(block("your-values.yaml"))
        person.wait_until_ready(*THREE)
    assert not set(person.uids().values()) & set(before.values())


def test_a_broken_configuration_stops_at_the_first_pod(person: Person) -> None:
    before = person.uids()
    with person.steady_load("broken", PASSWORD) as more:
        person.types(f"{UPGRADE} --set config.http.hosts='not a host'")

        def log_names_the_key() -> bool:
            return "http.hosts" in person.kubectl("logs", POD_2, "--container", "broker")

        wait_until(log_names_the_key, "the new pod failed", ignoring=AssertionError)
        more()
        person.types("helm rollback moldau -n messages")
        person.types(ROLLOUT)
        person.wait_until_ready(*THREE)
    after = person.uids()
    assert [name for name in THREE if after[name] != before[name]] == [POD_2]


def test_more_brokers_than_nodes_need_the_weaker_rule_first(person: Person) -> None:
    grow, remove = block("replicas=5"), block("broker remove 5")
    first = grow.text.splitlines()[0]
    before = {each["id"] for each in person.brokers()}
    with person.steady_load("growth", PASSWORD) as more:
        person.types(first)
        wait_until(lambda: list(person.pods()) == PODS, "two more pods are made")
        assert person.pods()[POD_3]["status"]["phase"] == "Pending"
        more()
        person.types(first.replace("replicas=5", "replicas=3"))
        person.wait_until_ready(*THREE)

        person.types(block("antiAffinity=preferred"))
        person.wait_until_ready(*THREE)
        kept = person.uids()
        person.types(grow)
        person.wait_until_ready(*PODS)
        assert {name: person.uids()[name] for name in THREE} == kept

        added = {each["id"] for each in person.brokers()} - before
        low, high = sorted(added)
        person.types(remove, swaps={"remove 4": f"remove {low}", "remove 5": f"remove {high}"})
        person.wait_until_ready(*THREE)
    assert {each["id"] for each in person.brokers()} == before
    assert person.uids() == kept


def test_a_lost_volume_is_replaced_by_a_new_broker(person: Person) -> None:
    lost = next(each["id"] for each in person.brokers() if each["http"].startswith(POD_2))
    block_ = block("--wait=false")
    with person.steady_load("lost", PASSWORD):
        person.types(block_, swaps={"remove 2": f"remove {lost}"})
        person.wait_until_ready(*THREE)
    found = [each["id"] for each in person.brokers()]
    assert len(found) == 3
    assert lost not in found


def test_a_new_certificate_is_used_without_a_restart(person: Person) -> None:
    before = person.uids()
    for name in ("broker.pem", "broker.key"):
        (person.folder / "certs" / name).unlink()
    person.types(block("moldau certs dev").text.splitlines()[0])
    person.types(block("replace -f -"))
    wanted = (person.folder / "certs/broker.pem").read_text().splitlines()
    for pod in THREE:
        address = (f"{pod}.moldau-brokers.messages.svc.cluster.local", 9092)
        program = f"import ssl; print(ssl.get_server_certificate({address}))"

        def is_used(program: str = program) -> bool:
            shown = person.kubectl("exec", POD_0, "--", "python", "-c", program)
            return shown.splitlines()[:10] == wanted[:10]

        wait_until(is_used, f"{pod} uses it")
    assert person.uids() == before


def test_a_second_node_is_not_drained_before_the_first_is_back(person: Person) -> None:
    node = {name: each["spec"]["nodeName"] for name, each in person.pods().items()}
    drain = "kubectl drain --force --delete-emptydir-data --timeout"
    with person.steady_load("drain", PASSWORD):
        # The volume of its broker is there, and not on another node.
        person.types(f"{drain}=60s {node[POD_2]}")
        failing = f"{drain}=8s {node[POD_1]} || kubectl uncordon {node[POD_2]} {node[POD_1]}"
        assert "would violate the pod's disruption budget" in person.types(failing)
        person.wait_until_ready(*THREE)


def test_larger_volumes_restart_no_broker(person: Person) -> None:
    before = person.uids()
    person.types(block("--cascade=orphan"))
    person.wait_until_ready(*THREE)
    assert person.uids() == before
    claims = person.get("statefulset", "moldau")[0]["spec"]["volumeClaimTemplates"]
    assert [each["spec"]["resources"]["requests"]["storage"] for each in claims] == ["40Gi"]


def test_the_objects_of_the_operator_of_prometheus_are_made(person: Person) -> None:
    before = person.uids()
    person.cluster.apply(*map(kind_of_the_operator, ("ServiceMonitor", "PrometheusRule")))
    wait = "kubectl wait --for=condition=Established crd --all"
    person.types(wait)
    person.types(block("metrics.serviceMonitor.enabled"))
    (monitor,) = person.get("servicemonitors")
    (rule,) = person.get("prometheusrules")
    assert monitor["spec"]["endpoints"][0]["scheme"] == "https"
    assert rule["spec"]["groups"]
    assert person.uids() == before


def kind_of_the_operator(kind: str) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": anything}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [version],
        },
    }


def test_what_is_uninstalled_comes_back_with_its_data(person: Person) -> None:
    with person.steady_load("kept", PASSWORD):
        pass
    before = summary(person, "kept")
    person.types("helm uninstall moldau -n messages")
    wait_until(lambda: not person.pods(), "no broker runs", describe=person.describe)
    claims = {each["metadata"]["name"] for each in person.get("pvc")}
    assert claims == {f"data-{name}" for name in THREE}
    install, rollout = block("helm install").text.splitlines()[:2]
    person.types(f"{install}\n{rollout}")
    person.wait_until_ready(*THREE)
    assert summary(person, "kept") == before


def summary(person: Person, topic: str) -> str:
    """Of its replicas and messages."""
    return person.moldau("topic", "describe", topic).splitlines()[0]


def test_the_manifests_need_no_helm(cluster: Cluster) -> None:
    person = Person(cluster, "moldau")
    make = block("moldau certs dev").text.splitlines()[0]
    person.types(make.replace("messages", "moldau"))
    given = {"tls.crt": "broker.pem", "tls.key": "broker.key", "ca.crt": "ca.pem"}
    for name, made in given.items():
        (person.folder / "certs" / made).rename(person.folder / name)
    person.types(block("kubectl create namespace moldau"))
    person.types("kubectl -n moldau rollout status statefulset/moldau")
    person.wait_until_ready(*THREE)
    assert len(person.brokers()) == 3
    person.types("kubectl -n moldau apply --dry-run=server -f deploy/pipelines/kubernetes.yaml")
    person.types("kubectl -n moldau delete -f deploy/kubernetes/moldau.yaml")
    person.types("kubectl -n moldau delete pvc --all")

    person.types("kubectl -n moldau apply -f deploy/kubernetes/moldau-try.yaml")
    person.types("kubectl -n moldau rollout status statefulset/moldau")
    make = "moldau topic create t; echo hello | moldau produce t"
    say = f"{make}; moldau consume t --offset beginning -n 1"
    assert "hello" in person.kubectl("exec", POD_1, "--", "sh", "-c", say)
    person.types("kubectl delete namespace moldau")

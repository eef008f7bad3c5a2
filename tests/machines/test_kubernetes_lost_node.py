"""A node of a Kubernetes is lost, and the volume of its broker is not: docs/operate/kubernetes.md.

Four nodes on one machine, whose disk stands for volumes that every node can have.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from kubernetes_cluster import is_true, made_cluster
from kubernetes_person import Person

from moldau.testing.waiting import wait_until

pytestmark = [pytest.mark.machine, pytest.mark.timeout(7200)]

LOST = "moldau-2"


def volume(place: Path) -> dict[str, Any]:
    place.mkdir()
    # Kubernetes does not do it for such volumes.
    os.chown(place, 10001, 10001)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": place.name},
        "spec": {
            "capacity": {"storage": "20Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "network",
            "hostPath": {"path": str(place)},
        },
    }


def node_of(person: Person, pod: str) -> str:
    return str(person.pods()[pod]["spec"]["nodeName"])


def test_the_pod_comes_back_on_another_node_once_the_lost_one_is_deleted() -> None:
    with made_cluster(nodes=4) as cluster:
        cluster.apply(*(volume(cluster.folder / f"network-{number}") for number in range(3)))
        person = Person(cluster, "default", uses_tls=False)
        person.types(
            "helm install moldau deploy/helm/moldau --set insecure=true,storage.className=network\n"
            "kubectl rollout status statefulset/moldau\n"
            "kubectl exec moldau-0 -- moldau topic create orders\n"
        )
        before = person.brokers()
        lost = node_of(person, LOST)
        (node,) = (each for each in cluster.nodes if each.name == lost)
        node.inside.close()

        wait_until(lambda: not is_true(cluster.get("node", lost)[0], "Ready"), "it is missed")
        assert node_of(person, LOST) == lost
        produce = "echo hello | moldau produce orders; moldau consume orders --offset 0 -n 1"
        said = person.kubectl("exec", "moldau-0", "--", "sh", "-c", produce)
        assert "hello" in said

        person.types(f"kubectl delete node {lost}")
        person.wait_until_ready("moldau-0", "moldau-1", LOST)
        assert node_of(person, LOST) != lost
        names = ("id", "kafka")
        kept = [[each[name] for name in names] for each in before]
        assert [[each[name] for name in names] for each in person.brokers()] == kept

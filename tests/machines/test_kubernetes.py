"""docs/operate/kubernetes.md, typed into a Kubernetes of three nodes that are made on this machine.

Its parts and what stands in for the rest: tests/helpers/kubernetes_cluster.py. The operator of
Prometheus is not there: the API server knows the kinds of its objects, and nothing reads them.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from doc_pages import ROOT, Block, all_blocks
from kubernetes_cluster import Cluster
from kubernetes_image import moldau_image, pause_image
from kubernetes_person import DATA, Person
from kubernetes_programs import built_programs
from machine_rootfs import need_packages
from moldau_command import run_moldau

from faults.checker import check
from moldau.testing.waiting import wait_until

pytestmark = [pytest.mark.machine, pytest.mark.timeout(7200)]

PAGE = "docs/operate/kubernetes.md"
BLOCKS = [block for block in all_blocks(ROOT / PAGE) if "test_kubernetes" in block.mark]
PASSWORD = "pl4nted-s3cret"
PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "ip": "iproute2",
}


def block(part: str) -> Block:
    """The block of the page with this in it."""
    (found,) = (each for each in BLOCKS if part in each.text)
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need_packages(PACKAGES)
    folder = tmp_path_factory.mktemp("moldau-k")
    images = [pause_image(built_programs() / "pause", folder), moldau_image()]
    with Cluster(folder, images, nodes=3) as made:
        yield made


def make_certificate(person: Person, namespace: str) -> None:
    """In the secret moldau-tls, as docs/operate/tls.md makes one."""

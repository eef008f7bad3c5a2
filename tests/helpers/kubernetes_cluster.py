"""Owns a Kubernetes on this machine: its control plane, its nodes, and what a person would set up.

etcd, the API server, controllers, scheduler, kubelet, kube-proxy, kubectl and CoreDNS are built
from their sources (kubernetes_programs.py); containerd, runc and the bridge of the pods are
Debian's. It has no way to other machines: images are made here.
"""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

import yaml
from kubernetes_image import moldau_image, pause_image
from kubernetes_node import (
    API_HOST,
    API_PORT,
    BRIDGE,
    CNI_PLUGINS,
    DOMAIN,
    Node,
    remove_groups,
)
from kubernetes_programs import built_programs
from machine_rootfs import CACHE, need_packages
from namespaces import Namespaces
from secure_front import identity

from moldau.testing.waiting import wait_until

SERVICES: Final = "10.215.200.0/24"
FIRST_SERVICE: Final = "10.215.200.1"
TOKEN: Final = "of-the-administrator"
PACKAGES: Final = {
    "containerd": "containerd",
    "runc": "runc",
    f"{CNI_PLUGINS}/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "ip": "iproute2",
}
STORAGE: Final = "100Gi"
VOLUMES: Final = 8
"""Of each node."""


class Cluster:
    def __init__(self, folder: Path, images: Sequence[Path], *, nodes: int) -> None:
        self.folder = folder
        self.programs = built_programs()
        self._images = list(images)
        self.kubeconfig = folder / "kubeconfig"
        self.outside = Namespaces(self.programs / "pause", folder / "logs")
        try:
            self.nodes = [Node(n, nodes, folder, self._network()) for n in range(nodes)]
            self._start()
        except BaseException:
            self.close()
            raise

    def _network(self) -> Namespaces:
        run = self.outside.run
        if BRIDGE not in run("ip", "link"):
            run("ip", "link", "set", "lo", "up")
            run("ip", "link", "add", BRIDGE, "type", "bridge")
            run("ip", "address", "add", f"{API_HOST}/24", "dev", BRIDGE)
            run("ip", "link", "set", BRIDGE, "up")
            run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        return self.outside

    # ---- its programs

    def _start(self) -> None:
        self._identities()
        self.outside.start("etcd", str(self.programs / "etcd"), "--data-dir", self._path("etcd"))
        self._start_part(
            "kube-apiserver",
            *("--etcd-servers", "http://127.0.0.1:2379", "--advertise-address", API_HOST),
            "--kubelet-preferred-address-types=InternalIP",
            *("--secure-port", str(API_PORT), "--service-cluster-ip-range", SERVICES),
            *(
                "--tls-cert-file",
                self._path("api.crt"),
                "--tls-private-key-file",
                self._path("api.key"),
            ),
            *("--token-auth-file", self._path("tokens.csv"), "--authorization-mode", "RBAC"),
            *("--service-account-issuer", f"https://kubernetes.default.svc.{DOMAIN}"),
            *("--service-account-key-file", self._path("accounts.crt")),
            *("--service-account-signing-key-file", self._path("accounts.key")),
        )
        wait_until(self._responds, "the API server is ready", describe=self.log)
        self._start_part(
            "kube-controller-manager",
            *("--kubeconfig", str(self.kubeconfig), "--root-ca-file", self._path("ca.crt")),
            *("--service-account-private-key-file", self._path("accounts.key")),
            *("--leader-elect=false", "--secure-port=0"),
        )
        self._start_part(
            "kube-scheduler",
            *("--kubeconfig", str(self.kubeconfig), "--leader-elect=false", "--secure-port=0"),
        )
        (self.folder / "Corefile").write_text(
            f"{DOMAIN}:53 {{\n errors\n"
            f" kubernetes {DOMAIN} {{\n  kubeconfig {self.kubeconfig}\n  ttl 5\n }}\n}}\n"
        )
        self.outside.start("dns", str(self.programs / "dns"), "-conf", self._path("Corefile"))
        for node in self.nodes:
            node.start(self.kubeconfig, self._images)
        wait_until(self._nodes_are_ready, "all nodes are ready", describe=self.nodes[0].log)
        self.apply(*self._storage())

    def _start_part(self, name: str, *words: str) -> None:
        self.outside.start(name, str(self.programs / "kubernetes"), name, *words)

    def _identities(self) -> None:
        """As those of many clusters, the authority and the certificates have no key identifiers."""
        authority = identity("kubernetes")
        hosts = (API_HOST, FIRST_SERVICE, "kubernetes.default.svc")
        api = identity("kube-apiserver", hosts=hosts, signer=authority)
        accounts = identity("service-accounts")
        files = {
            "ca.crt": authority.pem,
            "api.crt": api.pem,
            "api.key": api.key_pem,
            "accounts.crt": accounts.pem,
            "accounts.key": accounts.key_pem,
            "tokens.csv": f'{TOKEN},admin,admin,"system:masters"\n',
        }
        for name, content in files.items():
            (self.folder / name).write_text(content)
        server = {
            "server": f"https://{API_HOST}:{API_PORT}",
            "certificate-authority": self._path("ca.crt"),
        }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "moldau", "cluster": server}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
            "contexts": [{"name": "moldau", "context": {"cluster": "moldau", "user": "admin"}}],
            "current-context": "moldau",
        }
        self.kubeconfig.write_text(json.dumps(config))
        self.kubeconfig.chmod(0o600)

    def _path(self, name: str) -> str:
        return str(self.folder / name)

    def _responds(self) -> bool:
        done = subprocess.run(self.kubectl_command("get", "--raw", "/readyz"), capture_output=True)
        return done.returncode == 0

    def _nodes_are_ready(self) -> bool:
        found = self.get("nodes")
        return len(found) == len(self.nodes) and all(is_true(each, "Ready") for each in found)

    def _storage(self) -> list[dict[str, Any]]:
        """Folders of the nodes, made by hand: nothing here makes volumes when they are claimed."""
        kept: list[dict[str, Any]] = [
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {
                    "name": "local",
                    "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
                },
                "provisioner": "kubernetes.io/no-provisioner",
                "volumeBindingMode": "WaitForFirstConsumer",
                # Claims may ask for more; the volumes have it already.
                "allowVolumeExpansion": True,
            }
        ]
        for node in self.nodes:
            for number in range(VOLUMES):
                place = node.folder / f"volume-{number}"
                place.mkdir()
                kept.append(volume(f"{node.name}-{number}", place, node.name))
        return kept

    # ---- what a person does

    def kubectl_command(self, *words: str) -> list[str]:
        program = (
            str(self.programs / "kubernetes"),
            "kubectl",
            "--kubeconfig",
            str(self.kubeconfig),
        )
        return self.outside.command([*program, *words])

    def kubectl(self, *words: str, text: str | None = None) -> str:
        done = subprocess.run(
            self.kubectl_command(*words), input=text, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def apply(self, *documents: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(documents))

    def get(self, *words: str) -> list[dict[str, Any]]:
        found = json.loads(self.kubectl("get", *words, "-o", "json"))
        return list(found.get("items", [found]))

    def log(self, name: str = "kube-apiserver") -> str:
        return self.outside.log(name).read_text()[-3000:]

    def close(self) -> None:
        self.outside.close()
        remove_groups()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextmanager
def made_cluster(*, nodes: int) -> Iterator[Cluster]:
    """A Kubernetes with the images of this tree; skips the test where it cannot be made."""
    need_packages(PACKAGES)
    # Not in memory, as other temporary files are: every node unpacks its images.
    with TemporaryDirectory(prefix="kubernetes-run-", dir=CACHE) as name:
        folder = Path(name)
        images = [pause_image(built_programs() / "pause", folder), moldau_image()]
        with Cluster(folder, images, nodes=nodes) as made:
            yield made


def is_true(found: dict[str, Any], condition: str) -> bool:
    known = found["status"].get("conditions", ())
    return any(each["type"] == condition and each["status"] == "True" for each in known)


def volume(name: str, place: Path, node: str) -> dict[str, Any]:
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": STORAGE},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "local",
            "local": {"path": str(place)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }

"""Owns a node of the Kubernetes of tests/machines: containerd, kubelet and kube-proxy.

Each node has namespaces of its own, and an address and a range of pods in 10.215.0.0/16. Nothing
outside of them is changed but groups of processes (/sys/fs/cgroup), which are removed at the end.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kubernetes_programs import built_programs
from namespaces import Namespaces

from moldau.testing.waiting import wait_until

API_HOST: Final = "10.215.0.1"
"""Of the API server and of DNS: the end of all nodes' cables."""
API_PORT: Final = 6443
DOMAIN: Final = "cluster.local"
BRIDGE: Final = "moldau-k"
GROUPS: Final = Path("/sys/fs/cgroup")
OWN_GROUP: Final = f"{BRIDGE}-{os.getpid()}"
LIMITS: Final = ("cpu", "cpuset", "io", "memory", "pids")
CNI_PLUGINS: Final = "/usr/lib/cni"
CONTAINERD: Final = f"""
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/library/pause:1"
  # Root has not every right on a machine that is virtual itself.
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{CNI_PLUGINS}"
  conf_dir = "/run/cni"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd.opt"
"""
TUNED: Final = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
"""What a kubelet would set for the whole machine: it is shown that all is so already."""


class Node:
    def __init__(self, number: int, count: int, folder: Path, outside: Namespaces) -> None:
        self.name = f"node-{number}"
        self.zone = f"zone-{number}"
        self._number = number
        self.folder = folder / self.name
        self.address = f"10.215.0.{10 + number}"
        self.pods = pods_of(number)
        self._programs = built_programs()
        self.inside = Namespaces(self._programs / "pause", self.folder / "logs", outside)
        self._mount()
        self._connect(outside, count)

    def _mount(self) -> None:
        """Folders of its own, where programs expect those of the machine."""
        run = self.inside.run
        for name in ("lib", "log"):
            (self.folder / name).mkdir()
            run("mount", "--bind", str(self.folder / name), f"/var/{name}")
        run("mount", "-t", "tmpfs", "tmpfs", "/run")
        run("mkdir", "/run/cni", "/var/lib/kubelet")
        for name, value in TUNED.items():
            shown = self.folder / name.replace("/", ".")
            shown.write_text(f"{value}\n")
            run("mount", "--bind", str(shown), f"/proc/sys/{name}")

    def _connect(self, outside: Namespaces, count: int) -> None:
        cable = f"k-node-{self._number}"
        run = self.inside.run
        outside.connect(cable, self.inside)
        outside.run("ip", "link", "set", cable, "master", BRIDGE, "up")
        outside.run("ip", "route", "add", self.pods, "via", self.address)
        run("ip", "link", "set", "lo", "up")
        run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        run("ip", "link", "set", "eth0", "up")
        run("ip", "route", "add", "default", "via", API_HOST)
        for other in range(count):
            if other != self._number:
                run("ip", "route", "add", pods_of(other), "via", f"10.215.0.{10 + other}")
        for name in ("ipv4/ip_forward", "bridge/bridge-nf-call-iptables"):
            run("sh", "-c", f"echo 1 > /proc/sys/net/{name}")

    # ---- its programs

    def start(self, kubeconfig: Path, images: list[Path]) -> None:
        self._file("containerd.toml", CONTAINERD)
        self._file("cni.json", cni(self.pods))
        self.inside.run("cp", str(self.folder / "cni.json"), "/run/cni/10-moldau.conflist")
        self.inside.start(
            "containerd", "containerd", "--config", str(self.folder / "containerd.toml")
        )
        socket = f"/proc/{self.inside.pid}/root/run/containerd/containerd.sock"
        wait_until(Path(socket).exists, f"containerd of {self.name} responds", describe=self.log)
        for image in images:
            self.inside.run("ctr", "--namespace", "k8s.io", "images", "import", str(image))
        self._file("kubelet.json", self._kubelet())
        self._file("proxy.json", proxy(kubeconfig))
        program = str(self._programs / "kubernetes")
        self.inside.start(
            "kubelet",
            *(program, "kubelet", "--config", str(self.folder / "kubelet.json")),
            *("--kubeconfig", str(kubeconfig), "--hostname-override", self.name),
            *("--node-ip", self.address),
            *("--node-labels", f"topology.kubernetes.io/zone={self.zone}"),
        )
        self.inside.start(
            "proxy",
            *(program, "kube-proxy", "--config", str(self.folder / "proxy.json")),
            *("--hostname-override", self.name),
        )

    def log(self, name: str = "containerd") -> str:
        return self.inside.log(name).read_text()[-3000:]

    def _file(self, name: str, content: str | Mapping[str, Any]) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        (self.folder / name).write_text(text)

    def _kubelet(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": make_groups(self.name),
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDNS": [API_HOST],
            "clusterDomain": DOMAIN,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "oomScoreAdj": 0,
            "readOnlyPort": 0,
            # The disk is that of the machine, and its images are not ours to remove.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi"},
            # What pods print is read as a whole.
            "containerLogMaxSize": "200Mi",
            # Secrets are looked at more often than every minute.
            "syncFrequency": "10s",
        }


def pods_of(number: int) -> str:
    return f"10.215.{100 + number}.0/24"


def cni(pods: str) -> dict[str, Any]:
    bridge = {
        "type": "bridge",
        "bridge": "pods",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}


def proxy(kubeconfig: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "mode": "iptables",
        "clusterCIDR": "10.215.0.0/16",
        # These limits are of the whole machine.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "oomScoreAdj": 0,
    }


# ---- groups of processes


def hierarchies() -> list[Path]:
    """Of cgroup v1, one for each kind of limit; or that of v2."""
    found = [
        each for each in GROUPS.iterdir() if (each / "cgroup.procs").exists() and each.is_mount()
    ]
    return found or [GROUPS]


def make_groups(name: str) -> str:
    """Where all processes of a node are counted."""
    for top in hierarchies():
        for group in (top / OWN_GROUP, top / OWN_GROUP / name):
            group.mkdir(exist_ok=True)
            pass_on_limits(group.parent)
            if (group / "cpuset.cpus").exists():
                for field in ("cpuset.cpus", "cpuset.mems"):
                    (group / field).write_text((group.parent / field).read_text())
    return f"/{OWN_GROUP}/{name}"


def pass_on_limits(group: Path) -> None:
    """In cgroup v2 groups have only those that the group above them names."""
    passed_on = group / "cgroup.subtree_control"
    if passed_on.exists():
        known = (group / "cgroup.controllers").read_text().split()
        passed_on.write_text(" ".join(f"+{each}" for each in known if each in LIMITS))


def remove_groups() -> None:
    for top in hierarchies():
        for folder in sorted((top / OWN_GROUP).glob("**/"), reverse=True):
            wait_until(lambda folder=folder: is_removed(folder), f"{folder} is empty")


def is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True

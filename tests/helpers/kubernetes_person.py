"""Types in a Kubernetes of kubernetes_cluster.py what a page says, and looks at the outcome."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from doc_pages import Block
from kubernetes_cluster import Cluster, is_true
from kubernetes_image import IMAGE
from pseudo_terminal import Terminal

from faults.checker import check
from moldau.testing.waiting import wait_until

ROOT: Final = Path(__file__).parents[2]
DATA: Final = ("--data-dir", "/var/lib/moldau/data")


class Person:
    """Somebody with helm, kubectl and moldau, in a clone of the repository and one namespace."""

    def __init__(self, cluster: Cluster, namespace: str, *, uses_tls: bool = True) -> None:
        self.cluster = cluster
        self.namespace = namespace
        # Without TLS there are no rights either, and no token is sent.
        self._rights = DATA if uses_tls else ()
        self.folder = cluster.folder / f"person of {namespace}"
        self.folder.mkdir()
        (self.folder / "deploy").symlink_to(ROOT / "deploy")
        (self.folder / "bin").mkdir()
        kubectl = self.folder / "bin/kubectl"
        program = shlex.join([str(cluster.programs / "kubernetes"), "kubectl"])
        kubectl.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        kubectl.chmod(0o755)

    # ---- typing

    def types(
        self,
        block: Block | str,
        *,
        swaps: Mapping[str, str] | None = None,
        answers: Sequence[tuple[str, str]] = (),
    ) -> str:
        """Paste a block into a terminal; each answer follows its question. All must succeed."""
        text = block if isinstance(block, str) else block.text
        for old, new in (swaps or {}).items():
            assert old in text, f"{old} is not in {block}"
            text = text.replace(old, new)
        words = self.cluster.outside.network_command(["bash", "-e", "-x", "-c", text])

        def spawn(*_: object, **options: Any) -> "subprocess.Popen[str]":
            options["env"] = {**self._environment(), **options["env"]}
            return subprocess.Popen(
                words, cwd=self.folder, text=True, start_new_session=True, **options
            )

        terminal = Terminal(spawn, whole=True)
        pending = list(answers)
        # As long as it takes: a rolling update has no end that could be known.
        try:
            while terminal.read():
                if pending and pending[0][0] in terminal.seen.rpartition("\n")[2]:
                    terminal.type(f"{pending.pop(0)[1]}\n")
                time.sleep(0.1)
        except BaseException:
            # The test is interrupted, or takes too long: nothing is left of it.
            os.killpg(terminal.process.pid, signal.SIGKILL)
            raise
        finally:
            terminal.close()
        assert terminal.process.wait() == 0, f"{terminal.seen}\n{self.describe()}"
        return terminal.seen

    def _environment(self) -> dict[str, str]:
        known = {key: os.environ[key] for key in os.environ if not key.startswith("MOLDAU_")}
        places = (str(self.folder / "bin"), str(Path(sys.executable).parent), known["PATH"])
        own = {
            "HELM_CACHE_HOME": str(self.folder / "helm"),
            "HELM_CONFIG_HOME": str(self.folder / "helm"),
        }
        return known | own | {"PATH": ":".join(places), "KUBECONFIG": str(self.cluster.kubeconfig)}

    # ---- looking

    def kubectl(self, *words: str, text: str | None = None) -> str:
        return self.cluster.kubectl("--namespace", self.namespace, *words, text=text)

    def get(self, *words: str) -> list[dict[str, Any]]:
        return self.cluster.get("--namespace", self.namespace, *words)

    def moldau(self, *words: str, pod: str = "moldau-0") -> str:
        """A command in a pod, as its administrator."""
        return self.kubectl(
            "exec", pod, "--container", "broker", "--", "moldau", *words, *self._rights
        )

    def brokers(self) -> list[dict[str, Any]]:
        return list(json.loads(self.moldau("broker", "list", "-o", "json")))

    def pods(self) -> dict[str, dict[str, Any]]:
        found = self.get("pods", "--selector", "app.kubernetes.io/name=moldau")
        return {each["metadata"]["name"]: each for each in found}

    def ready_pods(self) -> list[str]:
        return sorted(name for name, each in self.pods().items() if is_true(each, "Ready"))

    def wait_until_ready(self, *names: str) -> None:
        """These pods and no others, of this cluster of brokers."""

        def holds() -> bool:
            return list(self.pods()) == list(names) == self.ready_pods()

        wait_until(holds, f"{', '.join(names)} are ready", describe=self.describe)

    def uids(self) -> dict[str, str]:
        return {name: each["metadata"]["uid"] for name, each in self.pods().items()}

    @contextmanager
    def steady_load(self, topic: str, password: str) -> Iterator[Callable[[], None]]:
        """A pod produces with acks=all, through the service: nothing fails, and nothing is lost.

        Gives what waits until more was acknowledged.
        """
        self.moldau("topic", "create", topic, "--partitions", "3")
        pod = load_pod(self.namespace, topic, password)
        # Nodes that are drained lose it, too.
        pod["spec"]["nodeName"] = self.pods()["moldau-0"]["spec"]["nodeName"]
        self.cluster.apply(pod, load_files(self.namespace))

        def last(lines: str = "--tail=1") -> dict[str, Any]:
            shown = self.kubectl("logs", topic, lines).splitlines()
            return dict(json.loads(shown[-1])) if shown else {"acked": 0, "failures": []}

        def more() -> None:
            goal = last()["acked"] + 100
            wait_until(lambda: last()["acked"] >= goal, "more is acknowledged", describe=last)

        wait_until(lambda: self.get("pod", topic)[0]["status"]["phase"] == "Running", "it runs")
        more()
        yield more
        more()
        self.kubectl("exec", topic, "--", "sh", "-c", "kill 1")
        wait_until(
            lambda: self.get("pod", topic)[0]["status"]["phase"] == "Succeeded", "all is read"
        )
        found = last("--tail=-1")
        self.kubectl("delete", "pod", topic)
        assert found["failures"] == []
        verdict = check(found["events"])
        assert verdict.clean, verdict
        assert verdict.acked == found["acked"] > 0

    def describe(self) -> str:
        lines = self.kubectl("get", "pods,pvc,events", "-o", "wide")
        for name in self.pods():
            words = self.cluster.kubectl_command(
                *("--namespace", self.namespace, "logs", name, "--tail=20", "--all-containers")
            )
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            lines += f"---- {name}\n{done.stdout}{done.stderr}"
        return lines


# ---- the pod of the load


def load_pod(namespace: str, topic: str, password: str) -> dict[str, Any]:
    wanted = {
        "bootstrap": f"moldau.{namespace}.svc.cluster.local:9092",
        "topic": topic,
        "partitions": 3,
        "settings": {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "root",
            "sasl.password": password,
            "ssl.ca.location": "/tls/ca.crt",
        },
    }
    container = {
        "name": "load",
        "image": IMAGE,
        "command": ["python", "/load/machine_load.py", json.dumps(wanted)],
        "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in ("load", "tls")],
    }
    authority = [{"key": "ca.crt", "path": "ca.crt"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": topic, "namespace": namespace},
        "spec": {
            "restartPolicy": "Never",
            "containers": [container],
            "volumes": [
                {"name": "load", "configMap": {"name": "load"}},
                {"name": "tls", "secret": {"secretName": "moldau-tls", "items": authority}},
            ],
        },
    }


def load_files(namespace: str) -> dict[str, Any]:
    here = Path(__file__).parent
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "load", "namespace": namespace},
        "data": {name: (here / name).read_text() for name in ("machine_load.py", "steady_load.py")},
    }

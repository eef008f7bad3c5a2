"""Does in a Kubernetes of kubernetes_cluster.py what a page tells to type, and looks at the outcome."""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from doc_pages import Block
from kubernetes_cluster import Cluster, is_true
from pseudo_terminal import Terminal

ROOT: Final = Path(__file__).parents[2]
DATA: Final = ("--data-dir", "/var/lib/moldau/data")


class Person:
    """Somebody with helm, kubectl and moldau, in a clone of the repository and one namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.folder = cluster.folder / f"person of {namespace}"
        self.folder.mkdir()
        (self.folder / "deploy").symlink_to(ROOT / "deploy")
        (self.folder / "bin").mkdir()
        kubectl = self.folder / "bin/kubectl"
        program = shlex.join([str(cluster.programs / "kubernetes"), "kubectl"])
        kubectl.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        kubectl.chmod(0o755)

    # ---- typing

    def types(self, block: Block | str, *, answers: tuple[tuple[str, str], ...] = ()) -> str:
        """Paste a block into a terminal; each answer follows its question. All must succeed."""
        text = block if isinstance(block, str) else block.text
        words = self.cluster.outside.network_command(["bash", "-e", "-x", "-c", text])

        def spawn(*_: object, **options: Any) -> "subprocess.Popen[str]":
            options["env"] = {**self._environment(), **options["env"]}
            return subprocess.Popen(words, cwd=self.folder, text=True, **options)

        terminal = Terminal(spawn, whole=True)
        pending = list(answers)
        # As long as it takes: a rolling update has no end that could be known.
        while terminal.read():
            if pending and pending[0][0] in terminal.seen.rpartition("\n")[2]:
                terminal.type(f"{pending.pop(0)[1]}\n")
            time.sleep(0.1)
        terminal.close()
        assert terminal.process.wait() == 0, f"{terminal.seen}\n{self.describe()}"
        return terminal.seen

    def _environment(self) -> dict[str, str]:
        known = {key: os.environ[key] for key in os.environ if not key.startswith("MOLDAU_")}
        places = (str(self.folder / "bin"), str(Path(sys.executable).parent), known["PATH"])
        own = {"HELM_CACHE_HOME": str(self.folder / "helm"), "HELM_CONFIG_HOME": str(self.folder / "helm")}
        return known | own | {"PATH": ":".join(places), "KUBECONFIG": str(self.cluster.kubeconfig)}

    # ---- looking

    def kubectl(self, *words: str, text: str | None = None) -> str:
        return self.cluster.kubectl("--namespace", self.namespace, *words, text=text)

    def get(self, *words: str) -> list[dict[str, Any]]:
        return self.cluster.get("--namespace", self.namespace, *words)

    def moldau(self, *words: str, pod: str = "moldau-0") -> str:
        """A command in a pod, as its administrator."""
        return self.kubectl("exec", pod, "--container", "broker", "--", "moldau", *words, *DATA)

    def brokers(self) -> list[dict[str, Any]]:
        return list(json.loads(self.moldau("broker", "list", "-o", "json")))

    def pods(self) -> dict[str, dict[str, Any]]:
        found = self.get("pods", "--selector", "app.kubernetes.io/name=moldau")
        return {each["metadata"]["name"]: each for each in found}

    def ready_pods(self) -> list[str]:
        return sorted(name for name, each in self.pods().items() if is_true(each, "Ready"))

    def describe(self) -> str:
        lines = self.kubectl("get", "pods,pvc,events", "-o", "wide")
        for name in self.pods():
            words = self.cluster.kubectl_command(
                *("--namespace", self.namespace, "logs", name, "--tail=20", "--all-containers")
            )
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            lines += f"---- {name}\n{done.stdout}{done.stderr}"
        return lines

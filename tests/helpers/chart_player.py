"""Plays the StatefulSet of rendered Kubernetes manifests with processes on this machine.

What Kubernetes would read is read from the manifests: environment, files of ConfigMap and Secret,
command, probes, preStop, grace period, order of updates. Each pod gets a loopback address, so that
the ports are those of the chart; names of the cluster's DNS and paths of mounts are replaced in
variables, files and arguments. minReadySeconds is cut to one second. What is not played:
scheduling, images, users and file systems of containers.
"""

import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from kubernetes_api import Api

from moldau.testing.waiting import wait_seconds_max, wait_until

NAMESPACE: Final = "messages"
_MIN_READY_SECONDS_MAX: Final = 1.0
_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_REFERENCE: Final = re.compile(r"\$\(([A-Z_]+)\)")

Manifest = dict[str, Any]


class PodFailedError(AssertionError):
    """A container of a pod ended by itself, or did not do what its manifest says."""


class Pod:
    """One pod: its processes and its folders."""

    def __init__(self, player: "Player", ordinal: int, template: Manifest) -> None:
        self._player = player
        self.ordinal = ordinal
        self.address = player.address_of(ordinal)
        self.name = f"{player.name}-{ordinal}"
        self.spec: Manifest = template["spec"]
        (self.container,) = self.spec["containers"]
        self.folder = player.folder / f"{self.name}.pod"
        self.log = player.folder / f"{self.name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._paths = self._mount()

    # ---- what a kubelet prepares

    def _mount(self) -> dict[str, str]:
        """Where each mount path is on this machine."""
        containers = (self.container, *self.spec.get("initContainers", ()))
        return {
            mount["mountPath"]: str(
                self._player.volume_of(self.ordinal)
                if mount["name"] in self._player.claims
                else self.folder / mount["name"]
            )
            for each in containers
            for mount in each["volumeMounts"]
        }

    def _make_volumes(self) -> None:
        self._player.volume_of(self.ordinal).mkdir(exist_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        for volume in self.spec["volumes"]:
            place = self.folder / volume["name"]
            place.mkdir(parents=True)
            self._fill(place, volume)

    def _fill(self, place: Path, volume: Manifest) -> None:
        if "configMap" in volume:
            source = self._player.find("ConfigMap", volume["configMap"]["name"])["data"]
            for item in volume["configMap"]["items"]:
                text = source[item["key"]].replace("0.0.0.0", self.address)
                (place / item["path"]).write_text(self._placed(text))
        elif "secret" in volume:
            source = self._player.secrets[volume["secret"]["secretName"]]
            every = [{"key": key, "path": key} for key in source]
            for item in volume["secret"].get("items", every):
                (place / item["path"]).write_text(source[item["key"]])
                (place / item["path"]).chmod(volume["secret"]["defaultMode"])
        elif "projected" in volume:
            assert self._player.api is not None, "the manifests need an API server"
            for name, content in self._player.api.account.items():
                (place / name).write_text(content)
        else:
            assert "emptyDir" in volume, volume

    def _placed(self, text: str) -> str:
        """With the addresses and paths of this machine."""
        paths = "|".join(re.escape(path) for path in self._paths)
        return re.sub(
            rf"(?<![\w/])({paths})(?![\w-])",
            lambda found: self._paths[found[1]],
            self._player.resolved(text),
        )

    def environment(self, container: Manifest | None = None) -> dict[str, str]:
        """Of the broker, or of an init container."""
        known = {key: value for key, value in os.environ.items() if not key.startswith("MOLDAU_")}
        fields = {
            "metadata.name": self.name,
            "metadata.namespace": NAMESPACE,
            "spec.nodeName": f"node-{self.ordinal}",
        }
        if self.spec.get("enableServiceLinks", True):
            # What Kubernetes does to a pod beside a service that is called moldau.
            known |= {"MOLDAU_PORT": "tcp://10.0.0.1:9092", "MOLDAU_SERVICE_HOST": "10.0.0.1"}
        given: dict[str, str] = {}
        for each in (container or self.container)["env"]:
            if "valueFrom" in each:
                given[each["name"]] = fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                given[each["name"]] = _REFERENCE.sub(lambda m: given[m[1]], each["value"])
        return known | {name: self._placed(value) for name, value in given.items()}

    def _command(self, words: Sequence[str]) -> list[str]:
        program = {"moldau": [sys.executable, "-m", "moldau"], "python": [sys.executable]}
        return [*program[words[0]], *(self._placed(word) for word in words[1:])]

    # ---- its life

    def start(self) -> None:
        self._make_volumes()
        for each in self.spec.get("initContainers", ()):
            assert self._player.api is not None, "the manifests need an API server"
            account = {"SERVICE_ACCOUNT_DIR": self._paths[_ACCOUNT]}
            done = subprocess.run(
                self._command(each["command"]),
                env={**self.environment(each), **self._player.api.variables, **account},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise PodFailedError(f"{each['name']} of {self.name}: {done.stderr}")
        words = [*self.container["command"], *self.container["args"]]
        with open(self.log, "ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                self._command(words),
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def probe(self, kind: str) -> int:
        """The status of a probe's request; 0 if nothing responds."""
        get = self.container[f"{kind}Probe"]["httpGet"]
        (port,) = (p["containerPort"] for p in self.container["ports"] if p["name"] == get["port"])
        url = f"{get['scheme'].lower()}://{self.address}:{port}{get['path']}"
        seconds = self.container[f"{kind}Probe"]["timeoutSeconds"]
        try:
            # A kubelet checks no certificate.
            anyone = ssl._create_unverified_context()
            with urllib.request.urlopen(url, timeout=seconds, context=anyone) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def _passes(self, kind: str) -> bool:
        if self.process is not None and (code := self.process.poll()) is not None:
            raise PodFailedError(f"{self.name} ended with {code}:\n{self.output[-3000:]}")
        return self.probe(kind) == 200

    @property
    def is_ready(self) -> bool:
        return self._passes("readiness")

    @property
    def output(self) -> str:
        """Of its last start."""
        return self.log.read_bytes()[self._log_start :].decode(errors="replace")

    def wait_ready(self) -> None:
        for kind in ("startup", "readiness"):
            wait_until(partial(self._passes, kind), f"{self.name}: {kind}", describe=self.seen)

    def seen(self) -> str:
        return self.output[-3000:]

    def delete(self) -> None:
        """As Kubernetes ends a pod: preStop, SIGTERM, and SIGKILL after the grace period."""
        assert self.process is not None
        grace_ends = time.monotonic() + self.spec["terminationGracePeriodSeconds"]
        hook = self.container["lifecycle"]["preStop"]["exec"]["command"]
        done = subprocess.run(
            self._command(hook),
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=max(1.0, grace_ends - time.monotonic()),
            check=False,
        )
        if done.returncode:
            raise PodFailedError(f"preStop of {self.name}: {done.stdout}{done.stderr}")
        self.process.terminate()
        try:
            code = self.process.wait(max(1.0, grace_ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            raise PodFailedError(f"{self.name} did not stop in time:\n{self.output}") from None
        if code:
            raise PodFailedError(f"{self.name} stopped with {code}:\n{self.output[-3000:]}")

    def kill(self) -> None:
        """The node is lost."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


class Player:
    """The controller of a StatefulSet."""

    def __init__(
        self,
        folder: Path,
        manifests: Iterable[Manifest],
        secrets: dict[str, dict[str, str]],
        api: Api | None = None,
    ) -> None:
        """`secrets`: those that a person makes before the manifests are applied."""
        self.folder = folder
        self.secrets = secrets
        self.api = api
        self.apply(manifests)
        self._network = f"127.{10 + os.getpid() % 200}.{10 + os.getpid() // 200 % 200}"
        self.pods: dict[int, Pod] = {}

    def apply(self, manifests: Iterable[Manifest]) -> None:
        """What `kubectl apply` changes; the pods change by `update`."""
        self._manifests = [each for each in manifests if each]
        (self._set,) = (each for each in self._manifests if each["kind"] == "StatefulSet")
        self.name: str = self._set["metadata"]["name"]
        spec = self._set["spec"]
        self.claims = {each["metadata"]["name"] for each in spec["volumeClaimTemplates"]}
        assert spec["podManagementPolicy"] == "Parallel"
        assert spec["updateStrategy"] == {"type": "RollingUpdate"}
        headless = self.find("Service", spec["serviceName"])["spec"]
        assert headless["clusterIP"] == "None"
        assert headless["publishNotReadyAddresses"] is True, "names must be known before readiness"

    def find(self, kind: str, name: str) -> Manifest:
        (found,) = (
            each
            for each in self._manifests
            if each["kind"] == kind and each["metadata"]["name"] == name
        )
        return found

    # ---- network and volumes

    def address_of(self, ordinal: int) -> str:
        return f"{self._network}.{10 + ordinal}"

    def volume_of(self, ordinal: int) -> Path:
        return self.folder / f"data-{self.name}-{ordinal}"

    def resolved(self, text: str) -> str:
        """Names of DNS as addresses: those of pods, and a ready pod for that of the service."""
        domain = rf"{NAMESPACE}\.svc\.cluster\.local"
        headless = self._set["spec"]["serviceName"]
        text = re.sub(
            rf"{self.name}-(\d+)\.{headless}\.{domain}", lambda m: self.address_of(int(m[1])), text
        )
        ready = [pod for pod in self.pods.values() if pod.probe("readiness") == 200]
        service = ready[0].address if ready else f"{self._network}.250"
        return re.sub(rf"(?<![\w-]){self.name}\.{domain}", service, text)

    # ---- what the controller does

    def scale(self, replicas: int) -> None:
        """Parallel: all that are missing start at once."""
        started = []
        for ordinal in range(replicas):
            if ordinal not in self.pods:
                started.append(self._start(ordinal))
        for pod in started:
            pod.wait_ready()

    def update(self) -> None:
        """A rolling update, from the last pod to the first; each must be ready before the next."""
        for ordinal in sorted(self.pods, reverse=True):
            self.replace(ordinal)

    def replace(self, ordinal: int) -> None:
        self.pods[ordinal].delete()
        self._start(ordinal).wait_ready()
        # Long enough to see a broker that is ready and fails at once.
        time.sleep(min(self._set["spec"]["minReadySeconds"], _MIN_READY_SECONDS_MAX))
        assert self.pods[ordinal].is_ready

    def restart_lost(self, ordinal: int, *, with_volume: bool) -> Pod:
        """A pod whose node was lost comes back on another one."""
        self.pods[ordinal].kill()
        if not with_volume:
            shutil.rmtree(self.volume_of(ordinal))
        return self._start(ordinal)

    def _start(self, ordinal: int) -> Pod:
        pod = self.pods[ordinal] = Pod(self, ordinal, self._set["spec"]["template"])
        pod.start()
        return pod

    def start_failing(self, ordinal: int) -> str:
        """Replace a pod by one that must fail at its start; returns its output."""
        self.pods[ordinal].delete()
        pod = self._start(ordinal)
        assert pod.process is not None
        code = pod.process.wait(wait_seconds_max())
        assert code not in (0, -signal.SIGKILL), pod.output
        return pod.output

    def close(self) -> None:
        for pod in self.pods.values():
            if pod.process is not None and pod.process.poll() is None:
                pod.kill()

"""The chart, the manifests that are rendered from it, the compose file and the unit of systemd.

Each is held against its schema by the tool that has it; a tool that is not installed is named by
the skip. helm is a Go program: make helm
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from moldau_command import run_moldau

from moldau import __version__
from moldau.server.config.keys import ALIASES, KEYS
from moldau.server.config.load import load_config
from moldau.server.node.plan import make_plan, process_count
from release.deploy_files import (
    RENDERED,
    expected_files,
    outdated_files,
    sealed,
    semantic_version,
)

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm/moldau"
INSECURE = ("--set", "insecure=true")
TLS = ("--set", "tls.enabled=true,tls.secretName=x")
MONITOR = ("--set", "metrics.serviceMonitor.enabled=true")
BUDGET = "podDisruptionBudget.maxUnavailable"
CLUSTER_SECRET = ("--set", "clusterSecret.existingSecret=x")


def tool(name: str, how: str) -> str:
    """A program, beside Python or in the path; skips the test without it."""
    folders = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    found = shutil.which(name, path=folders)
    if found is None:
        pytest.skip(f"{name} is not installed ({how})")
    return found


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    program = os.environ.get("MOLDAU_TEST_HELM") or tool(
        "helm", "make helm, or MOLDAU_TEST_HELM=/path/to/helm"
    )
    return run(program, *words)


def template(*words: str) -> subprocess.CompletedProcess[str]:
    place = ("--namespace", "moldau", "--kube-version", "1.30")
    return helm("template", "moldau", str(CHART), *place, *words)


def documents(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each]


def one(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (document,) = (each for each in found if each["kind"] == kind)
    return document


# ---- helm


@pytest.mark.parametrize("name", RENDERED)
def test_the_manifests_are_rendered_from_the_chart(name: str) -> None:
    done = template("--values", str(DEPLOY / "kubernetes" / RENDERED[name]))
    assert done.returncode == 0, done.stderr
    kept = DEPLOY / "kubernetes" / name
    assert sealed(done.stdout, kept.with_name(RENDERED[name])) == kept.read_text(), (
        "make deploy-files, as docs/operate/kubernetes.md says"
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "choose how clients are served"),
        ((*INSECURE, "--set", "tls.enabled=true"), "choose how clients are served"),
        (("--set", "tls.enabled=true"), "needs a certificate"),
        ((*TLS, *MONITOR), "metrics.serviceMonitor needs a way in"),
        ((*INSECURE, "--set", "replicas=2"), "is less than initialMembers=3"),
        ((*INSECURE, "--set", "initialMembers=1"), "would make a second one"),
        ((*INSECURE, "--set", "replicationFactor=4"), "is more than replicas=3"),
        ((*INSECURE, "--set", "preStopSeconds=100"), "must be at least preStopSeconds + 30"),
        ((*INSECURE, "--set", "processes=0"), "processes"),
        ((*INSECURE, "--set", "config.processes=2"), "use the value processes"),
        ((*INSECURE, "--set", "replica=5"), "replica"),
        ((*INSECURE, "--set", "antiAffinity=hard"), "antiAffinity"),
        ((*INSECURE, "--set", "minInsyncReplicas=4"), "is more than replicationFactor=3"),
        ((*INSECURE, "--set", "preStopSeconds=0"), "would stop while the others still need it"),
        ((*INSECURE, "--set", "storage.size="), "storage.size"),
        ((*INSECURE, "--set", "storage.size=0Gi"), "storage.size"),
        ((*INSECURE, "--set-string", "storage.size=20"), "storage.size"),
        ((*INSECURE, "--set", f"{BUDGET}=2"), "partitions can do without 1"),
        ((*INSECURE, "--set", f"{BUDGET}=34%"), "lets node upgrades stop 2 brokers at once"),
        ((*INSECURE, "--set", f"{BUDGET}=one"), BUDGET),
        ((*INSECURE, "--set", r"podLabels.app\.kubernetes\.io/name=x"), "find the brokers by it"),
        ((*INSECURE, "--set", "config.log.flsh=never"), "property flsh is not allowed"),
        ((*INSECURE, "--set", "config.retention=1d"), "property retention is not allowed"),
        ((*INSECURE, "--set", "config.broker_id=1"), "config.broker_id is for the chart to set"),
        ((*INSECURE, "--set", "config.kafka.addr=a:1"), "config.kafka.addr is for the chart"),
        ((*INSECURE, "--set", "config.data_dir=/"), "config.data_dir is for the chart to set"),
        ((*INSECURE, "--set", "config.topic.min_insync_replicas=1"), "use the value minInsync"),
        ((*TLS, "--set", "config.security.insecure=true"), "use the value insecure"),
        ((*TLS, "--set", "config.kafka.security=plaintext"), "config.kafka.security=plaintext"),
        ((*INSECURE, "--set", "config.grpc.security=mtls"), "with insecure there is none"),
    ],
)
def test_values_that_make_no_sense_are_refused(words: tuple[str, ...], expected: str) -> None:
    done = template(*words)
    assert done.returncode != 0
    assert expected in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), ""),
        (("--set", "initialMembers=2"), "survives as many"),
        (("--set", "minInsyncReplicas=3"), "while a broker restarts"),
    ],
)
def test_values_that_are_seldom_meant_are_warned_of(
    words: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    """helm shows its notes only when it installs: they are rendered as a manifest here."""
    chart = tmp_path / "moldau"
    shutil.copytree(CHART, chart)
    assert '{{- include "moldau.warnings" . }}' in (chart / "templates/NOTES.txt").read_text()
    shown = '{{ dict "warnings" (include "moldau.warnings" .) | toYaml }}'
    (chart / "templates/warnings.yaml").write_text(shown)
    only = ("--kube-version", "1.30", "--show-only", "templates/warnings.yaml")
    done = helm("template", "moldau", str(chart), *only, *INSECURE, *words)
    assert done.returncode == 0, done.stderr
    (document,) = documents(done.stdout)
    assert expected in document["warnings"]
    assert bool(document["warnings"]) == bool(expected)


def test_settings_that_brokers_have_besides_are_for_config() -> None:
    words = (
        "config.kafka.security=mtls,config.grpc.security=mtls,config.http.hosts=moldau.example",
        "config.log.retention_ms=3d,config.logging.format=json,config.log_retention_hours=1",
        f"{BUDGET}=33%,config.cluster_id=messages",
    )
    done = template(*TLS, *(word for each in words for word in ("--set", each)))
    assert done.returncode == 0, done.stderr
    # The hosts of the chart are those of the probes and of clients: more are added.
    assert ',moldau.moldau.svc,moldau.moldau,moldau,moldau.example"' in done.stdout.replace(
        "$(POD_NAMESPACE)", "moldau"
    )


def test_every_choice_renders_what_kubernetes_accepts(tmp_path: Path) -> None:
    validate = tool("kubernetes-validate", "pip install kubernetes-validate")
    issuer = "tls.certManager.issuer.name=ca"
    choices = (
        (*INSECURE,),
        (*INSECURE, "--set", "rack.from=label,antiAffinity=preferred,config.log.retention_ms=1d"),
        (*INSECURE, "--set", "initialMembers=1,replicas=1,replicationFactor=1,minInsyncReplicas=1"),
        ("--set", f"tls.enabled=true,tls.certManager.enabled=true,{issuer}", *CLUSTER_SECRET),
        (*INSECURE, *MONITOR, "--set", "rack.from=none"),
        (*TLS, *MONITOR, "--set", "metrics.public=true", *CLUSTER_SECRET),
        (*TLS, *MONITOR, "--set", "metrics.serviceMonitor.basicAuthSecret=x", *CLUSTER_SECRET),
    )
    for number, words in enumerate(choices):
        done = template(*words)
        assert done.returncode == 0, done.stderr
        custom = (
            "ServiceMonitor",
            "PrometheusRule",
            "Certificate",
        )  # Of operators: no schema here.
        known = [each for each in documents(done.stdout) if each["kind"] not in custom]
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump_all(known))
    files = [str(path) for path in tmp_path.iterdir()]
    files += [str(DEPLOY / "kubernetes" / name) for name in RENDERED]
    for version in ("1.30", "1.34"):
        done = run(validate, "--strict", "--quiet", "-k", version, *files)
        assert done.returncode == 0, done.stdout + done.stderr


def test_an_upgrade_that_scales_does_not_restart_brokers() -> None:
    pods = []
    for words in ((), ("--set", "replicas=5")):
        done = template(*INSECURE, *CLUSTER_SECRET, *words)
        pods.append(one(documents(done.stdout), "StatefulSet")["spec"]["template"])
    assert pods[0] == pods[1]


@pytest.mark.parametrize(
    ("release", "expected"),
    [("events", "a/moldau-events"), ("moldau", "a/moldau"), ("e" * 50, f"a/moldau-{'e' * 50}")],
)
def test_the_alerts_find_the_brokers_of_every_release(release: str, expected: str) -> None:
    place = ("--namespace", "a", "--kube-version", "1.30")
    done = helm("template", release, str(CHART), *place, *INSECURE, *MONITOR)
    (endpoint,) = one(documents(done.stdout), "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": expected}]
    alerts = (DEPLOY / "prometheus/alerts.yml").read_text()
    (pattern,) = set(re.findall(r'up\{job=~"([^"]*)"', alerts))
    assert re.fullmatch(pattern, expected)


def test_the_rules_of_the_chart_are_the_alerts() -> None:
    base = "https://wiki.example/moldau/"
    enabled = f"metrics.prometheusRule.enabled=true,metrics.prometheusRule.runbookBase={base}"
    done = template(*INSECURE, "--set", enabled)
    assert done.returncode == 0, done.stderr
    alerts = (DEPLOY / "prometheus/alerts.yml").read_text()
    expected = yaml.safe_load(alerts.replace("runbook_url: docs/", f"runbook_url: {base}docs/"))
    assert one(documents(done.stdout), "PrometheusRule")["spec"] == expected


# ---- the manifests, without helm


@pytest.mark.parametrize("name", RENDERED)
def test_the_configuration_of_the_manifests_is_valid(name: str, tmp_path: Path) -> None:
    text = one(documents((DEPLOY / "kubernetes" / name).read_text()), "ConfigMap")["data"]
    file = tmp_path / "broker.yaml"
    file.write_text(text["broker.yaml"])
    run_moldau("config", "show", "--config", str(file), "--set", "kafka.advertised=broker:9092")


@pytest.mark.parametrize("name", RENDERED)
def test_what_the_chart_sets_cannot_be_set_in_config_too(name: str) -> None:
    helpers = (CHART / "templates/_helpers.tpl").read_text()
    (text,) = re.findall(r'define "moldau.ownSettings" -}}\n(.*?){{- end', helpers, re.DOTALL)
    refused = yaml.safe_load(text)
    assert set(refused) <= set(KEYS) | set(ALIASES)
    found = documents((DEPLOY / "kubernetes" / name).read_text())
    (broker,) = one(found, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    settings = {key.variable: key.name for key in KEYS.values()}
    chosen = {settings[each["name"]] for each in broker["env"] if each["name"] in settings}
    config = yaml.safe_load(one(found, "ConfigMap")["data"]["broker.yaml"])
    chosen |= {f"{section}.{field}" for section, fields in config.items() for field in fields}
    # How clients log in may be changed; hosts are added.
    allowed = {"kafka.security", "kafka.sasl_mechanisms", "grpc.security", "http.hosts"}
    allowed |= {"grpc.authentication", "http.authentication"}
    assert chosen - set(refused) <= allowed


@pytest.mark.parametrize("name", RENDERED)
def test_brokers_run_without_privileges_and_live_without_a_majority(name: str) -> None:
    pod = one(documents((DEPLOY / "kubernetes" / name).read_text()), "StatefulSet")["spec"]
    assert pod["podManagementPolicy"] == "Parallel"
    spec = pod["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
    (broker,) = spec["containers"]
    assert broker["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert broker["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert broker["readinessProbe"]["httpGet"]["path"] == "/readyz"
    # What it may write to is mounted.
    data = {each["name"]: each.get("value", "") for each in broker["env"]}["MOLDAU_DATA_DIR"]
    mounts = {each["name"]: each["mountPath"] for each in broker["volumeMounts"]}
    assert data.startswith(mounts["data"] + "/")


def test_chart_and_compose_run_this_version() -> None:
    assert outdated_files() == [], "make deploy-files"
    version = semantic_version(__version__)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == version
    services = [each for name in COMPOSE_FILES for each in compose(name)["services"].values()]
    images = {each["image"] for each in services}
    assert {image for image in images if image.startswith("moldau:")} == {f"moldau:{version}"}
    for name in RENDERED:
        for each in documents((DEPLOY / "kubernetes" / name).read_text()):
            assert each["metadata"]["labels"]["app.kubernetes.io/version"] == version


@pytest.mark.parametrize("version", ["0.2.0.dev0", "0.2.0rc1"])
def test_every_version_that_may_be_set_is_one_of_a_chart(version: str, tmp_path: Path) -> None:
    chart = tmp_path / "moldau"
    shutil.copytree(CHART, chart)
    (chart / "Chart.yaml").write_text(expected_files(version)[CHART / "Chart.yaml"])
    done = helm("template", "moldau", str(chart), "--kube-version", "1.30", *INSECURE)
    assert done.returncode == 0, done.stderr
    assert f"image: moldau:{semantic_version(version)}\n" in done.stdout


# ---- compose


COMPOSE_FILES = ("compose.yaml", "compose-node.yaml")


def compose(name: str = "compose.yaml") -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "docker" / name).read_text())
    return found


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_the_compose_file_fits_its_schema(name: str) -> None:
    check = tool("check-jsonschema", "pip install check-jsonschema")
    schema = ("--builtin-schema", "vendor.compose-spec")
    done = run(check, *schema, str(DEPLOY / "docker" / name))
    assert done.returncode == 0, done.stdout


def test_the_node_of_compose_is_published_as_its_processes_are_advertised(tmp_path: Path) -> None:
    service = compose("compose-node.yaml")["services"]["node"]
    environment = {**service["environment"], "MOLDAU_DATA_DIR": str(tmp_path)}
    plan = make_plan(config := load_config({}, environment).config, process_count(config))
    assert plan.count == 2
    for kafka, http, grpc in ((9093, 8081, 8001), (9094, 8082, 8002)):
        own = plan.of_process(kafka - 9092, None)
        assert str(own.kafka.advertised) == f"localhost:{kafka}"
        assert str(own.http.advertised) == f"localhost:{http}"
        assert str(own.grpc.advertised) == f"localhost:{grpc}"
        assert (own.kafka.addr.port, own.http.addr.port) == (kafka, http)
        assert own.grpc.addr is not None
        assert own.grpc.addr.port == grpc
    ports = [f"{first}-{first + plan.count}" for first in (9092, 8080, 8000)]
    assert service["ports"] == [f"127.0.0.1:{each}:{each}" for each in ports]
    # 60 s for one broker, as in the other file.
    assert service["stop_grace_period"] == f"{60 + 5 * (plan.count - 1)}s"


def test_brokers_of_compose_have_valid_settings_and_files_that_exist(tmp_path: Path) -> None:
    services = compose()["services"]
    brokers = {name: each for name, each in services.items() if name.startswith("broker-")}
    assert len(brokers) == 3
    for name, service in brokers.items():
        settings = service["environment"]
        # Each is found under its own name, by the others and by Prometheus.
        assert service["hostname"] == name
        assert settings["MOLDAU_HTTP__ADVERTISED"] == f"{name}:8080"
        assert f"{name}:8080" in settings["MOLDAU_INITIAL_MEMBERS"].split(",")
        listeners = {each["name"]: each for each in json.loads(settings["MOLDAU_LISTENERS"])}
        port = listeners["host"]["advertised"].rpartition(":")[2]
        assert f"127.0.0.1:{port}:{port}" in service["ports"]
        # In the container, commands find all brokers at the addresses that these advertise there.
        for variable, other in (("BROKERS", "29092"), ("HTTP", "8080"), ("GRPC", "8000")):
            expected = ",".join(f"{each}:{other}" for each in brokers)
            assert settings.pop(f"MOLDAU_{variable}") == expected
        assert listeners["containers"]["advertised"] == f"{name}:29092"
        assert settings["MOLDAU_GRPC__ADVERTISED"] == f"{name}:8000"
        flags = [f"--set={key[7:].replace('__', '.').lower()}={v}" for key, v in settings.items()]
        # The list is given by the environment only.
        run_moldau("config", "show", *(f for f in flags if not f.startswith("--set=listeners")))
    # As docs/operate/containers.md and docs/operate/systemd.md make it.
    *command, secret = services["secret"]["command"]
    assert secret == brokers["broker-1"]["environment"]["MOLDAU_CLUSTER_SECRET_FILE"]
    run_moldau(*command, str(tmp_path / "cluster.secret"))


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_everything_in_compose_is_published_on_this_machine_only_and_mounts_what_exists(
    name: str,
) -> None:
    found = compose(name)
    missing = []
    for service in found["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        for mount in service.get("volumes", ()):
            source = mount.partition(":")[0]
            if not source.startswith("."):
                assert source in found["volumes"]
            elif not (DEPLOY / "docker" / source).is_dir():
                missing.append(source)
    assert missing == []


# ---- systemd


@pytest.mark.parametrize("name", ["systemd/moldau.service", "pipelines/moldau-archive.service"])
def test_systemd_accepts_the_unit_and_finds_it_confined(name: str, tmp_path: Path) -> None:
    analyze = tool("systemd-analyze", "apt-get install systemd")
    unit = tmp_path / Path(name).name
    text = (DEPLOY / name).read_text()
    # The program must exist where it looks.
    unit.write_text(text.replace("/opt/moldau/bin/moldau", sys.executable))
    done = run(analyze, "verify", "--man=no", str(unit))
    assert done.returncode == 0, done.stderr
    assert unit.name not in done.stderr, done.stderr
    confined = run(analyze, "security", "--offline=true", "--threshold=20", str(unit))
    assert confined.returncode == 0, confined.stdout[-500:]


def test_the_configuration_for_systemd_is_valid() -> None:
    """By the command of docs/operate/systemd.md."""
    run_moldau("config", "show", "--config", str(DEPLOY / "systemd/broker.yaml"))


@pytest.mark.parametrize(
    ("processes", "limit", "seconds"),
    [
        ("4", None, 135),
        ("auto", None, 435),
        ("auto", "8", 155),
        ("auto", "2.5", 130),
        ("auto", "3500m", 135),
        ("auto", "500m", 120),
    ],
)
def test_a_pod_of_several_processes_stops_when_the_cluster_can_do_without_all(
    processes, limit, seconds
):
    words = ["--kube-version", "1.30", *INSECURE, "--set", f"processes={processes}"]
    if limit is not None:
        words += ["--set-string", f"resources.limits.cpu={limit}"]
    done = helm("template", "m", str(CHART), *words)
    assert done.returncode == 0, done.stderr
    parts = [part for part in yaml.safe_load_all(done.stdout) if part]
    (pods,) = [part for part in parts if part["kind"] == "StatefulSet"]
    (broker,) = pods["spec"]["template"]["spec"]["containers"]
    assert {"name": "MOLDAU_PROCESSES", "value": processes} in broker["env"]
    command = broker["lifecycle"]["preStop"]["exec"]["command"]
    assert command[3:5] == ["--whole-node", "/var/lib/moldau/data"]
    assert pods["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == seconds

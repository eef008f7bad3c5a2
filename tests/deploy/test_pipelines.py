"""The files in deploy/pipelines: they parse, and `moldau` takes every command in them."""

import ast
import configparser
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from moldau.cli.pipeline.run import run

pytestmark = pytest.mark.system

DEPLOY = Path(__file__).parents[2] / "deploy/pipelines"


def check(words: Sequence[str]) -> dict[str, Any]:
    """What `moldau pipeline run` understands; raises what click raises. Nothing is run."""
    assert [Path(words[0]).name, *words[1:3]] == ["moldau", "pipeline", "run"]
    group = click.Context(run)
    is_file = words[3].startswith("-")
    command = run.get_command(group, "@file" if is_file else words[3])
    assert command is not None, words
    with command.make_context("run", list(words[3 if is_file else 4 :]), parent=group) as made:
        return made.params


def documents() -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for document in documents():
        if document["kind"] == "Deployment":
            yield document["metadata"]["name"], document["spec"]["template"]["spec"]
        if document["kind"] == "CronJob":
            template = document["spec"]["jobTemplate"]["spec"]["template"]
            yield document["metadata"]["name"], template["spec"]


def test_the_unit_of_systemd_runs_a_continuous_pipeline() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    text = (DEPLOY / "moldau-archive.service").read_text()
    unit.read_string(text)
    told = check(shlex.split(unit["Service"]["ExecStart"]))
    assert told["topics"] == ("clicks",)
    assert told["trigger_seconds"] == 10
    assert unit["Service"]["KillMode"] == "mixed"
    # It writes to a directory of its own only: that of a broker is for the broker.
    state = f"/var/lib/{unit['Service']['StateDirectory']}"
    assert state != "/var/lib/moldau"
    assert unit["Service"]["ProtectSystem"] == "strict"
    variables = dict(re.findall(r"^Environment=(\w+)=(.*)$", text, re.MULTILINE))
    places = (variables["HOME"], variables["MOLDAU_PIPELINES_HOME"])
    assert {*places, unit["Service"]["WorkingDirectory"]} == {state}
    assert variables["JAVA_TOOL_OPTIONS"] == f"-Duser.home={state}"


def test_what_kubernetes_runs_is_declared_and_reaches_its_files() -> None:
    pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
    from moldau.spark.pipelines.settings_file import from_plain

    (files,) = (each["data"] for each in documents() if each["kind"] == "ConfigMap")
    kinds = {}
    for name, pod in pods():
        (container,) = pod["containers"]
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        assert mounts.keys() == {each["name"] for each in pod["volumes"]}
        (path,) = (word[7:] for word in container["command"] if word.startswith("--file="))
        assert Path(path).parent == Path(mounts["pipelines"])
        declared = yaml.safe_load(files[Path(path).name])
        settings = from_plain({**declared, "bootstrap": "b:1", "home": "/h"})
        assert settings.name == name
        kinds[name] = settings.kind
    assert kinds == {"archive-clicks": "archive", "compact-clicks": "compact"}


def test_the_commands_of_kubernetes_are_taken(tmp_path: Path) -> None:
    for _, pod in pods():
        (container,) = pod["containers"]
        file = tmp_path / "declared.yml"
        file.write_text("")
        words = [
            f"--file={file}" if word.startswith("--file=") else word
            for word in container["command"]
        ]
        told = check(words)
        assert told["path"] == str(file)
        if "ports" in container:
            assert told["metrics_port"] == container["ports"][0]["containerPort"]
            assert told["metrics_host"] == "0.0.0.0"
            assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"


def commands(name: str) -> list[list[str]]:
    """The commands in a program for a scheduler that is not installed here, by its constants."""
    tree = ast.parse((DEPLOY / name).read_text())
    known: dict[str, Any] = {}
    found: list[list[str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                value = eval(compile(ast.Expression(node.value), name, "eval"), {}, dict(known))
            except NameError:
                continue  # Of a package that is not installed here.
            known[node.targets[0].id] = value
            if isinstance(value, tuple) and value[:1] == ("moldau",):
                found.append(list(value))
        if isinstance(node, ast.keyword) and node.arg == "bash_command":
            text = eval(compile(ast.Expression(node.value), name, "eval"), {}, dict(known))
            found.append(shlex.split(re.sub("^exec ", "", text)))
    return found


@pytest.mark.parametrize("name", ["airflow_dag.py", "dagster_job.py"])
def test_schedulers_archive_compact_and_audit_one_table(name: str) -> None:
    told = {words[3]: check(words) for words in commands(name)}
    assert list(told) == ["archive", "compact", "audit"]
    tables = {told["archive"]["to"], told["compact"]["table"], told["audit"]["table"]}
    assert tables == {"s3://lake/clicks"}
    assert {each["table_format"] for each in told.values()} == {"delta"}
    assert told["archive"]["trigger_seconds"] is None, "a task of a scheduler must end"


def test_the_user_of_pods_exists_in_their_image() -> None:
    """Spark asks for the name and the home of its user, and fails without."""
    page = (DEPLOY / "README.md").read_text()
    (user,) = re.findall(r"^USER (\d+)$", page, re.MULTILINE)
    assert f"useradd --uid {user} --create-home " in page
    assert {pod["securityContext"]["runAsUser"] for _, pod in pods()} == {int(user)}


def test_pods_are_those_that_a_restricted_namespace_takes() -> None:
    for name, pod in pods():
        wanted = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert wanted.items() <= pod["securityContext"].items(), name
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }


def test_an_option_that_is_gone_would_be_noticed() -> None:
    with pytest.raises(click.UsageError, match="foreground"):
        check(["moldau", "pipeline", "run", "archive", "--topic", "x", "--to", "y", "--foreground"])


def test_every_file_is_on_the_page() -> None:
    page = (DEPLOY / "README.md").read_text()
    for path in DEPLOY.iterdir():
        assert path.name == "README.md" or f"({path.name})" in page


def test_every_folder_is_on_the_index() -> None:
    index = (DEPLOY.parent / "README.md").read_text()
    for path in DEPLOY.parent.iterdir():
        assert path.name == "README.md" or f"]({path.name}" in index, path.name

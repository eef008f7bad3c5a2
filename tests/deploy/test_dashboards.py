"""The dashboards in deploy/grafana: they are what their table says, and hold together."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deploy.grafana import generate
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

DASHBOARDS = {name: generate.dashboard(name, table) for name, table in generate.load().items()}
each_dashboard = pytest.mark.parametrize("name", DASHBOARDS)


def panels(name: str) -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARDS[name]["panels"] if panel["type"] != "row"]


def test_the_files_are_what_the_table_says() -> None:
    stored = {path: path.read_text() for path in generate.FOLDER.iterdir()}
    assert stored == generate.files(), "run: python deploy/grafana/generate.py"


@each_dashboard
def test_no_panel_covers_another(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARDS[name]["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= generate.COLUMNS, panel["title"]
        cells = set(
            itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"]))
        )
        assert not cells & taken, panel["title"]
        taken |= cells


@each_dashboard
def test_every_panel_says_what_it_shows_and_has_an_id_of_its_own(name: str) -> None:
    ids = [panel["id"] for panel in DASHBOARDS[name]["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels(name):
        assert panel["title"], panel
        assert re.fullmatch(r".{14,}\.", panel["description"]), panel["title"]
        assert [target["refId"] for target in panel["targets"]]
        if len(panel["targets"]) > 1:
            legends = [target["legendFormat"] for target in panel["targets"]]
            assert len(set(legends)) == len(legends), panel["title"]


@each_dashboard
def test_queries_use_no_variable_that_the_dashboard_lacks(name: str) -> None:
    declared = {each["name"] for each in DASHBOARDS[name]["templating"]["list"]}
    text = json.dumps([DASHBOARDS[name]["panels"], DASHBOARDS[name]["templating"]])
    used = {found.strip("{}") for found in re.findall(r"\$(\w+|\{\w+\})", text)}
    assert used - declared - {"__rate_interval", "__all"} == set()
    assert "@" not in "".join(
        target["expr"] for panel in panels(name) for target in panel["targets"]
    )


def test_the_provisioned_folder_and_datasource_fit_the_dashboards() -> None:
    uids = [dashboard["uid"] for dashboard in DASHBOARDS.values()]
    assert len(set(uids)) == len(uids)
    provisioned = Path(generate.HERE / "provisioning" / "dashboards" / "moldau.yaml").read_text()
    assert "path: /var/lib/grafana/dashboards" in provisioned


def unknown(written: object, read: object, path: str = "") -> Iterator[str]:
    """What was not read as it was written."""
    if isinstance(written, dict) and isinstance(read, dict):
        for key, value in written.items():
            yield from unknown(value, read.get(key, "unknown"), f"{path}.{key}")
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for one, other in zip(written, read, strict=True):
            yield from unknown(one, other, f"{path}[]")
    elif written != read:
        yield f"{path}: {written!r} was read as {read!r}"


@each_dashboard
def test_grafana_knows_every_field(name: str) -> None:
    plugins.register_default_plugins()
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(DASHBOARDS[name])))
    assert list(unknown(DASHBOARDS[name], read)) == []


@each_dashboard
def test_processes_of_a_node_have_lines_of_their_own(name: str) -> None:
    """A node is one instance: without its label `process` two lines would look the same, and a
    quantile of both would hide the one that is slow."""
    for panel in panels(name):
        for target in panel["targets"]:
            assert ("{{instance}}" in target["legendFormat"]) == (
                "{{process}}" in target["legendFormat"]
            ), panel["title"]
            for labels in re.findall(r"by \(([^)]*)\)", target["expr"]):
                assert ("instance" in labels) == ("process" in labels), panel["title"]

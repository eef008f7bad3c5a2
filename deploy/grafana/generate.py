"""Writes the dashboards of Grafana from the table in dashboards.yaml.

    python deploy/grafana/generate.py

Edit the table, run this, and commit both. What you change in Grafana itself stays there.
A test compares the files with the table (tests/deploy/test_dashboards.py).
"""

import json
import re
import string
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

HERE: Final = Path(__file__).parent
TABLE: Final = HERE / "dashboards.yaml"
FOLDER: Final = HERE / "dashboards"

SCHEMA_VERSION: Final = 41
"""That of Grafana 12; older ones read it, too."""
COLUMNS: Final = 24
"""The width of Grafana's grid."""
SIZES: Final = {
    "stat": (4, 4),
    "time": (12, 8),
    "stacked": (12, 8),
    "heat": (12, 8),
    "table": (12, 8),
}
"""Width and height of a panel, by its kind; a panel may set another `width`."""
SELECTORS: Final = {
    "@job": 'job=~"$job"',
    "@broker": 'job=~"$job", instance=~"$instance"',
    "@topic": 'job=~"$job", topic=~"$topic"',
    "@group": 'job=~"$job", group=~"$group"',
    "@pipeline": 'job=~"$job", pipeline=~"$pipeline"',
}
"""Shorthands of the table for what the variables of a dashboard select."""
VARIABLES: Final = {
    "job": "label_values(moldau_build_info, job)",
    "instance": 'label_values(moldau_build_info{job=~"$job"}, instance)',
    "topic": 'label_values(moldau_topic_log_bytes{job=~"$job"}, topic)',
    "group": (
        'label_values({__name__=~"moldau_group_lag|moldau_queue_messages", job=~"$job"}, group)'
    ),
    "pipeline": 'label_values(moldau_pipeline_lag_records{job=~"$job"}, pipeline)',
}
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

Table = Mapping[str, Any]


def load() -> dict[str, Table]:
    """Each dashboard of the table, by the name of its file."""
    found: dict[str, Table] = yaml.safe_load(TABLE.read_text())
    return found


def query_of(text: str) -> str:
    """The query with the shorthands written out."""
    return re.sub(r"@[a-z]+", lambda found: SELECTORS[found[0]], " ".join(text.split()))


def dashboard(name: str, table: Table) -> dict[str, Any]:
    return {
        "uid": f"moldau-{name}",
        "title": f"Moldau / {table['title']}",
        "description": table["about"],
        "tags": ["moldau"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [_links()],
        "templating": {"list": list(_variables(table.get("variables", [])))},
        "panels": list(_panels(table["rows"])),
    }


def _links() -> dict[str, Any]:
    """To the other dashboards; they keep the time range and the variables."""
    return {
        "type": "dashboards",
        "title": "Moldau",
        "tags": ["moldau"],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
    }


def _variables(names: list[str]) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    for name in ["job", *names]:
        yield {
            "name": name,
            "label": name.capitalize(),
            "type": "query",
            "datasource": DATASOURCE,
            "query": {"query": VARIABLES[name], "refId": name},
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
            # As the time range changes, so do the topics and groups that there are.
            "refresh": 2,
            "sort": 1,
        }


def _panels(rows: Mapping[str, list[Table]]) -> Iterator[dict[str, Any]]:
    """From left to right, in lines; a row of the table is a heading with its panels below."""
    number, top = 1, 0
    for title, panels in rows.items():
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
            "panels": [],
        }
        number, top, left, line = number + 1, top + 1, 0, 0
        for panel in panels:
            width, height = SIZES[panel["kind"]]
            width = panel.get("width", width)
            if left + width > COLUMNS:
                top, left, line = top + line, 0, 0
            place = {"x": left, "y": top, "w": width, "h": height}
            yield {"id": number, "gridPos": place, **_panel(panel)}
            number, left, line = number + 1, left + width, max(line, height)
        top += line


def _panel(panel: Table) -> dict[str, Any]:
    kind = panel["kind"]
    types = {"time": "timeseries", "stacked": "timeseries", "heat": "heatmap"}
    return {
        "type": types.get(kind, kind),
        "title": panel["title"],
        "description": panel["about"],
        "datasource": DATASOURCE,
        "targets": [
            _target(letter, kind, *query)
            for letter, query in zip(string.ascii_uppercase, _queries(panel), strict=False)
        ],
        **_LOOKS[kind](panel),
    }


def _queries(panel: Table) -> Iterator[tuple[str, str]]:
    """Each query with its legend: one, or several under their legends."""
    query = panel["query"]
    if isinstance(query, str):
        yield query_of(query), panel.get("legend", "")
    else:
        for legend, text in query.items():
            yield query_of(text), legend


def _target(letter: str, kind: str, query: str, legend: str) -> dict[str, Any]:
    now = kind in ("stat", "table")
    forms = {"heat": "heatmap", "table": "table"}
    return {
        "refId": letter,
        "datasource": DATASOURCE,
        "expr": query,
        "legendFormat": legend or "__auto",
        "instant": now,
        "range": not now,
        "format": forms.get(kind, "time_series"),
        "editorMode": "code",
    }


def _time(panel: Table) -> dict[str, Any]:
    is_stacked = panel["kind"] == "stacked"
    drawn = {
        "drawStyle": "line",
        "fillOpacity": 30 if is_stacked else 8,
        "lineWidth": 1,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if is_stacked else "none", "group": "A"},
    }
    return {
        "fieldConfig": {
            "defaults": {"unit": panel["unit"], "custom": drawn}
            | ({} if panel.get("negative") else {"min": 0}),
            "overrides": [],
        },
        "options": {
            "legend": {
                "displayMode": "table",
                "placement": "bottom",
                "showLegend": True,
                "calcs": ["lastNotNull", "max"],
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def _stat(panel: Table) -> dict[str, Any]:
    """`red: 1` colours values from 1 on; `red_below: 3` those below 3."""
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if "red" in panel:
        steps.append({"color": "red", "value": panel["red"]})
    if "red_below" in panel:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": panel["red_below"]}]
    return {
        "fieldConfig": {
            "defaults": {
                "unit": panel["unit"],
                "thresholds": {"mode": "absolute", "steps": steps},
                "color": {"mode": "thresholds"},
            },
            "overrides": [],
        },
        "options": {
            "colorMode": "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "auto",
        },
    }


def _table(panel: Table) -> dict[str, Any]:
    return {
        "fieldConfig": {"defaults": {"unit": panel["unit"]}, "overrides": []},
        "options": {"showHeader": True, "sortBy": [{"displayName": "Value", "desc": True}]},
        "transformations": [
            {"id": "organize", "options": {"excludeByName": {"Time": True, "__name__": True}}}
        ],
    }


def _heat(panel: Table) -> dict[str, Any]:
    return {
        "fieldConfig": {"defaults": {}, "overrides": []},
        "options": {
            "calculate": False,
            "yAxis": {"unit": panel["unit"], "axisPlacement": "left"},
            "rowsFrame": {"layout": "auto"},
            "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
            "cellGap": 1,
            "tooltip": {"mode": "single", "yHistogram": False},
            "legend": {"show": True},
        },
    }


_LOOKS: Final = {"time": _time, "stacked": _time, "stat": _stat, "table": _table, "heat": _heat}


def files() -> dict[Path, str]:
    """What the table says that the files hold."""
    return {
        FOLDER / f"{name}.json": json.dumps(dashboard(name, table), indent=2) + "\n"
        for name, table in load().items()
    }


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    written = files()
    for path, text in written.items():
        path.write_text(text)
        print(f"wrote {path}", file=sys.stderr)
    for path in FOLDER.glob("*.json"):
        if path not in written:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())

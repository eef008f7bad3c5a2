"""Each alert in deploy/prometheus has a test, and a section that says what to do."""

import re
import shlex

import click
import pytest
import yaml
from deploy.grafana import generate
from prometheus_server import ROOT, RULES, RULES_TEST, rules, shortened

from moldau.cli.main import cli

PAGE = "docs/operate/alerts.md"
METRICS = "docs/reference/metrics.md"
COMMAND = re.compile(r"`moldau ([^`]+)`")


def test_every_alert_has_a_test_in_which_it_fires() -> None:
    fired = {
        case["alertname"]
        for test in yaml.safe_load(RULES_TEST.read_text())["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert fired == {rule["alert"] for rule in rules()}


def test_every_alert_leads_to_its_section_and_says_how_bad_it_is() -> None:
    headings = re.findall(r"^## (Moldau\w+)$", (ROOT / PAGE).read_text(), re.MULTILINE)
    assert headings == [rule["alert"] for rule in rules()]
    for rule in rules():
        link = rule["annotations"]["runbook_url"]
        assert link == f"{PAGE}#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}


def test_every_section_says_what_it_means_how_to_look_and_what_to_do() -> None:
    sections = re.split(r"^## (?=Moldau)", (ROOT / PAGE).read_text(), flags=re.MULTILINE)[1:]
    for section in sections:
        labels = re.findall(r"^\*\*(.+?)\*\*", section, re.MULTILINE)
        assert labels == ["Means.", "Look.", "Do."], section.partition("\n")[0]


def test_rules_are_shortened_in_all_their_durations() -> None:
    """What the tests with a live cluster rely on."""
    short = shortened(RULES.read_text(), 60)
    assert not re.search(r"(for: |\[|offset )\d+[smh]\b", short)
    assert "moldau_transactions_oldest_open_seconds) > 5.0" in short
    assert "moldau_certificate_expiry_seconds < 14 * 86400" in short
    assert "[5000ms]" in short


def commands() -> list[str]:
    """Of the page, as an operator would type them."""
    text = (ROOT / PAGE).read_text().replace("\n", " ")
    return [found.replace("HOST:PORT", "localhost:1") for found in COMMAND.findall(text)]


@pytest.mark.parametrize("text", sorted(set(commands())))
def test_every_command_of_the_page_could_be_typed(text: str) -> None:
    arguments = [{"N": "1", "FILE": __file__}.get(word, word) for word in shlex.split(text)]
    command: click.Command = cli
    context = cli.make_context("moldau", ["dev"])
    while isinstance(command, click.Group) and arguments:
        _, found, arguments = command.resolve_command(context, arguments)
        assert found is not None
        command, context = found, click.Context(found)
    if not isinstance(command, click.Group):
        command.make_context(text, arguments)


def test_the_commands_of_the_page_are_found() -> None:
    assert "broker status N" in commands()
    assert len(set(commands())) > 20


def test_alerts_and_dashboards_use_metrics_that_are_documented() -> None:
    texts = [RULES.read_text(), *generate.files().values()]
    used = {name for text in texts for name in re.findall(r"\bmoldau_[a-z_]+\b", text)}
    documented = set(re.findall(r"`(moldau_[a-z_]+)`", (ROOT / METRICS).read_text()))
    histograms = {name.removesuffix("_bucket") for name in used}
    assert len(histograms) > 80
    assert histograms - documented == set()

"""Each alert in deploy/prometheus has a test, and a section that says what to do."""

import re

import yaml
from prometheus_server import ROOT, RULES, RULES_TEST, rules, shortened

PAGE = "docs/operate/alerts.md"


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
    assert not re.search(r"(for: |\[)\d+[smh]\b", short)
    assert "moldau_transactions_oldest_open_seconds) > 5.0" in short
    assert "moldau_certificate_expiry_seconds < 14 * 86400" in short
    assert "[5000ms]" in short

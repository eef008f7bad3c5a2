"""The settings of a topic, and of a broker."""

import pytest
from console_page import console
from playwright.sync_api import Browser

from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system

SETTINGS = "Settings of broker 1"


def test_settings_without_effect_come_last(
    browser: Browser, moldau_session_broker: Broker, moldau_topic: str
) -> None:
    path = f"/topics/{moldau_topic}?tab=configuration"
    with console(browser, moldau_session_broker.http_address, path) as tab:
        tab.see("no effect")
        wait_until(lambda: len(tab.rows("Configuration")) > 10, "settings are shown")
        idle = ["no effect" in row[0] for row in tab.rows("Configuration")]
    assert 0 < sum(idle) < len(idle)
    assert idle == sorted(idle)


def test_a_word_of_the_meaning_finds_a_setting(
    browser: Browser, moldau_session_broker: Broker
) -> None:
    narrow = {"width": 390, "height": 800}
    with console(browser, moldau_session_broker.http_address, "/settings", viewport=narrow) as tab:
        wait_until(lambda: len(tab.rows(SETTINGS)) > 40, "settings are shown")
        assert tab.overflow() == 0
        tab.fill("Search settings", "longest session")
        wait_until(lambda: len(tab.rows(SETTINGS)) == 1, "the others are gone")
        ((name, value, source),) = tab.rows(SETTINGS)
        tab.fill("Search settings", "tombstones")
        wait_until(lambda: "tombstones" in str(tab.rows(SETTINGS)), "another one is found")
        ((changeable, *_),) = tab.rows(SETTINGS)
    assert name.startswith("group.max.session.timeout.ms read-only\n")
    assert "Longest session timeout that a member may request." in name
    assert value.endswith("30 min")
    assert source == "default"
    assert "read-only" not in changeable

"""The settings of a topic."""

import pytest
from console_page import console
from playwright.sync_api import Browser

from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system


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

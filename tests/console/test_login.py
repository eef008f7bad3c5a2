"""The console of brokers that ask who somebody is."""

from collections.abc import Iterator

import pytest
from console_page import Console
from playwright.sync_api import Browser
from secured_broker import PASSWORDS, SECRET, TOPIC, SecuredBroker, secured_broker

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredBroker]:
    with secured_broker() as found:
        yield found


def login(tab: Console, user: str, password: str) -> None:
    tab.page.get_by_role("heading", level=1, name="Log in").wait_for()
    tab.fill("User", user)
    tab.fill("Password", password)
    tab.click("Log in")


def test_shows_and_offers_what_the_user_may(browser: Browser, secured: SecuredBroker) -> None:
    tab = Console(browser, secured.broker.http_address)
    tab.open("/topics")
    login(tab, "reader", "wrong")
    tab.page.get_by_role("alert").get_by_text("wrong user or password").wait_for()
    tab.see("Check what you entered")
    login(tab, "reader", PASSWORDS["reader"])
    tab.go(TOPIC)
    tab.go("Messages")
    tab.see(SECRET)
    assert tab.button("Delete").is_disabled()
    assert tab.button("Add partitions").is_disabled()
    tab.go("Produce")
    tab.see("You have no right to write to this topic")
    tab.open("/")
    tab.page.get_by_role("alert").get_by_text("Not authorized to describe the cluster").wait_for()
    tab.click("Log out")
    tab.page.get_by_role("heading", level=1, name="Log in").wait_for()
    assert tab.axe() == []
    tab.close()


def test_the_administrator_logs_in_by_token(browser: Browser, secured: SecuredBroker) -> None:
    tab = Console(browser, secured.broker.http_address)
    tab.open("/")
    tab.click("Use a token")
    tab.fill("Token", secured.admin_token)
    tab.click("Log in")
    tab.see("The broker responds")
    tab.close()

"""The web console in a real browser, by playwright: what a person sees, clicks and types."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from browser import find_browser
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, sync_playwright

from moldau.testing.waiting import wait_seconds_max, wait_until

HTTP_REFUSED = "Failed to load resource"
"""What Chromium says of every reply that is not 2xx; a page may show such a refusal."""


@contextmanager
def browsing() -> Iterator[Browser]:
    """Skips the test if there is no Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_browser(), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            browser.close()


class Console:
    """One tab. What the page's scripts complain about is a failure."""

    def __init__(self, browser: Browser, address: str, **options: Any) -> None:
        """`address`: HTTP address of a broker."""
        self.address = address
        self.complaints: list[str] = []
        options = {
            "viewport": {"width": 1280, "height": 800},
            "reduced_motion": "reduce",
            **options,
        }
        self._context = browser.new_context(**options)
        self._context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(wait_seconds_max() * 1000)
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and not message.text.startswith(HTTP_REFUSED):
            self.complaints.append(message.text)

    def close(self) -> None:
        self._context.close()
        assert self.complaints == []

    def open(self, path: str = "/") -> None:
        self.page.goto(f"http://{self.address}/ui{path}")
        self.page.get_by_role("heading", level=1).first.wait_for()

    def settle(self) -> None:
        """Wait until its first data is shown."""
        waiting = re.compile(r"Loading …|Asking the brokers")
        wait_until(lambda: not waiting.search(self.page.inner_text("body")), "the page is filled")

    def button(self, name: str, *, within: Locator | None = None) -> Locator:
        return (within or self.page).get_by_role("button", name=name, exact=True)

    def click(self, name: str) -> None:
        self.button(name).first.click()

    def go(self, name: str) -> None:
        """By a link."""
        self.page.get_by_role("link", name=name, exact=True).first.click()

    def fill(self, label: str, value: str) -> None:
        self.page.get_by_label(label, exact=True).first.fill(value)

    def choose(self, label: str, value: str) -> None:
        self.page.get_by_label(label, exact=True).first.select_option(value)

    def see(self, text: str) -> None:
        """Wait until the page shows it."""
        self.page.get_by_text(text).first.wait_for()

    def see_gone(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for(state="hidden")

    @property
    def dialog(self) -> Locator:
        return self.page.locator("dialog[open]")

    def confirm(self, name: str, action: str) -> None:
        """Type the name that a dialog asks for, and go on."""
        self.dialog.get_by_label("Type the name to go on", exact=False).fill(name)
        self.button(action, within=self.dialog).click()
        self.dialog.wait_for(state="hidden")

    def rows(self, table: str) -> list[list[str]]:
        """The text of each cell; without what an empty table says."""
        region = self.page.get_by_role("region", name=table, exact=True)
        found: list[list[str]] = region.locator("tbody tr:not(:has(td[colspan]))").evaluate_all(
            "rows => rows.map(row => [...row.cells].map(cell => cell.innerText.trim()))"
        )
        return found

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        width: int = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        return max(0, width)

    def wide_tables(self) -> list[str]:
        """Those that have to be moved sideways to see all of their columns."""
        found: list[str] = self.page.locator(".scroll").evaluate_all(
            "all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.ariaLabel)"
        )
        return found

    def axe(self) -> list[str]:
        """What keeps somebody from using the page."""
        found = Axe().run(self.page).response["violations"]
        return [
            f"{one['id']}: {one['help']}: " + "; ".join(node["html"][:200] for node in one["nodes"])
            for one in found
        ]


@contextmanager
def console(browser: Browser, address: str, path: str = "/", **options: Any) -> Iterator[Console]:
    tab = Console(browser, address, **options)
    tab.open(path)
    yield tab
    tab.close()

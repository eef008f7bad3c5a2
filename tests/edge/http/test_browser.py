"""A real browser: what a hostile page can read and change of a broker on the same machine."""

import json
from typing import Any

import pytest
from browser import find_browser, serving, visiting
from secured_broker import SETTINGS, SecuredBroker

from moldau.testing.broker import Broker

pytestmark = pytest.mark.system

RECORDS = "/api/v1/topics/t/records"
SECRET = "not for pages"

ATTACKS = """
const JSON_BODY = {headers: {"content-type": "application/json"}};
const record = JSON.stringify({records: [{value: "from a page"}]});
const tried = {};
const attempt = async (name, address, options) => {
    try {
        const reply = await fetch(BROKER + address, options);
        tried[name] = [reply.status, await reply.text()];
    } catch (error) { tried[name] = String(error); }
};
await attempt("read", RECORDS + "?offset=earliest");
await attempt("blind read", RECORDS, {mode: "no-cors"});
await attempt("write", RECORDS, {method: "POST", body: record, ...JSON_BODY});
await attempt("blind write", RECORDS, {method: "POST", mode: "no-cors", body: record});
await attempt("delete", "/api/v1/topics/t", {method: "DELETE"});
await attempt("tail", "/api/v1/topics/t/tail?offset=earliest");
const loaded = (element) => new Promise((resolve) => {
    element.onload = () => resolve(true);
    element.onerror = () => resolve(false);
    document.body.append(element);
});
for (const kind of ["script", "img", "video"]) {
    tried[kind] = await loaded(Object.assign(
        document.createElement(kind), {src: BROKER + RECORDS}));
}
tried.style = await loaded(Object.assign(
    document.createElement("link"), {rel: "stylesheet", href: BROKER + RECORDS}));
const opened = (source) => new Promise((resolve) => {
    source.onopen = () => resolve("opened");
    source.onmessage = (event) => resolve(event.data);
    source.onerror = () => { source.close(); resolve("refused"); };
});
tried.events = await opened(
    new EventSource(BROKER + "/api/v1/topics/t/tail?offset=earliest", {withCredentials: true}));
tried.socket = await opened(
    new WebSocket(BROKER.replace("http", "ws") + "/api/v1/topics/t/tail?offset=earliest"));
tried.beacon = navigator.sendBeacon(BROKER + RECORDS, record);
await attempt("with credentials", RECORDS, {credentials: "include"});
await attempt("with a name", RECORDS, {headers: {authorization: "Bearer made-up"}});
await attempt("login", "/api/v1/login", {method: "POST", mode: "no-cors",
    body: JSON.stringify({user: "reader", password: "guess"})});
const frame = Object.assign(document.createElement("iframe"), {src: BROKER + RECORDS, name: "f"});
await loaded(frame);
tried.frame = frame.contentDocument?.body?.innerText ?? "";
const encodings = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"];
for (const enctype of encodings) {
    const form = Object.assign(document.createElement("form"),
        {method: "POST", action: BROKER + RECORDS, target: "f", enctype});
    const body = {name: record.slice(0, -1), value: "}"};
    form.append(Object.assign(document.createElement("input"), body));
    document.body.append(form);
    const answered = new Promise((resolve) => { frame.onload = resolve; });
    form.submit();
    await answered;
}
await report(tried);
"""

REBOUND = """
await report("loaded");
for (;;) {
    try {
        const address = "/api/v1/topics/t/records";
        const reply = await fetch(address + "?offset=earliest");
        if ([200, 401, 421].includes(reply.status)) {
            const record = JSON.stringify({records: [{value: "from a page"}]});
            const written = await fetch(address, {method: "POST", body: record,
                headers: {"content-type": "application/json"}});
            const deleted = await fetch("/api/v1/topics/t", {method: "DELETE"});
            const followed = await fetch("/api/v1/topics/t/tail?offset=earliest");
            const login = await fetch("/api/v1/login", {method: "POST",
                body: JSON.stringify({user: "reader", password: "guess"}),
                headers: {"content-type": "application/json"}});
            const statuses = [reply, written, deleted, followed, login].map((one) => one.status);
            await report([statuses, await reply.text() + await written.text()]);
            break;
        }
    } catch (error) { }
    await new Promise((resolve) => setTimeout(resolve, 50));
}
"""


def fill(secured: SecuredBroker) -> None:
    """As the administrator: the same where all may do everything."""
    secured.put_topic("t", SECRET)


def values(secured: SecuredBroker) -> list[str]:
    found = secured.read(f"{RECORDS}?offset=earliest")
    return [record["value"] for record in found["records"]]


def attack(browser: str, broker: Broker, port: int = 0) -> Any:
    names = f"const BROKER = 'http://{broker.http_address}', RECORDS = '{RECORDS}';"
    with serving(names + ATTACKS, port) as page, visiting(browser, page.address):
        return page.next_report()


@pytest.mark.parametrize("settings", [{}, SETTINGS], ids=["without users", "with users"])
def test_a_page_of_another_origin_can_neither_read_nor_write(settings):
    browser = find_browser()
    with Broker(settings=settings) as broker:
        secured = SecuredBroker(broker)
        fill(secured)
        tried = attack(browser, broker)
        # Blind requests are sent, and their responses hidden; that they did nothing is seen below.
        for name in (
            *("read", "blind read", "write", "blind write", "delete", "tail"),
            *("with credentials", "with a name", "login"),
        ):
            assert tried[name].startswith("TypeError"), (name, tried)
        for name in ("script", "img", "video", "style"):
            assert tried[name] is False, name
        assert (tried["events"], tried["socket"]) == ("refused", "refused")
        assert tried["frame"] == ""
        assert SECRET not in json.dumps(tried)
        assert values(secured) == [SECRET]


def test_a_page_whose_origin_is_allowed_can():
    """The same attacks succeed: the browser does send them, and the test above can fail."""
    browser = find_browser()
    with serving() as reserved:
        port = int(reserved.address.rpartition(":")[2])
    with Broker(settings={"HTTP__CORS_ORIGINS": f"http://127.0.0.1:{port}"}) as broker:
        secured = SecuredBroker(broker)
        fill(secured)
        tried = attack(browser, broker, port)
        assert tried["read"][0] == 200
        assert SECRET in tried["read"][1]
        assert tried["write"][0] == 200
        assert tried["delete"][0] == 200


@pytest.mark.parametrize("settings", [{}, SETTINGS], ids=["without users", "with users"])
def test_a_page_whose_name_is_rebound_to_this_machine_reads_and_writes_nothing(settings):
    """Its server gives way to the broker at the same address: the browser sees one origin."""
    browser = find_browser()
    broker = Broker(settings=settings)
    with (
        serving() as reports,
        serving(f"globalThis.REPORTS = '{reports.address}';{REBOUND}", broker.http_port) as page,
    ):
        url = f"http://evil.example:{broker.http_port}/"
        with visiting(browser, url, names={"evil.example": "127.0.0.1"}):
            assert reports.next_report() == "loaded"
            page.close()
            with broker:
                secured = SecuredBroker(broker)
                fill(secured)
                statuses, text = reports.next_report()
                assert (statuses, SECRET in text) == ([421] * 5, False)
                assert values(secured) == [SECRET]

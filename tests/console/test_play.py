"""The page Play: somebody breaks a cluster of `moldau cluster start`, and mends it."""

from collections.abc import Iterator

import pytest
from console_page import Console, console
from playwright.sync_api import Browser
from supervised_cluster import SupervisedCluster, supervised_cluster

from moldau.client.wire.client import KafkaClient
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupervisedCluster]:
    with supervised_cluster(tmp_path_factory.mktemp("play") / "cluster") as started:
        with KafkaClient(started.kafka(1)) as client:
            client.create_topic("orders", partitions=6, replication_factor=3)
        yield started


def act(tab: Console, opener: str, action: str) -> str:
    """What the dialog says before it is done."""
    tab.click(opener)
    tab.dialog.wait_for()
    said: str = tab.dialog.inner_text()
    tab.button(action, within=tab.dialog).click()
    tab.dialog.wait_for(state="hidden")
    return said


def until_state(tab: Console, broker: int, state: str) -> None:
    card = tab.page.get_by_role("article", name=f"Broker {broker}")
    card.get_by_text(state, exact=True).wait_for()


def test_somebody_breaks_a_cluster_and_makes_it_well_again(
    browser: Browser, cluster: SupervisedCluster
) -> None:
    cluster.until_well()
    with console(browser, cluster.http(1)) as tab:
        tab.go("Play")
        tab.see("nothing.")
        said = act(tab, "Kill broker 3", "Kill")
        assert "kill -9" in said
        assert "This page comes from this broker" not in said
        until_state(tab, 3, "killed")
        tab.see("Broker 3 is not alive")
        wait_until(
            lambda: any("new leader" in text for text in events(tab)), "the events name new leaders"
        )
        act(tab, "Cut link 1 – 2", "Cut")
        tab.see("the link 1 – 2 is cut")
        act(tab, "Slow disk of broker 1", "Slow")
        tab.see("each flush of broker 1 takes 200 ms longer")
        assert tab.axe() == []
        act(tab, "Make all well again", "Make all well again")
        until_state(tab, 3, "ready")
        tab.see("nothing.")
        tab.see("All 3 brokers respond")


def events(tab: Console) -> list[str]:
    return tab.page.locator(".events li").all_inner_texts()


def test_who_pauses_the_broker_of_the_page_learns_where_to_go_on(
    browser: Browser, cluster: SupervisedCluster
) -> None:
    cluster.until_well()
    with console(browser, cluster.http(1), "/play") as tab:
        tab.click("Pause broker 1")
        tab.dialog.wait_for()
        assert "This page comes from this broker" in tab.dialog.inner_text()
        other = tab.dialog.get_by_role("link", name="broker 2", exact=False)
        assert other.get_attribute("href") == f"http://{cluster.http(2)}/ui/play"
        for wrong in ("0", "121"):
            tab.dialog.get_by_label("Seconds").fill(wrong)
            assert tab.button("Pause", within=tab.dialog).is_disabled()
        tab.dialog.get_by_label("Seconds").fill("4")
        tab.button("Copy as …", within=tab.dialog).click()
        tab.see("moldau cluster pause 1 --for 4s")
        tab.page.keyboard.press("Escape")
        tab.button("Pause", within=tab.dialog).click()
        wait_until(lambda: cluster.states(2)[1] == "paused", "it is paused")
        tab.see_gone("Working …")
        # It goes on by itself, and so does the page.
        until_state(tab, 1, "ready")
        tab.see("All 3 brokers respond")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_everybody_can_use_the_page(
    browser: Browser, cluster: SupervisedCluster, scheme: str, width: int
) -> None:
    size = {"width": width, "height": 800}
    with console(browser, cluster.http(2), "/play", color_scheme=scheme, viewport=size) as tab:
        tab.see("nothing.")
        assert tab.overflow() == 0
        assert tab.axe() == []
        tab.button("Kill broker 1").focus()
        tab.page.keyboard.press("Enter")
        tab.dialog.wait_for()
        assert tab.axe() == []
        tab.page.keyboard.press("Escape")
        tab.dialog.wait_for(state="hidden")
        assert cluster.states(2) == {1: "ready", 2: "ready", 3: "ready"}


def test_nobody_plays_with_a_cluster_for_real_use(browser: Browser) -> None:
    with (
        Cluster(brokers=1, settings={"GROUP__OFFSETS_PARTITIONS": "3"}) as real,
        console(browser, real.brokers[1].http_address) as tab,
    ):
        tab.page.get_by_role("link", name="Raft", exact=True).wait_for()
        assert tab.page.get_by_role("link", name="Play", exact=True).count() == 0
        tab.open("/play")
        tab.see("it was started for real use")
        assert tab.page.get_by_role("button", name="Kill", exact=False).count() == 0

"""Whom a broker talks to, and when it has lost its cluster."""

from types import SimpleNamespace
from typing import Any

import pytest

from moldau.metadata.image import EMPTY_IMAGE, Broker, Image
from moldau.model.ids import BrokerId
from moldau.model.topology import Endpoint, JoinRequest
from moldau.server.peer_links import PeerLinks

ME, LEADER = BrokerId(1), BrokerId(2)


@pytest.mark.parametrize(
    ("leader", "is_connected", "has_recent_leader", "is_cut_off"),
    [
        (ME, False, True, False),
        (LEADER, True, True, False),
        (LEADER, False, True, True),
        # It is there, and leads no more: another does, whom this broker does not know yet.
        (LEADER, True, False, True),
        (BrokerId(-1), True, False, True),
    ],
)
def test_a_broker_without_contact_to_the_leader_is_cut_off(
    leader: BrokerId, is_connected: bool, has_recent_leader: bool, is_cut_off: bool
) -> None:
    entry: Any = SimpleNamespace(broker_id=ME, image=EMPTY_IMAGE)
    link = SimpleNamespace(is_connected=is_connected)
    transport: Any = SimpleNamespace(links={LEADER: link})
    metadata: Any = SimpleNamespace(
        leader=leader, has_recent_leader=has_recent_leader, forecast=lambda: EMPTY_IMAGE
    )
    driver: Any = None
    peers = PeerLinks(entry)
    peers.attach(transport, driver, metadata)
    assert peers.is_cut_off() is is_cut_off


OLD, NEW = Endpoint("h", 2), Endpoint("h", 9)


def image_of(epoch: int, raft: Endpoint) -> Image:
    other = Broker(id=LEADER, host="h", port=1, incarnation="d", epoch=epoch, raft=raft)
    return Image(cluster_id="c", version=epoch, brokers={LEADER: other})


def returning(incarnation: str = "d", broker_id: int | None = LEADER) -> JoinRequest:
    return JoinRequest(
        incarnation=incarnation,
        process="p",
        kafka=Endpoint("h", 1),
        raft=NEW,
        http=Endpoint("h", 3),
        broker_id=broker_id,
    )


def test_a_broker_that_returns_is_reached_at_its_new_address_before_it_is_registered() -> None:
    dialled: list[tuple[str, int]] = []
    driver: Any = SimpleNamespace(add_peer=lambda _, address: dialled.append(address))
    transport: Any = SimpleNamespace(links={}, recheck=lambda: None)
    metadata: Any = SimpleNamespace(image=image_of(4, OLD), forecast=lambda: EMPTY_IMAGE)
    entry: Any = SimpleNamespace(broker_id=ME, image=EMPTY_IMAGE)
    peers = PeerLinks(entry)
    peers.attach(transport, driver, metadata)
    # Another directory is another broker, and one without an id is new.
    peers.on_return(returning("other"))
    peers.on_return(returning(broker_id=None))
    peers.follow()
    assert dialled == [OLD]
    peers.on_return(returning())
    peers.follow()
    assert dialled[1:] == [NEW, NEW]
    # What is registered later counts.
    metadata.image = image_of(5, OLD)
    peers.follow()
    metadata.image = image_of(4, OLD)
    peers.follow()
    assert dialled[3:] == [OLD, OLD]

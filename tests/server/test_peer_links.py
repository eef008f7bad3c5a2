"""Whom a broker talks to, and when it has lost its cluster."""

from types import SimpleNamespace
from typing import Any

import pytest

from moldau.metadata.image import EMPTY_IMAGE
from moldau.model.ids import BrokerId
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

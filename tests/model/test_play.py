"""Faults on purpose as data, and in words."""

import pytest

from moldau.model.play import NO_FAULTS, CutLink, PlayAction, PlayFaults, PlayKind, SlowDisk

FAULTS = PlayFaults(links=(CutLink(1, 2), CutLink(2, 3)), disks=(SlowDisk(broker=2, delay_ms=50),))


@pytest.mark.parametrize(("broker", "peers"), [(1, {2}), (2, {1, 3}), (3, {2}), (4, set())])
def test_a_link_is_cut_for_both_of_its_ends(broker: int, peers: set[int]) -> None:
    assert FAULTS.cut_from(broker) == peers
    assert NO_FAULTS.cut_from(broker) == set()


def test_only_the_disk_of_one_broker_is_slow() -> None:
    assert [FAULTS.delay_ms(broker) for broker in (1, 2, 3)] == [0, 50, 0]


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (PlayAction(kind=PlayKind.KILL, by="", broker=2), "kill broker 2"),
        (PlayAction(kind=PlayKind.PAUSE, by="", broker=2, seconds=3), "pause broker 2 for 3 s"),
        (PlayAction(kind=PlayKind.RESTART, by="", broker=1), "restart broker 1"),
        (
            PlayAction(kind=PlayKind.LINK, by="", broker=1, other=2),
            "cut the link between brokers 1 and 2",
        ),
        (
            PlayAction(kind=PlayKind.LINK, by="", broker=1, other=2, is_cut=False),
            "mend the link between brokers 1 and 2",
        ),
        (
            PlayAction(kind=PlayKind.DISK, by="", broker=1, delay_ms=9),
            "delay each flush of broker 1 by 9 ms",
        ),
    ],
)
def test_the_audit_log_says_what_was_done_to_whom(action: PlayAction, words: str) -> None:
    assert str(action) == words

"""Changes of members that could split a group are refused."""

import itertools

import msgspec
import pytest

from moldau.model.errors import CorruptionError
from moldau.model.ids import BrokerId
from moldau.raft.errors import RaftRejection
from moldau.raft.membership import Members, check_change, decode_members, encode_members


def members(*voters: int, learners: tuple[int, ...] = ()) -> Members:
    return Members(tuple(map(BrokerId, voters)), tuple(map(BrokerId, learners)))


def test_members_survive_the_journal() -> None:
    some = members(1, 5, 300, learners=(7,))
    assert decode_members(encode_members(some)) == some


def test_an_entry_from_before_logs_had_ids_is_read() -> None:
    assert decode_members(msgspec.msgpack.encode(((1, 2), (3,)))) == Members(
        (BrokerId(1), BrokerId(2)), (BrokerId(3),)
    )


@pytest.mark.parametrize(
    "payload", [b"", b"\x01", b"\x92\x91\x01", encode_members(members(1))[:-1]]
)
def test_a_damaged_entry_is_corruption(payload: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_members(payload)


@pytest.mark.parametrize(("voters", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority_is_more_than_half(voters: int, quorum: int) -> None:
    assert members(*range(voters)).quorum == quorum


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (members(1, 2, 3), members(1, 2, 3, learners=(4, 5))),
        (members(1, 2, 3, learners=(4,)), members(1, 2, 3, 4)),
        (members(1, 2, 3), members(1, 2)),
        (members(1, 2, 3), members(1, 2, learners=(3,))),
    ],
)
def test_safe_changes_pass(old: Members, new: Members) -> None:
    check_change(old, new)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (members(1, 2, 3), members(1, 2, 3, 4), "learner before"),
        (members(1, 2, 3, learners=(4,)), members(1, 2, 4), "one at a time"),
        (members(1, 2, 3), members(1), "one at a time"),
        (members(1), members(), "at least one voter"),
        (members(1, 2), members(1, 2, learners=(2,)), "both voter and learner"),
        (members(1, 2), members(2, 1), "sorted"),
        (members(1, 2), members(1, 1, 2), "unique"),
    ],
)
def test_unsafe_changes_are_refused(old: Members, new: Members, reason: str) -> None:
    with pytest.raises(RaftRejection, match=reason):
        check_change(old, new)


def test_a_replacement_goes_in_three_safe_steps() -> None:
    steps = [members(1, 2, 3)]
    steps.append(steps[-1].with_learner(BrokerId(4)))
    steps.append(steps[-1].with_voter(BrokerId(4)))
    steps.append(steps[-1].without(BrokerId(2)))
    for old, new in itertools.pairwise(steps):
        check_change(old, new)
    assert steps[-1] == members(1, 3, 4)

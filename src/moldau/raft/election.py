"""Elections: pre-vote, votes, and the election timeout.

A candidate first asks for pre-votes, which raise no epoch: a broker that was partitioned away
returns without disturbing the group. A follower that had contact with its leader within the
shortest election timeout votes for no other broker, unless the leader hands over or has exited.
"""

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from moldau.model.ids import BrokerId, Epoch
from moldau.raft.events import Role
from moldau.raft.membership import NO_BROKER
from moldau.raft.messages import VoteRequest, VoteResponse
from moldau.raft.progress import FOREVER
from moldau.raft.state import RaftState

CAMPAIGN_SPREAD_MAX = 4
"""How many times wider the range of election timeouts gets after several failed campaigns."""


class ElectionCause(Enum):
    """Why a broker stands for election."""

    TIMEOUT = "timeout"
    """It heard nothing from its leader."""
    LEADER_EXITED = "leader_exited"
    """The process of the leader has exited."""
    TRANSFER = "transfer"
    """The leader hands over."""
    REQUESTED = "requested"
    """The preferred leader of a new group, or the only voter."""


class Chance(Protocol):
    """The part of random.Random that elections use. Injected: the same seed, the same election."""

    def randrange(self, start: int, stop: int, /) -> int: ...


class Election:
    """Campaigns of this broker, and its votes for others."""

    __slots__ = (
        "_campaigns",
        "_chance",
        "_granted",
        "_has_leader_exited",
        "_is_transfer",
        "_on_won",
        "_state",
        "cause",
        "timeout_ms",
    )

    def __init__(self, state: RaftState, chance: Chance, on_won: Callable[[], None]) -> None:
        self._state = state
        self._chance = chance
        self._on_won = on_won
        self._granted: dict[BrokerId, None] = {}
        self._is_transfer = False
        self._campaigns = 0
        """Since the last leader: each failed one spreads the timeouts further, so that brokers
        stop competing."""
        self.cause = ElectionCause.TIMEOUT
        """Of the current campaign, or of the last one."""
        self._has_leader_exited = False
        self.timeout_ms = self.draw_timeout()

    def draw_timeout(self) -> int:
        config = self._state.config
        shortest, longest = config.election_ms_min, config.election_ms_max
        spread = min(max(self._campaigns - 1, 1), CAMPAIGN_SPREAD_MAX)
        return self._chance.randrange(shortest, shortest + spread * (longest - shortest))

    @property
    def deadline(self) -> int:
        """When this broker stands for election, unless its leader contacts it before."""
        return self._state.last_contact_at + self.timeout_ms if self.is_electable() else FOREVER

    def reset(self, *, is_leader_known: bool) -> None:
        """This broker follows: give up any campaign and start a new timeout."""
        self._is_transfer = self._has_leader_exited = False
        if is_leader_known:
            self._campaigns = 0
        self.timeout_ms = self.draw_timeout()

    # ---- standing for election

    def is_electable(self) -> bool:
        """Voters stand for election. So does a broker whose removal is not committed as far as it
        knows: it may be the only one with that entry, and then no other could be elected."""
        state = self._state
        return state.is_voter or (
            state.members_index >= state.commit
            and state.previous_members.is_voter(state.me, state.log_id)
        )

    def on_tick(self) -> None:
        state = self._state
        if state.now < state.last_contact_at + self.timeout_ms:
            return
        if self.is_electable():
            exited = self._has_leader_exited
            self.cause = ElectionCause.LEADER_EXITED if exited else ElectionCause.TIMEOUT
            self._campaign(is_pre=True)
        else:
            state.last_contact_at = state.now

    def note_leader_exited(self) -> None:
        self._has_leader_exited = True

    def on_campaign_requested(self) -> None:
        if not self._state.is_leader and self.is_electable():
            self.cause = ElectionCause.REQUESTED
            self._campaign(is_pre=True)

    def on_timeout_now(self) -> None:
        if not self._state.is_leader and self.is_electable():
            self.cause = ElectionCause.TRANSFER
            self._campaign(is_pre=False, is_transfer=True)

    def _campaign(self, *, is_pre: bool, is_transfer: bool = False) -> None:
        state = self._state
        state.last_contact_at = state.now
        self._campaigns += is_pre
        self.timeout_ms = self.draw_timeout()
        self._granted = {}
        state.leader = NO_BROKER
        self._is_transfer = is_transfer
        if is_pre:
            state.role = Role.PRE_CANDIDATE
            state.announce_role()
            self._request_votes(Epoch(state.epoch + 1), is_pre=True)
            self._count_vote(state.me, is_pre=True)
            return
        state.role = Role.CANDIDATE
        state.enter_epoch(Epoch(state.epoch + 1), state.me)
        state.announce_role()
        self._request_votes(state.epoch, is_pre=False)

    def _request_votes(self, epoch: Epoch, *, is_pre: bool) -> None:
        state = self._state
        for voter in state.members.voters:
            if voter != state.me:
                state.send(
                    voter,
                    VoteRequest(
                        epoch=epoch,
                        end=state.end,
                        last_epoch=state.last_epoch,
                        is_pre=is_pre,
                        is_transfer=self._is_transfer,
                        voter_log=state.members.log_of(voter),
                    ),
                )

    def _count_vote(self, voter: BrokerId, *, is_pre: bool) -> None:
        members = self._state.members
        if voter not in members.voters:
            return
        self._granted[voter] = None
        if len(self._granted) < members.quorum:
            return
        if is_pre:
            self._campaign(is_pre=False)
        else:
            self._campaigns = 0
            self._on_won()

    def on_vote_persisted(self) -> None:
        """The candidate's vote for itself counts only now."""
        if self._state.role is Role.CANDIDATE and self._state.is_vote_durable:
            self._count_vote(self._state.me, is_pre=False)

    def on_vote_response(self, sender: BrokerId, message: VoteResponse) -> None:
        wanted = Role.PRE_CANDIDATE if message.is_pre else Role.CANDIDATE
        if not message.is_granted or self._state.role is not wanted:
            return
        if message.epoch == self._state.epoch + message.is_pre:
            self._count_vote(sender, is_pre=message.is_pre)

    # ---- voting

    def has_leader_contact(self) -> bool:
        """Whether the current leader is alive, as far as this broker knows."""
        state = self._state
        if state.is_leader:
            return True
        elapsed_ms = state.now - state.last_contact_at
        return state.leader != NO_BROKER and elapsed_ms < state.config.election_ms_min

    def _is_up_to_date(self, message: VoteRequest) -> bool:
        """Whether the candidate's log contains at least what this one does."""
        return (message.last_epoch, message.end) >= (self._state.last_epoch, self._state.end)

    def _is_expected_log(self, message: VoteRequest) -> bool:
        """Whether the candidate counts on this log, and not on one that this broker lost."""
        return message.voter_log == self._state.log_id

    def on_vote_request(self, sender: BrokerId, message: VoteRequest) -> None:
        if message.is_pre:
            self._on_pre_vote(sender, message)
        else:
            self._on_vote(sender, message)

    def _on_pre_vote(self, sender: BrokerId, message: VoteRequest) -> None:
        state = self._state
        is_granted = (
            message.epoch > state.epoch
            and self._is_expected_log(message)
            and self._is_up_to_date(message)
        )
        epoch = message.epoch if is_granted else state.epoch
        state.send(sender, VoteResponse(epoch, is_granted, True))

    def _on_vote(self, sender: BrokerId, message: VoteRequest) -> None:
        state = self._state
        is_granted = (
            state.leader == NO_BROKER
            and state.voted_for in (NO_BROKER, sender)
            and self._is_expected_log(message)
            and self._is_up_to_date(message)
        )
        if is_granted:
            state.last_contact_at = state.now
            if state.voted_for == NO_BROKER:
                state.voted_for = sender
                state.persist_vote()
        state.send(sender, VoteResponse(state.epoch, is_granted, False))

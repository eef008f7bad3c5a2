"""What the writes of consumer-protocol groups share: subscriptions, assignors and timeouts."""

from collections.abc import Callable, Mapping

from moldau.groups.assignors.interface import Assignor
from moldau.groups.consumer.reconcile import must_rejoin
from moldau.groups.consumer.records import ConsumerMember, MemberState
from moldau.groups.consumer.subscriptions import Subscriptions
from moldau.groups.events import ConsumerHeartbeat
from moldau.groups.group import Group
from moldau.groups.rebalance import Rebalance, session_key
from moldau.groups.results import ConsumerHeartbeatResult
from moldau.groups.runtime import Runtime
from moldau.groups.timers import TimerKey, TimerKind
from moldau.model.errors import RefusedError


class ConsumerContext:
    """Dependencies and timeouts of consumer-protocol groups."""

    def __init__(
        self,
        runtime: Runtime,
        subscriptions: Subscriptions,
        assignors: Mapping[str, Assignor],
        new_member_id: Callable[[str], str],
        rebalance: Rebalance,
    ) -> None:
        self.runtime = runtime
        self.rebalance = rebalance
        self.subscriptions = subscriptions
        self.assignors = assignors
        self.new_member_id = new_member_id

    def reject(self, event: ConsumerHeartbeat, error: RefusedError) -> None:
        self.runtime.reply(
            event.request_id, ConsumerHeartbeatResult(error=error.code, message=str(error) or None)
        )

    def assignor(self, members: Mapping[str, ConsumerMember]) -> Assignor:
        """The assignor that most members request; by default the broker's first."""
        votes = dict.fromkeys(self.assignors, 0)
        for member in members.values():
            if member.assignor in votes:
                votes[member.assignor] += 1
        return self.assignors[max(votes, key=lambda name: votes[name])]

    # ---- timeouts

    def interval_ms(self, member: ConsumerMember) -> int:
        """The heartbeat interval of a member: at most a third of its session timeout."""
        usual = self.runtime.config.consumer_heartbeat_interval_ms
        session_ms = member.session_timeout_ms
        return usual if session_ms is None else max(1, min(usual, session_ms // 3))

    def renew_session(
        self, now: float, group: Group, member_id: str, member: ConsumerMember | None = None
    ) -> None:
        """`member`: its new state, if that is not stored yet."""
        if member is None and group.consumer is not None:
            member = group.consumer.members.get(member_id)
        timeout_ms = self.runtime.config.consumer_session_timeout_ms
        if member is not None and member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        elif member is not None and member.session_timeout_ms is not None:
            timeout_ms = member.session_timeout_ms
        self.runtime.timers.set(session_key(group, member_id), now + timeout_ms / 1000)

    def start_revoke_timeout(self, now: float, group: Group, member_id: str) -> None:
        """A member that must revoke partitions has its rebalance timeout for that."""
        state = group.consumer
        if state is None or state.current(member_id).state is not MemberState.UNREVOKED:
            self.runtime.timers.cancel(revoke_key(group, member_id))
            return
        member = state.members.get(member_id)
        if member is not None:
            timeout_s = max(member.rebalance_timeout_ms, 0) / 1000
            self.runtime.timers.set(revoke_key(group, member_id), now + timeout_s)

    def request_rejoin(self, now: float, group: Group, member_id: str) -> bool:
        """Whether a classic member must rejoin; it has its rebalance timeout for that."""
        state, key = group.consumer, revoke_key(group, member_id)
        if state is None or not must_rejoin(state, member_id):
            self.runtime.timers.cancel(key)
            return False
        if self.runtime.timers.deadline(key) is None:
            timeout_s = state.members[member_id].rebalance_timeout_ms / 1000
            self.runtime.timers.set(key, now + timeout_s)
        return True

    def forget(self, group: Group, member_id: str) -> None:
        self.runtime.timers.cancel(session_key(group, member_id))
        self.runtime.timers.cancel(revoke_key(group, member_id))

    def upgraded(self, now: float, group: Group, member_ids: list[str]) -> None:
        """The members of a classic group are now stored as consumer-protocol members."""
        still_here = set(group.members)
        self.rebalance.hand_over(group)
        for member_id in member_ids:
            self.renew_session(now, group, member_id)
            if member_id not in still_here:
                # It left while the upgrade was written.
                self.runtime.timers.set(session_key(group, member_id), now)


def revoke_key(group: Group, member_id: str) -> TimerKey:
    return TimerKey(TimerKind.REVOKE, group.group_id, member_id)

"""What is known of one group from outside: who was given what, and what was committed.

It judges only what is certain. An answer that was lost leaves a ghost: a commit that may be stored
at any later time, as long as its sender's generation stands. A claim of a partition by one member
ends the generation in which another had it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sim.clients.wire import Place
from sim.scene import Scene


@dataclass(eq=False)
class Claim:
    """A partition that a member was given, until it lets go of it or hears that it lost it."""

    place: Place
    owner: str
    member_id: str
    epoch: int
    sent_at: int
    """When it asked, and when it got the response."""
    received_at: int
    number: int
    position: int | None = None
    committed: int = 0
    ghost: int | None = None
    """The least of its commits of which nobody knows whether they are stored."""
    is_open: bool = True


class GroupBook:
    """Shared by all members of a group, and by who looks at it."""

    def __init__(self, scene: Scene, group: str, places: Sequence[Place]) -> None:
        self.scene = scene
        self.group = group
        self.places = list(places)
        self.is_drained = False
        """All is read and committed: members leave."""
        self._claims: dict[Place, list[Claim]] = {place: [] for place in places}
        self._ghosts: dict[Place, list[tuple[int, Claim, str, int, int]]] = {
            place: [] for place in places
        }
        """Offset, claim, member id, epoch, when it was sent."""
        self._floors: dict[Place, int] = dict.fromkeys(places, 0)
        self._attempted: dict[Place, int] = dict.fromkeys(places, 0)
        self._acked: dict[Place, int] = dict.fromkeys(places, 0)
        self._deletes = 0
        self._deleted_at = -1

    @property
    def topics(self) -> list[str]:
        return list(dict.fromkeys(topic for topic, _ in self.places))

    def now(self) -> int:
        return self.scene.history.now()

    # ---- who has what

    def claim(self, owner: str, member_id: str, epoch: int, place: Place, sent_at: int) -> Claim:
        claims = self._claims[place]
        claim = Claim(place, owner, member_id, epoch, sent_at, self.now(), len(claims))
        claims.append(claim)
        # The one that had it when the ghost was sent has it no longer, or in another epoch.
        self._ghosts[place] = [
            ghost
            for ghost in self._ghosts[place]
            if ghost[4] >= sent_at or ghost[2:4] == (member_id, epoch)
        ]
        self.scene.count("claims")
        return claim

    def release(self, claim: Claim) -> None:
        claim.is_open = False

    def is_shared(self) -> bool:
        """Whether each partition has one member, as far as they know."""
        return all(
            sum(claim.is_open for claim in self._claims[place]) == 1 for place in self.places
        )

    def successor(self, claim: Claim, before: int) -> Claim | None:
        """The member that got the partition after this claim, and learned it before."""
        for later in self._claims[claim.place]:
            if (
                later.member_id != claim.member_id
                and later.sent_at > claim.received_at
                and later.received_at < before
            ):
                return later
        return None

    def seen_alive(self, claim: Claim, sent_at: int, how: str) -> None:
        """The coordinator took its owner for a member that has the partition."""
        later = self.successor(claim, sent_at)
        if later is not None:
            self.scene.violation(
                f"{self.group}: {how} of {claim.owner} ({claim.member_id}, {claim.epoch}) for "
                f"{claim.place} at {sent_at}, which {later.owner} ({later.member_id}, "
                f"{later.epoch}) has since {later.received_at}"
            )

    # ---- what is committed

    def attempt(self, claim: Claim, offset: int) -> None:
        place = claim.place
        self._attempted[place] = max(self._attempted[place], offset)

    def acked(self, claim: Claim, offset: int, sent_at: int) -> None:
        place = claim.place
        self.seen_alive(claim, sent_at, f"a commit of {offset}")
        claim.committed = max(claim.committed, offset)
        self.scene.count("commits")
        self.scene.add("commit", g=self.group, tp=f"{place[0]}/{place[1]}", o=offset)
        self._acked[place] = max(self._acked[place], offset)
        if self._deletes or sent_at <= self._deleted_at:
            return
        low = [ghost[0] for ghost in self._ghosts[place]]
        if claim.ghost is not None:
            low.append(claim.ghost)
        self._floors[place] = max(self._floors[place], min([offset, *low]))

    def lost(self, claim: Claim, offset: int, sent_at: int, member: tuple[str, int]) -> None:
        """A commit of which nobody knows whether it is stored, now or later."""
        place = claim.place
        self.scene.count("commits in doubt")
        claim.ghost = offset if claim.ghost is None else min(claim.ghost, offset)
        self._ghosts[place].append((offset, claim, *member, sent_at))
        self._floors[place] = min(self._floors[place], offset)

    def floor(self, place: Place) -> int:
        """What is committed is never less, from now on."""
        return self._floors[place]

    def judge(self, who: str, place: Place, reported: int, floor: int) -> None:
        """An answer to OffsetFetch; `floor` was asked for when the request was sent."""
        low, high = min(floor, self._floors[place]), self._attempted[place]
        if max(reported, 0) < low or reported < -1 or reported > high:
            self.scene.violation(
                f"{self.group}: {who} got {reported} as committed of {place},  "
                f"at least {low} was acked, at most {high} was asked for"
            )

    def last(self, place: Place, reported: int) -> None:
        """What is committed in the end."""
        if reported >= self._acked[place] or not self._ghosts[place]:
            self.scene.add("group", g=self.group, tp=f"{place[0]}/{place[1]}", o=reported)

    # ---- what is deleted

    def deleting(self) -> None:
        """Somebody asks for it; until it is answered, anything may be gone."""
        self._deletes += 1
        self._floors = dict.fromkeys(self.places, 0)

    def deleted(self) -> None:
        """It was answered."""
        self._deletes -= 1
        self._deleted_at = self.now()

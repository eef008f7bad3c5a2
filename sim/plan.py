"""What a simulated world is like: how many of what, and which faults how often, by the seed.

Each seed draws which kinds of faults and of clients there are at all: a world with all of them at
once hides what two of them alone bring about.
"""

import random
from typing import ClassVar, Final

from msgspec import Struct
from msgspec.structs import replace

KINDS: Final = (
    "kill",
    "power",
    "power-in-write",
    "stop",
    "pause",
    "isolate",
    "cut",
    "break",
    "slow-network",
    "stall",
    "flush-error",
    "full-disk",
    "blackout",
    "skew",
    "forsake",
)
_DARK: Final = frozenset({"power", "power-in-write", "blackout", "flush-error"})
KNOBS: Final = ("epochs", "sends", "keeps", "files", "buckets", "forgets", "few", "tight")


class GroupPlan(Struct, frozen=True):
    """A group of consumers."""

    kinds: list[str]
    """The protocols that its members speak: "classic", "consumer", or both."""
    members: int
    is_cooperative: bool
    more_topics: int = 0
    """That not all of its members want to read."""

    @classmethod
    def draw(cls, rng: random.Random) -> "GroupPlan":
        kinds = rng.choice((["classic"], ["consumer"], ["classic", "consumer"]))
        return cls(kinds, rng.randint(1, 4), rng.random() < 0.5)


class Plan(Struct, frozen=True, kw_only=True):
    """All that is decided before a world begins."""

    seed: int
    seconds: float = 60.0
    """Of virtual time, with faults."""
    brokers: int = 3
    partitions: int = 2
    replication: int = 3
    pause_seconds: float = 0.2
    """Between two writes of a producer."""
    segment_bytes: int = 64 * 1024
    retention_bytes: int = 0
    """Of each partition of the plain topic; 0: everything is kept."""
    flush_seconds: float = 0.000_4

    faults: dict[str, float] = {}
    """Mean seconds between two faults, by kind."""
    left_out: frozenset[int] = frozenset()
    """Faults that do not happen, by number: the shrinker leaves out what does not matter."""
    down_seconds: float = 3.0

    producers: int = 2
    keyed: int = 0
    """Producers of a compacted topic."""
    groups: list[GroupPlan] = []
    transactional: int = 0
    """Producers of transactions."""
    transformers: int = 0
    """Of one topic into another, in transactions."""
    list_append: int = 0
    """Who append to lists and read them, in transactions."""
    queue_workers: int = 0
    ordered_workers: int = 0
    queue_senders: int = 0
    """Of the topic of those workers; without any of them there is no gRPC."""
    admin: bool = False
    """Somebody creates, changes and moves topics all the time."""
    operator: bool = False
    """Somebody adds and removes brokers, one of which may have lost its disk."""
    web: bool = False
    """Somebody writes and reads over HTTP."""
    savers: int = 0
    """Who save offsets in transactions that stay open for long; old offsets go soon then."""
    knobs: frozenset[str] = frozenset()
    """Bounds of the product that are small in this world, by theme (knobs.py)."""

    rogue_peer: bool = False
    """Somebody calls brokers as if it were one of them."""
    bootstrap_brokers: int = 0
    """Brokers that are there before anybody uses groups and transactions, whose topics spread when
    the others join; 0: all."""
    per_machine: int = 1
    """Brokers on one machine."""
    flush: str = "always"
    """When brokers flush what is appended; only without faults that cut the power."""

    SMALLEST: ClassVar = {
        "producers": 1,
        "keyed": 0,
        "groups": [],
        "transactional": 0,
        "transformers": 0,
        "list_append": 0,
        "queue_workers": 0,
        "ordered_workers": 0,
        "admin": False,
        "operator": False,
        "web": False,
        "savers": 0,
        "partitions": 1,
        "knobs": frozenset(),
        "rogue_peer": False,
        "bootstrap_brokers": 0,
        "per_machine": 1,
        "flush": "always",
    }
    """What there may be less of, and the least of it."""

    @property
    def has_queues(self) -> bool:
        return self.queue_workers + self.ordered_workers > 0

    def machine_of(self, number: int) -> str | None:
        """Of a broker; None: one of its own."""
        return f"host-{(number - 1) // self.per_machine}" if self.per_machine > 1 else None

    @classmethod
    def draw(cls, seed: int, seconds: float = 60.0) -> "Plan":
        rng = random.Random(f"{seed}/plan")
        brokers = rng.choice((1, 3, 3, 3, 3, 4, 5))
        chosen = [kind for kind in KINDS if rng.random() < 0.35]
        # Transactions time out and delayed messages come by the wall clock: it must not jump there.
        some = (0,) if "skew" in chosen else (0, 0, 0, 1, 2)
        plan = cls(
            seed=seed,
            seconds=seconds,
            brokers=brokers,
            partitions=rng.randint(1, 3),
            replication=min(3, brokers),
            pause_seconds=rng.choice((0.1, 0.3, 1.0)),
            segment_bytes=rng.choice((4 * 1024, 64 * 1024)),
            flush_seconds=rng.choice((0.000_05, 0.000_4, 0.005)),
            faults={kind: rng.uniform(3.0, 20.0) for kind in chosen},
            down_seconds=rng.choice((0.3, 3.0, 8.0)),
            producers=rng.randint(1, 2),
            keyed=rng.choice((0, 0, 1, 2)),
            groups=[GroupPlan.draw(rng) for _ in range(rng.choice((0, 0, 1, 2)))],
            transactional=rng.choice(some),
            transformers=rng.choice(some),
            list_append=rng.choice(some),
            queue_workers=2 * rng.choice(some),
            ordered_workers=rng.choice(some),
            queue_senders=rng.choice((1, 2)),
            admin=rng.random() < 0.35,
            operator=rng.random() < 0.3 and brokers >= 3,
            web=rng.random() < 0.2,
        )
        # Drawn last, so that the rest of a seed's plan is what it was.
        more = []
        if rng.random() < 0.3:
            more.append(replace(GroupPlan.draw(rng), more_topics=rng.choice((1, 2, 3)), members=3))
        groups = [*plan.groups, *more]
        # The offsets of others must not grow old between two of their commits.
        may_save = not (groups or plan.transformers or plan.has_queues)
        savers = rng.choice(some) if may_save else 0
        knobs = {knob for knob in KNOBS if rng.random() < 0.3}
        if plan.transformers or savers or "skew" in chosen:
            # Offsets must last as long as the world, or go sooner; a clock that jumps by an hour
            # lets a broker forget at once what it keeps for a minute.
            knobs.discard("forgets")
        if savers:
            knobs.add("expires")
        # What is acked may be lost with the power then, and an operator who loses disks cuts it.
        is_lit = _DARK.isdisjoint(chosen) and not plan.operator
        plan = replace(
            plan,
            groups=groups,
            admin=plan.admin or rng.random() < 0.25,
            savers=savers,
            knobs=frozenset(knobs),
            rogue_peer=rng.random() < 0.25,
            bootstrap_brokers=1 if rng.random() < 0.25 and brokers >= 3 else 0,
            flush=rng.choice(("always", "always", "interval", "never")) if is_lit else "always",
        )
        if rng.random() < 0.2:
            plan = replace(plan, knobs=plan.knobs | {"far"})
        return replace(plan, per_machine=2) if rng.random() < 0.3 else plan

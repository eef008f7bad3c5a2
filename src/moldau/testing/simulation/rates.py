"""Owns how often which fault happens. Drawn per seed: with the same middling rates in every run,
the rare combinations that break things never come up."""

import random
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Chances per message, times in milliseconds, and mean intervals between faults (0: never)."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay_ms: int = 2
    slow: float = 0.0
    """Chance of a message to take up to slow_ms more: it is overtaken by later ones."""
    slow_ms: int = 0
    flush_ms: int = 1
    stall: float = 0.0
    """Chance of a flush to take up to stall_ms."""
    stall_ms: int = 0
    vote_ms: int = 1
    send_wait: float = 0.0
    """Chance that a connection takes the next append only later."""
    cut_ms: int = 0
    isolate_ms: int = 0
    heal_ms: int = 1000
    """After this time on the average all links are whole again."""
    kill_ms: int = 0
    power_cut_ms: int = 0
    """Of one broker; now and then of all at once."""
    down_ms: int = 500
    eio_ms: int = 0
    pause_ms: int = 0
    pause_length_ms: int = 2000
    full_ms: int = 0
    """The disk takes nothing more, for a while."""
    wipe_ms: int = 0
    """One broker's log is lost with its votes, as long as all others are whole."""
    retention_ms: int = 0
    transfer_ms: int = 0
    members_ms: int = 0
    read_ms: int = 0
    propose_ms: int = 20
    is_lazy: bool = False
    """Heartbeats are told to the core only when they matter, with the time of their arrival."""

    @classmethod
    def draw(cls, rng: random.Random) -> "Rates":
        def some(*values: int) -> int:
            """Off in half of the runs."""
            return rng.choice(values) if rng.random() < 0.5 else 0

        return cls(
            drop=rng.choice((0.0, 0.0, 0.01, 0.1, 0.3)),
            duplicate=rng.choice((0.0, 0.0, 0.02, 0.2)),
            delay_ms=rng.choice((1, 5, 50, 200)),
            slow=rng.choice((0.0, 0.01, 0.1)),
            slow_ms=rng.choice((100, 1000, 5000)),
            flush_ms=rng.choice((1, 5, 50)),
            stall=rng.choice((0.0, 0.0, 0.05, 0.3)),
            stall_ms=rng.choice((200, 2000)),
            vote_ms=rng.choice((1, 5, 300)),
            send_wait=rng.choice((0.0, 0.0, 0.2)),
            cut_ms=some(300, 1000, 5000),
            isolate_ms=some(1000, 3000, 10000),
            heal_ms=rng.choice((500, 2000, 8000)),
            kill_ms=some(1000, 5000),
            power_cut_ms=some(1000, 3000, 10000),
            down_ms=rng.choice((100, 1000, 5000)),
            eio_ms=some(5000, 20000),
            pause_ms=some(1000, 5000),
            pause_length_ms=rng.choice((100, 1500, 6000)),
            full_ms=some(3000, 10000),
            retention_ms=some(500, 3000),
            transfer_ms=some(500, 3000),
            members_ms=some(200, 1000, 5000),
            read_ms=some(50, 500),
            propose_ms=rng.choice((10, 50, 200)),
            is_lazy=rng.random() < 0.5,
            wipe_ms=some(2000, 8000),
        )

    def healed(self) -> "Rates":
        """A world in which a majority can work: no new faults, a network that only delays."""
        return replace(
            self,
            drop=0.0,
            slow=0.0,
            stall=0.0,
            send_wait=0.0,
            delay_ms=min(self.delay_ms, 20),
            flush_ms=min(self.flush_ms, 5),
            vote_ms=5,
            cut_ms=0,
            isolate_ms=0,
            kill_ms=0,
            power_cut_ms=0,
            eio_ms=0,
            pause_ms=0,
            full_ms=0,
            wipe_ms=0,
            transfer_ms=0,
            members_ms=0,
        )

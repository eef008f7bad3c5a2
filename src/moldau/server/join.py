"""Owns the way into a running cluster: ask one of its members, and go on asking until it answers.

A member may still be starting, or its cluster without a leader just now: both pass. A refusal does
not: the answer says what to change, and the broker does not start.
"""

import asyncio
import logging
from typing import Final

from moldau.client.errors import ClientError, TimedOutError, UnavailableError, UnreachableError
from moldau.model.errors import ConfigError
from moldau.model.topology import JoinReply, JoinRequest
from moldau.server.config.schema import Address
from moldau.server.machine import Machine

log = logging.getLogger(__name__)

_CALL_SECONDS_MAX: Final = 5.0
"""Also how long the end of the process may have to wait for the thread that asks."""
_PAUSE_SECONDS_MIN: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 2.0
_SAY_SECONDS: Final = 5.0


async def join_cluster(
    address: Address, request: JoinRequest, machine: Machine, *, seconds_max: float
) -> JoinReply:
    """Be taken into the cluster that a member at `address` belongs to.

    Safe to repeat: the cluster knows the directory and the process that ask. Raises ConfigError.
    """
    member = machine.member(address, min(_CALL_SECONDS_MAX, seconds_max))
    deadline = machine.clock.monotonic() + seconds_max
    pause, say_at = _PAUSE_SECONDS_MIN, float("-inf")
    log.info("joining a cluster through %s", address)
    while True:
        try:
            reply = await member.join(request)
        except (UnreachableError, TimedOutError, UnavailableError) as error:
            now = machine.clock.monotonic()
            if now + pause > deadline:
                raise _gave_up(address, error, seconds_max) from None
            if now >= say_at:
                say_at = now + _SAY_SECONDS
                log.info("not joined yet: %s; trying for another %.0f s", error, deadline - now)
        except ClientError as error:
            raise _refused(address, error) from None
        else:
            log.info("joined cluster %s as broker %d", reply.cluster_id, reply.broker_id)
            return reply
        # Spread out: a whole cluster that starts at once asks the same member.
        await asyncio.sleep(pause * machine.rng.uniform(0.5, 1.0))
        pause = min(pause * 2, _PAUSE_SECONDS_MAX)


def _gave_up(address: Address, error: ClientError, seconds_max: float) -> ConfigError:
    failure = ConfigError(
        f"cannot join a cluster through {address} (join_addr) within {seconds_max:g} s: {error}"
    )
    failure.hint = error.hint
    return failure


def _refused(address: Address, error: ClientError) -> ConfigError:
    failure = ConfigError(f"{address} (join_addr) did not take this broker: {error}")
    failure.hint = error.hint or "nothing was changed; start again once that is put right"
    return failure

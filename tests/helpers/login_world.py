"""A real Authenticator with users of its own, whose hashes run at once."""

import os
from collections.abc import Callable, Mapping
from typing import Final

from moldau.api.authentication import Authenticator
from moldau.api.login_throttle import LoginThrottle
from moldau.api.login_tokens import LoginTokens
from moldau.metadata.security import User
from moldau.model.ids import TimestampMs
from moldau.security.scram import ScramMechanism, make_credential

ADMIN_TOKEN: Final = "token-of-the-data-directory"
PASSWORDS: Final = {"alice": "planted-secret-9f2c", "bob": "hunter-2: ü"}
CLUSTER_SECRET: Final = b"c" * 32


class StillClock:
    """Wall time that a test moves; failures cost no waiting."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000_000_000

    def wall_ms(self) -> TimestampMs:
        return TimestampMs(self.now_ms)

    def monotonic(self) -> float:
        return self.now_ms / 1000


class NoThreads:
    async def run(self, check: Callable[[], bool]) -> bool:
        return check()

    def stop(self) -> None:
        pass


def stored_user(name: str, password: str) -> User:
    mechanism = ScramMechanism.SHA_256
    credential = make_credential(password.encode(), os.urandom(16), 4096, mechanism)
    return User(name, {mechanism: credential})


class LoginWorld:
    def __init__(self) -> None:
        self.clock = StillClock()
        self.users: Mapping[str, User] = {
            name: stored_user(name, password) for name, password in PASSWORDS.items()
        }
        self.tokens = self.tokens_of(CLUSTER_SECRET)
        self.authenticator = Authenticator(
            users=lambda: self.users,
            throttle=LoginThrottle(self.clock),
            threads=NoThreads(),
            decoy_key=b"k" * 32,
            random_bytes=os.urandom,
            admin_token=ADMIN_TOKEN,
            tokens=self.tokens,
        )

    def tokens_of(self, secret: bytes) -> LoginTokens:
        """Those of another broker, with the same users."""
        return LoginTokens(secret=secret, users=lambda: self.users, clock=self.clock)

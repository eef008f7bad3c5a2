"""Owns sessions on users, ACLs and quotas that are decided and applied as in a cluster of one."""

import os
from collections.abc import Sequence
from typing import cast

from handler_calls import FakeCluster, LoopClock, broker_of, image

from moldau.api.session import Session, Sessions
from moldau.control.metadata_store import MetadataStore
from moldau.control.security_service import SecurityService
from moldau.metadata.apply import apply_all
from moldau.metadata.commands import Command
from moldau.metadata.decide import decide
from moldau.metadata.image import Image
from moldau.metadata.records import MetadataRecord
from moldau.security.principal import user


class OneStore:
    """The metadata of one broker: each command is decided and applied at once."""

    def __init__(self, first: Image) -> None:
        self.image = first

    async def submit(self, command: Command) -> Sequence[MetadataRecord]:
        records = decide(command, self.image)
        self.image = apply_all(self.image, records)
        return records

    def preview(self, command: Command) -> Image:
        return apply_all(self.image, decide(command, self.image))


class SecurityCalls:
    """Sessions of users, and what they changed."""

    def __init__(self) -> None:
        self.store = OneStore(image({}))
        service = SecurityService(
            metadata=cast("MetadataStore", self.store),
            clock=LoopClock(),
            random_bytes=os.urandom,
        )
        broker = broker_of(FakeCluster(self.store.image), security=service, metadata=self.store)
        self._sessions = Sessions(broker, super_users=frozenset({user("admin")}))

    def session(self, name: str = "admin") -> Session:
        """Only `admin` may do anything."""
        return self._sessions.session(user(name), "127.0.0.1")

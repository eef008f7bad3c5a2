"""Mistakes of the metadata: what is decided, what is stored, and what brokers learn of it."""

import asyncio
from typing import Any

from msgspec.structs import replace

from moldau.control import metadata_store
from moldau.control.metadata_replica import MetadataReplica
from moldau.control.metadata_store import MetadataStore
from moldau.metadata.image import Image
from moldau.metadata.snapshot import decode_image
from moldau.model.ids import Offset, ProducerId
from sim.mutants import mutant
from sim.mutants.raft import ELECTIONS, LATE


async def _commit_at_once(self: MetadataStore, command: Any) -> Any:
    self._lock = asyncio.Lock()
    return await _commit(self, command)


_commit = MetadataStore._commit


def _decode_without_ids(data: bytes, *rest: int) -> Image:
    return replace(decode_image(data, *rest), next_producer_id=ProducerId(0))


def _apply_appended(self: MetadataStore, replica: MetadataReplica) -> None:
    watermark, replica.high_watermark = replica.high_watermark, replica.log.end_offset
    try:
        _on_progress(self, replica)
    finally:
        replica.high_watermark = watermark


_on_progress = MetadataStore.on_progress


async def _wait_for_nothing(self: MetadataStore, offset: Offset, seconds_max: float = 0.0) -> None:
    pass


MUTANTS = (
    mutant(
        "DecidesAtOnce",
        "metadata",
        "a command is decided while the one before it is being written",
        ELECTIONS,
        (MetadataStore, "_commit", _commit_at_once),
        producers=4,
        transactional=2,
        admin=True,
    ),
    mutant(
        "ForgetsProducerIds",
        "metadata",
        "which producer ids are given out is not read from a snapshot",
        {"stop": 3.0, "kill": 5.0},
        (metadata_store, "decode_image", _decode_without_ids),
        producers=2,
    ),
    mutant(
        "AppliesTheUncommitted",
        "metadata",
        "the image is made from all that is in the log",
        {"power": 3.0, "isolate": 3.0, "slow-network": 4.0, "kill": 4.0},
        (MetadataStore, "on_progress", _apply_appended),
        admin=True,
        brokers=5,
    ),
    mutant(
        "AnswersBeforeItIsKnown",
        "metadata",
        "a command is answered before this broker has its effect",
        LATE,
        (MetadataStore, "settled", _wait_for_nothing),
        admin=True,
    ),
    mutant(
        "RepeatsInDoubt",
        "metadata",
        "a command whose answer was lost is sent again, whatever it is",
        {"break": 0.5, "slow-network": 3.0, "kill": 5.0},
        (metadata_store, "_AMBIGUOUS", ()),
        admin=True,
    ),
)

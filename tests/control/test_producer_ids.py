"""Producer ids after a restore: none is given out that a restored batch has."""

from typing import Any, cast

from harness.virtual_loop import run_virtually
from moldau.control.metadata_store import MetadataStore
from moldau.control.producer_ids import ProducerIds
from moldau.metadata.apply import apply
from moldau.metadata.decide import decide
from moldau.metadata.image import EMPTY_IMAGE


class Store:
    def __init__(self) -> None:
        self.image = EMPTY_IMAGE

    async def submit(self, command: Any) -> Any:
        records = decide(command, self.image)
        for record in records:
            self.image = apply(self.image, record)
        return records


def test_every_broker_gives_up_its_block_when_ids_are_skipped():
    async def scenario() -> None:
        store = Store()
        one, two = (ProducerIds(cast(MetadataStore, store)) for _ in range(2))
        taken = [await each.take() for each in (one, two, one)]
        assert taken == [0, 1000, 1]
        await one.skip_below(70_000)
        assert await one.take() > 70_000
        assert await two.take() > 70_000
        before = store.image.next_producer_id
        await two.skip_below(70_000)
        assert store.image.next_producer_id == before

    run_virtually(scenario())

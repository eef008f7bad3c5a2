"""What a comparison of a backup with a cluster finds."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from batch_log import TIME, Log

from moldau.client.backup.manifests import Manifest
from moldau.client.backup.partition_copier import PartitionCopier, Pin
from moldau.client.backup.source import Source
from moldau.client.backup.stores import DirectoryStore
from moldau.client.backup.verify import Verifier
from moldau.client.backup.work import Pace
from moldau.model.backup import ClusterCopy
from moldau.model.ids import Epoch, Offset
from moldau.records.compact import empty_batch

pytestmark = pytest.mark.inprocess


@pytest.mark.parametrize(
    ("compacted", "said"),
    [
        # Whatever the topic was in the cluster that was copied.
        pytest.param((), "the batches at offset 1 differ", id="not compacted here"),
        pytest.param(("t",), "the batches at offset 1 differ", id="another topic is compacted"),
        pytest.param(("new-t",), "", id="compacted here"),
    ],
)
def test_only_a_cluster_that_compacts_a_topic_may_have_fewer_records(
    tmp_path: Path, compacted: tuple[str, ...], said: str
):
    log = Log()
    for _ in range(3):
        log.write()
    store = DirectoryStore(tmp_path)
    made = PartitionCopier(store, log, Pin("t", "0f", 0, 0, 3, 3, None), Pace()).run()
    described = ClusterCopy(
        cluster_id="c", version="1", feature_level=0, next_producer_id=0, topics=()
    )
    manifest = Manifest(
        id="chain",
        number=1,
        started_ms=1,
        finished_ms=2,
        cluster=described,
        partitions=(made,),
    )
    log.batches[1] = empty_batch(Offset(1), Offset(2), Epoch(0), TIME)
    topics = [SimpleNamespace(name=name, compacted=name in compacted) for name in ("t", "new-t")]
    against = SimpleNamespace(
        describe=lambda: SimpleNamespace(topics=topics), client=lambda: log, close=lambda: None
    )
    verifier = Verifier(
        store, manifest, against=cast(Source, cast(Any, against)), name_of="new-{}".format
    )
    (check,) = verifier.run()
    assert check.problem == said

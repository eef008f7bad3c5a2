"""Settings of a consumer that reads from the beginning and commits by itself.

As given from `ConsumerConfig(` on. It was given without an import, so there is one above it.
"""

# ruff: noqa
# fmt: off
from moldau import ConsumerConfig, OffsetResetPolicy

ConsumerConfig(
    bootstrap_servers=['localhost:9092'],
    group_id='my-group',
    auto_offset_reset=OffsetResetPolicy.EARLIEST,
    enable_auto_commit=True,
    max_poll_records=500
)

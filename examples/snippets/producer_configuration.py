"""Settings of a producer that loses and doubles nothing.

As given from `ProducerConfig(` on. It was given without an import, so there is one above it.
"""

# ruff: noqa
# fmt: off
from moldau import AckMode, ProducerConfig

ProducerConfig(
    bootstrap_servers=['localhost:9092'],
    acks=AckMode.ALL,           # Wait for all replicas
    batch_size=16384,           # 16KB batches
    linger_ms=10,               # Wait 10ms before sending
    retries=3,                  # Retry failed sends
    enable_idempotence=True     # Exactly-once semantics
)

"""Large compressed batches, acknowledged by the leader alone.

As given from `config = ` to the closing bracket. The import above and the use below were not given.
"""

# ruff: noqa
# fmt: off
from moldau import AckMode, Producer, ProducerConfig

config = ProducerConfig(
    bootstrap_servers=['localhost:9092'],
    acks=AckMode.LEADER,
    batch_size=65536,  # 64KB batches
    linger_ms=100,     # Wait 100ms for batching
    compression_type='gzip'
)

with Producer(config) as producer:
    producer.send_many('events', [f'event {number}' for number in range(1000)])
print('1000 events sent')

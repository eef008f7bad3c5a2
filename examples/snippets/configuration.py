"""What a producer and a consumer may be told, and that they do."""

# fmt: off
from moldau import AckMode, Consumer, ConsumerConfig, OffsetResetPolicy, Producer, ProducerConfig

careful = ProducerConfig(
    bootstrap_servers=['localhost:9092'],
    acks=AckMode.ALL,           # Wait for all replicas
    batch_size=16384,           # 16KB batches
    linger_ms=10,               # Wait 10ms before sending
    retries=3,                  # Retry failed sends
    enable_idempotence=True     # Exactly-once semantics
)

fast = ProducerConfig(
    bootstrap_servers=['localhost:9092'],
    acks=AckMode.LEADER,
    batch_size=65536,  # 64KB batches
    linger_ms=100,     # Wait 100ms for batching
    compression_type='gzip'
)

for config in (careful, fast):
    with Producer(config) as producer:
        for number in range(100):
            producer.send('events', f'event {number}')

reading = ConsumerConfig(
    bootstrap_servers=['localhost:9092'],
    group_id='my-group',
    auto_offset_reset=OffsetResetPolicy.EARLIEST,
    enable_auto_commit=True,
    max_poll_records=500
)

with Consumer(reading) as consumer:
    consumer.subscribe(['events'])
    print(len(consumer.poll()), 'events in the first poll')

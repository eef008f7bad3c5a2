"""Send a first message; its topic is created by that.

As given but for the import line.
"""

# ruff: noqa
# fmt: off
from moldau import Producer, ProducerConfig, AckMode

config = ProducerConfig(bootstrap_servers=['localhost:9092'])
producer = Producer(config)
producer.start()

# Create topic (done automatically on first produce)
producer.send(topic='events', key='user-1', value='Hello World')
producer.flush()
producer.close()

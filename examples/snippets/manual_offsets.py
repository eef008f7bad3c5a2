"""Commit each message once it is done; what fails is read again.

As given from `consumer = ` to `break`. `config` and `process` were not given, so they are made above
it; below, it is shown what was committed.
"""

# ruff: noqa
# fmt: off
from moldau import Consumer, ConsumerConfig, Message, Producer

with Producer('localhost:9092') as producer:
    producer.send_many('events', ['one', 'two', 'three'])

config = ConsumerConfig(
    bootstrap_servers=['localhost:9092'],
    group_id='careful-readers',
    enable_auto_commit=False
)


def process(message: Message) -> None:
    print(message['offset'], message.text)


# As given:
consumer = Consumer(config)
consumer.subscribe(['events'])

for message in consumer.poll():
    try:
        process(message)
        consumer.commit({(message['topic'], message['partition']): message['offset']})
    except Exception:
        # Don't commit, will reprocess
        break

# Not given:
print('done through', consumer.committed())
consumer.close()

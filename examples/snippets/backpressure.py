"""Stop reading while there is enough to do, and go on when it is done.

As given from `# Pause` to the last `resume`. It takes a consumer, a queue and a threshold for granted,
which are made above it. An application runs it before each poll; here once, with a full queue.
"""

# ruff: noqa
# fmt: off
from collections import deque

from moldau import Admin, Consumer, Message, Producer

admin = Admin('localhost:9092')
if 'events' not in [topic.name for topic in admin.topics()]:
    admin.create_topic('events', partitions=2)
elif len(admin.topic('events').partitions) < 2:
    admin.add_partitions('events', 2)

with Producer('localhost:9092') as producer:
    for number in range(1000):
        producer.send('events', f'event {number}', partition=number % 2)


class ProcessingQueue(deque[Message]):
    def full(self) -> bool:
        return len(self) >= 300

    def size(self) -> int:
        return len(self)


processing_queue = ProcessingQueue()
threshold = 100
consumer = Consumer('localhost:9092', group_id='slow-readers', max_poll_records=100)
consumer.subscribe(['events'])
while len(consumer.assignment()) < 2 or not processing_queue.full():
    processing_queue.extend(consumer.poll())

# As given:
# Pause consumption if processing queue is full
if processing_queue.full():
    consumer.pause([('events', 0), ('events', 1)])
    
# Resume when queue drains
if processing_queue.size() < threshold:
    consumer.resume([('events', 0), ('events', 1)])

# Not given:
print(len(processing_queue), 'events to do,', len(consumer.poll(0.5)), 'more while paused')
processing_queue.clear()
consumer.resume([('events', 0), ('events', 1)])
print(len(consumer.poll()) > 0, 'once resumed')
consumer.close()

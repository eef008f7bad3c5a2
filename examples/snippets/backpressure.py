"""Stop reading while there is enough to do, and go on when it is done."""

# fmt: off
from collections import deque

from moldau import Admin, Consumer, NotFoundError, Producer

admin = Admin('localhost:9092')
try:
    if len(admin.topic('events').partitions) < 2:
        admin.add_partitions('events', 2)
except NotFoundError:
    admin.create_topic('events', partitions=2)

with Producer('localhost:9092') as producer:
    for number in range(1000):
        producer.send('events', f'event {number}', partition=number % 2)


class ProcessingQueue(deque):
    def full(self):
        return len(self) >= 300

    def size(self):
        return len(self)


processing_queue = ProcessingQueue()
threshold = 100
done = pauses = 0

consumer = Consumer('localhost:9092', group_id='slow-readers', max_poll_records=100)
consumer.subscribe(['events'])
while consumer.assignment() != [('events', 0), ('events', 1)]:
    processing_queue.extend(consumer.poll())

while done < 1000:
    # Pause consumption if processing queue is full
    if processing_queue.full():
        consumer.pause([('events', 0), ('events', 1)])
        pauses += 1

    # Resume when queue drains
    if processing_queue.size() < threshold:
        consumer.resume([('events', 0), ('events', 1)])

    processing_queue.extend(consumer.poll(0.01))
    for _ in range(min(20, len(processing_queue))):
        processing_queue.popleft()
        done += 1

print(f'{done} events done, paused {pauses} times, {sum(consumer.lag().values())} to go')
consumer.close()

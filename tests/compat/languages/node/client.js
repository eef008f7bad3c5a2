// Creates topics, writes 10,000 messages with the codecs that kafkajs has without plugins, reads
// them in a group that restarts; then transactions, every other of them aborted.
const assert = require("node:assert");
const { CompressionTypes, Kafka, logLevel } = require("kafkajs");

const COUNT = 10000;
const PARTITIONS = 3;
const FIRST_MS = 1700000000000;

const key = (number) => (number % 50 === 1 ? null : `key-${number}`);
const value = (number) => (number % 50 === 2 ? null : `value-${number}`);
const text = (bytes) => (bytes === null ? null : bytes.toString());

async function produce(kafka, topic, compression) {
  const producer = kafka.producer({ idempotent: true });
  await producer.connect();
  for (let first = 0; first < COUNT; first += 1000) {
    const messages = Array.from({ length: 1000 }, (_, index) => ({
      key: key(first + index),
      value: value(first + index),
      partition: (first + index) % PARTITIONS,
      timestamp: String(FIRST_MS + first + index),
      headers: { number: String(first + index) },
    }));
    await producer.send({ topic, messages, acks: -1, compression });
  }
  await producer.disconnect();
}

async function consume(kafka, topic, wanted) {
  const consumer = kafka.consumer({ groupId: `group-of-${topic}` });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  let found = 0;
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`${found} of ${wanted}`)), 40000).unref();
    const eachMessage = async ({ partition, message }) => {
      try {
        const number = Number(message.headers.number.toString());
        assert.strictEqual(partition, number % PARTITIONS);
        assert.strictEqual(Number(message.offset), Math.floor(number / PARTITIONS));
        assert.strictEqual(message.timestamp, String(FIRST_MS + number));
        assert.strictEqual(text(message.key), key(number));
        assert.strictEqual(text(message.value), value(number));
      } catch (error) {
        reject(error);
      }
      found += 1;
      if (found >= wanted) resolve();
    };
    consumer.run({ eachMessage }).catch(reject);
  });
  await consumer.disconnect();
  return found;
}

async function transact(kafka) {
  const topic = "node-transactions";
  const producer = kafka.producer({
    transactionalId: topic,
    idempotent: true,
    maxInFlightRequests: 1,
  });
  await producer.connect();
  const committed = [];
  for (let number = 0; number < 4; number += 1) {
    const transaction = await producer.transaction();
    await transaction.send({ topic, messages: [{ value: String(number) }] });
    const partitions = [{ partition: 0, offset: String(number) }];
    await transaction.sendOffsets({
      consumerGroupId: `group-of-${topic}`,
      topics: [{ topic, partitions }],
    });
    if (number % 2 === 0) {
      await transaction.commit();
      committed.push(String(number));
    } else {
      await transaction.abort();
    }
  }
  await producer.disconnect();
  const consumer = kafka.consumer({ groupId: "reads-committed" });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const found = [];
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`read ${found}`)), 40000).unref();
    const eachMessage = async ({ message }) => {
      found.push(message.value.toString());
      if (found.length >= committed.length) resolve();
    };
    consumer.run({ eachMessage }).catch(reject);
  });
  await consumer.disconnect();
  // Without keys they lie in several partitions, which have no order among them.
  assert.deepStrictEqual(found.sort(), committed);
}

async function main() {
  const kafka = new Kafka({ brokers: [process.argv[2]], logLevel: logLevel.ERROR });
  const admin = kafka.admin();
  await admin.connect();
  for (const codec of ["None", "GZIP"]) {
    const topic = `node-${codec}`;
    await admin.createTopics({ topics: [{ topic, numPartitions: PARTITIONS }] });
    await produce(kafka, topic, CompressionTypes[codec]);
    const first = await consume(kafka, topic, 1);
    const rest = await consume(kafka, topic, COUNT - first);
    assert.strictEqual(first + rest, COUNT);
  }
  await transact(kafka);
  const stored = await admin.fetchOffsets({ groupId: "group-of-node-transactions" });
  assert.strictEqual(stored[0].partitions[0].offset, "2");
  await admin.deleteTopics({ topics: ["node-None"] });
  await admin.disconnect();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});

// A kafkajs consumer in a group, told of in lines: `own 0 1`, `lost 2`, `got 1 17`.
// It leaves its group when its standard input ends. Arguments: broker, group, topic.
const { Kafka, logLevel } = require("kafkajs");

const [broker, group, topic] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "kafkajs", brokers: [broker], logLevel: logLevel.NOTHING });
const consumer = kafka.consumer({
  groupId: group,
  sessionTimeout: 6000,
  heartbeatInterval: 500,
  maxWaitTimeInMs: 100,
});
let owned = [];

function say(what, numbers) {
  process.stdout.write([what, ...numbers].join(" ") + "\n");
}

consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
  const now = payload.memberAssignment[topic] || [];
  say("lost", owned.filter((partition) => !now.includes(partition)));
  owned = now;
  say("own", owned);
});

async function main() {
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({
    autoCommitInterval: 200,
    eachMessage: async ({ partition, message }) => say("got", [partition, message.offset]),
  });
}

process.stdin.resume();
process.stdin.on("end", async () => {
  await consumer.disconnect();
  process.exit(0);
});
main().catch((error) => {
  process.stderr.write(`${error}\n`);
  process.exit(1);
});

// node client.js HOST:PORT QUEUE.PROTO - makes a topic, sends, polls, acks and heartbeats through a
// proxy, as a client that knows no brokers. Ends with 0 if all that it read is right.
const assert = require("node:assert");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, proto] = process.argv.slice(2);
const definition = loader.loadSync(proto, { longs: Number, enums: String, defaults: true });
const { Queue } = grpc.loadPackageDefinition(definition).moldau.v1;
const client = new Queue(address, grpc.credentials.createInsecure());

const call = (method, request) =>
  new Promise((resolve, reject) =>
    client[method](request, { deadline: Date.now() + 60000 }, (error, answer) =>
      error ? reject(error) : resolve(answer),
    ),
  );

async function sendBatch(requests) {
  const stream = client.SendBatch();
  requests.forEach((request) => stream.write(request));
  stream.end();
  const answers = [];
  for await (const answer of stream) answers.push(answer);
  return answers;
}

function heartbeat(request) {
  return new Promise((resolve, reject) => {
    const stream = client.Heartbeat();
    stream.on("data", (answer) => {
      stream.end();
      resolve(answer);
    });
    stream.on("error", reject);
    stream.write(request);
  });
}

async function main() {
  await call("CreateTopic", { topic: "node-jobs", partitions: 3 });
  const again = await call("CreateTopic", { topic: "node-jobs" }).catch((error) => error);
  assert.equal(again.code, grpc.status.ALREADY_EXISTS);
  assert.deepEqual(again.metadata.get("moldau-reason"), ["TOPIC_EXISTS"]);

  const sent = await call("Send", {
    topic: "node-jobs",
    message: { key: Buffer.from("k"), value: Buffer.from("0") },
  });
  assert.equal(sent.offset, 0);
  const messages = [...Array(99).keys()].map((n) => ({ value: Buffer.from(String(n + 1)) }));
  const answers = await sendBatch([
    { topic: "node-jobs", messages: messages.slice(0, 50) },
    { topic: "node-jobs", messages: messages.slice(50) },
  ]);
  assert.deepEqual(answers.map((answer) => answer.offsets.length), [50, 49]);
  assert.deepEqual(answers.flatMap((answer) => answer.failures), []);

  const group = "node-workers";
  const connected = await call("Connect", { group, topics: ["node-jobs"], mode: "QUEUE" });
  const consumer_id = connected.consumerId;
  assert.equal(connected.assignment.partitions.length, 3);
  const beat = await heartbeat({
    group,
    consumerId: consumer_id,
    epoch: connected.assignment.epoch,
  });
  assert.ok(beat.heartbeatIntervalMs > 0);

  const seen = new Set();
  while (seen.size < 100) {
    const polled = await call("Poll", {
      group,
      consumerId: consumer_id,
      maxMessages: 30,
      waitMs: 20000,
    });
    assert.ok(polled.messages.length > 0, "a poll came back empty");
    polled.messages.forEach((message) => seen.add(message.value.toString()));
    const tokens = polled.messages.map((message) => message.token);
    const settled = await call("Ack", { group, consumerId: consumer_id, tokens });
    assert.equal(settled.done, tokens.length);
    assert.deepEqual(settled.refused, []);
  }
  assert.deepEqual([...seen].map(Number).sort((a, b) => a - b), [...Array(100).keys()]);

  const stats = await call("Stats", { group });
  const left = stats.partitions.reduce((sum, part) => sum + part.ready + part.leased, 0);
  assert.equal(left, 0);
  const stranger = await call("Poll", { group, consumerId: "nobody" }).catch((error) => error);
  assert.equal(stranger.code, grpc.status.NOT_FOUND);
  await call("Disconnect", { group, consumerId: consumer_id });
  console.log("100 messages sent, polled and acked");
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);

/** One of each thing that pages copy. */

import * as commands from "../src/lib/commands";
import * as messages from "../src/lib/message_commands";
import { cut, commandOf, hasten, heal, kill, mend, pause, restart, resume, slow } from "../src/pages/play/acts";

type Sample = commands.Command[];

const HELPERS = ["command", "moldau", "query"];

/** By the function that makes it. Made when asked for: commands name the cluster of that time. */
export const samples = (): Record<string, Sample> => ({
  createTopic: [
    commands.createTopic("orders", 6, 3, { "cleanup.policy": "compact", "retention.ms": "1 $(x)" }),
    commands.createTopic("-orders", 0, 0, {}),
  ],
  showTopic: [commands.showTopic("orders")],
  deleteTopic: [commands.deleteTopic("-f")],
  growTopic: [commands.growTopic("orders", 12)],
  configureTopic: [commands.configureTopic("orders", { "retention.ms": "-1", "segment.bytes": null })],
  trimTopic: [commands.trimTopic("orders", null, 7, {}), commands.trimTopic("orders", 2, 7, {}), commands.trimTopic("orders", 2, null, {})],
  movePartition: [commands.movePartition("orders", 3, [4, 1, 2])],
  showGroup: [commands.showGroup("it's $(x)")],
  deleteGroup: [commands.deleteGroup("--help")],
  resetGroup: [
    commands.resetGroup("billing", [{ topic: "orders", partition: null, position: "beginning" }], {}),
    commands.resetGroup("billing", [{ topic: "orders", partition: null, position: "@2026-01-31T12:00:00.000Z" }], {}),
    commands.resetGroup(
      "-billing",
      [
        { topic: "orders", partition: 0, position: "12" },
        { topic: "orders", partition: 1, position: "end" },
      ],
      {},
    ),
  ],
  listQueues: [commands.listQueues()],
  showQueue: [commands.showQueue("resizers", "jobs")],
  redrive: [
    commands.redrive("resizers", "jobs", null, { records: null }),
    commands.redrive("resizers", "jobs", "retry jobs", { records: null }),
    commands.redrive("resizers", "jobs", null, { records: [{ partition: 0, offset: 1 }] }),
  ],
  purgeQueue: [commands.purgeQueue("resizers", "jobs", {})],
  electLeaders: [commands.electLeaders()],
  removeBroker: [commands.removeBroker(2)],
  showLogLevels: [commands.showLogLevels(2)],
  listTransactions: [commands.listTransactions()],
  abortTransaction: [commands.abortTransaction("billing 1"), commands.abortTransaction("-1")],
  abortHanging: [commands.abortHanging({ partition: 1 })],
  listPipelines: [commands.listPipelines()],
  showRaft: [commands.showRaft()],
  produce: [
    messages.produce("orders", {
      records: [{ key: "-k 1", value: '{"a": "$(x) it\'s"}', headers: [["trace", "x=y"]], partition: 2 }],
      compression: "zstd",
    }),
    messages.produce("-orders", { records: [{ key: "", value: null }] }),
    messages.produce("orders", { records: [{ key: null, value: "-v" }] }),
  ],
  search: [
    messages.search("orders", { direction: "newest" }),
    messages.search("orders", {
      contains: "$(touch x) 'a' (b) \\d \"q\"",
      key: 'k "1"',
      header: "trace id:a:b",
      json: "user.items[0].\"my id\"=42",
      partition: "3",
      direction: "newest",
    }),
    messages.search("orders", { json: ["[0].ok", ".name=Ann (x)"], header: "trace", direction: "oldest" }),
    messages.search("orders", { direction: "oldest", offset: "17", partition: ["0", "1"] }),
    messages.search("orders", { direction: "oldest", time: 1769860800123 }),
  ],
});

export const playSamples = (): Sample => [
  kill(1, false),
  pause(1),
  resume(1),
  restart(1, false),
  cut(1, 2),
  mend(1, 2),
  slow(1, false),
  hasten(1, false),
  heal(false),
].map((act) => commandOf(act, 30));

export const MADE = [...Object.keys(commands), ...Object.keys(messages)].filter((name) => !HELPERS.includes(name));

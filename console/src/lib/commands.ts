/** The same as a click, as a command of moldau, a request by curl, and a piece of Python. */

import { type Reach, reaching } from "./addresses";
import { canBePasted, json, pythonText, pythonValue, quoted } from "./quoting";

/** What is empty cannot be said in that way. */
export type Command = { moldau: string; curl: string; python: string; note?: string };

/** Of a word of a command, on Linux. */
const CURL_BODY_MAX = 100_000;
const LOGIN_NOTE = "On a cluster with users add your credentials: an Authorization header, or options of moldau.";

/** A line of moldau; empty if a terminal could take some of it for keys that are pressed. */
export function moldau(reach: Reach, verb: string, names: readonly string[] = [], options: readonly (string | number)[] = []): string {
  const all = [...options.map(String), ...reaching(reach)];
  // A name that begins like an option stands where there are none.
  const words = names.some((one) => one.startsWith("-")) ? [...all, "--", ...names] : [...names, ...all];
  return words.every(canBePasted) ? ["moldau", ...verb.split(" "), ...words.map(quoted)].join(" ") : "";
}

function curl(method: string, path: string, body?: unknown): string {
  const words = ["curl", "-s"];
  if (method !== "GET" && !(method === "POST" && body !== undefined)) words.push("-X", method);
  words.push(quoted(`${location.origin}/api/v1${path}`));
  if (body !== undefined) {
    const text = json(body);
    if (new TextEncoder().encode(text).length > CURL_BODY_MAX) return "";
    words.push("-H", "'content-type: application/json'", "-d", quoted(text));
  }
  return words.join(" ");
}

function http(method: string, path: string, body?: unknown): string {
  const url = pythonText(`${location.origin}/api/v1${path}`);
  if (method === "GET") return `import json, urllib.request\n\nwith urllib.request.urlopen(${url}) as reply:\n    print(json.load(reply))`;
  const data = body === undefined ? "" : `    data=json.dumps(${pythonValue(body)}).encode(),\n`;
  const type = body === undefined ? "" : `    headers={"content-type": "application/json"},\n`;
  return (
    `import json, urllib.request\n\nrequest = urllib.request.Request(\n    ${url},\n    method="${method}",\n${data}${type})\n` +
    `with urllib.request.urlopen(request) as reply:\n    print(json.load(reply))`
  );
}

/** `path` is below /api/v1; its parts are encoded. */
export function command(line: string, method: string, path: readonly (string | number)[], body?: unknown, python?: string): Command {
  const address = path.map((one) => `/${encodeURIComponent(one)}`).join("");
  return { moldau: line, curl: curl(method, address, body), python: python ?? http(method, address, body), note: LOGIN_NOTE };
}

/** The same for a GET with parameters. */
export function query(line: string, path: readonly (string | number)[], params: URLSearchParams): Command {
  const found = command(line, "GET", path);
  const address = `${path.map((one) => `/${encodeURIComponent(one)}`).join("")}?${params.toString()}`;
  return { ...found, curl: curl("GET", address), python: http("GET", address) };
}

// ---- topics

export function createTopic(name: string, partitions: number, replicas: number, configs: Record<string, string>): Command {
  const options = [
    ...(partitions > 0 ? ["--partitions", partitions] : []),
    ...(replicas > 0 ? ["--replication-factor", replicas] : []),
    ...Object.entries(configs).flatMap(([key, value]) => ["--config", `${key}=${value}`]),
  ];
  const body = { name, partitions, replication_factor: replicas, configs };
  return command(moldau("kafka", "topic create", [name], options), "POST", ["topics"], body);
}

export function showTopic(name: string): Command {
  return command(moldau("kafka", "topic describe", [name]), "GET", ["topics", name]);
}

export function deleteTopic(name: string): Command {
  return command(moldau("kafka", "topic delete", [name]), "DELETE", ["topics", name]);
}

export function growTopic(name: string, count: number): Command {
  const line = moldau("kafka", "topic alter", [name], ["--partitions", count]);
  return command(line, "POST", ["topics", name, "partitions"], { count });
}

export function configureTopic(name: string, configs: Record<string, string | null>): Command {
  const options = Object.entries(configs).flatMap(([key, value]) =>
    value === null ? ["--delete-config", key] : ["--config", `${key}=${value}`],
  );
  return command(moldau("kafka", "topic alter", [name], options), "PATCH", ["topics", name, "configs"], { configs });
}

/** Up to `offset`, or all. */
export function trimTopic(name: string, partition: number | null, offset: number | null, body: unknown): Command {
  const options = [...(partition === null ? [] : ["--partition", partition]), "--to", partition === null ? "end" : (offset ?? "end")];
  return command(moldau("kafka", "topic trim", [name], options), "POST", ["topics", name, "trim"], body);
}

export function movePartition(topic: string, partition: number, replicas: number[]): Command {
  const line = moldau("kafka", "partition move", [`${topic}:${partition}`], ["--to", replicas.join(",")]);
  return command(line, "POST", ["topics", topic, "replicas"], { partitions: { [partition]: replicas } });
}

// ---- groups

export function showGroup(group: string): Command {
  return command(moldau("kafka", "group describe", [group]), "GET", ["groups", group]);
}

export function deleteGroup(group: string): Command {
  return command(moldau("kafka", "group delete", [group]), "DELETE", ["groups", group]);
}

/** `position` as moldau names it: beginning, end, an offset, @TIME. */
export type Seek = { topic: string; partition: number | null; position: string };

export function resetGroup(group: string, seeks: readonly Seek[], body: unknown): Command {
  const lines = seeks.map(({ topic, partition, position }) =>
    moldau("kafka", "group seek", [group], ["--topic", topic, ...(partition === null ? [] : ["--partition", partition]), "--to", position]),
  );
  const line = lines.every(Boolean) ? lines.join("\n") : "";
  return command(line, "POST", ["groups", group, "reset"], body);
}

// ---- queues

export function listQueues(): Command {
  return command(moldau("grpc", "queue list"), "GET", ["queues"]);
}

export function showQueue(group: string, topic: string): Command {
  return command(moldau("grpc", "queue stats", [group]), "GET", ["queues", group, topic]);
}

/** Some can only be named in a request: moldau takes them in order. */
export function redrive(group: string, topic: string, target: string | null, body: { records: unknown[] | null }): Command {
  const line = body.records === null ? moldau("grpc", "queue redrive", [group], target ? ["--to", target] : []) : "";
  return command(line, "POST", ["queues", group, topic, "redrive"], body);
}

export function purgeQueue(group: string, topic: string, body: unknown): Command {
  return command("", "POST", ["queues", group, topic, "purge"], body);
}

// ---- the cluster

export function removeBroker(broker: number): Command {
  return command(moldau("http", "broker remove", [String(broker)]), "POST", ["cluster", "leave"], { broker });
}

export function electLeaders(): Command {
  return command(moldau("kafka", "partition elect-leaders"), "POST", ["cluster", "elect"]);
}

export function showLogLevels(broker: number): Command {
  return command(moldau("http", "broker log-level", [], ["--broker", broker]), "GET", ["brokers", broker, "log-levels"]);
}

export function listTransactions(): Command {
  return command(moldau("kafka", "transaction list"), "GET", ["transactions"]);
}

export function abortTransaction(id: string): Command {
  return command(moldau("kafka", "transaction abort", [id]), "POST", ["transactions", id, "abort"], {});
}

/** One that no coordinator knows. */
export function abortHanging(body: unknown): Command {
  return command("", "POST", ["transactions", "hanging"], body);
}

export function listPipelines(): Command {
  return command(moldau("kafka", "pipeline status"), "GET", ["pipelines"]);
}

export function showRaft(): Command {
  return command("", "GET", ["raft"]);
}

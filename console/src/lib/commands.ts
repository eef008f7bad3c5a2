/** The same as a click, as a command of moldau, a request by curl, and a piece of Python. */

import type { RecordsSent } from "../api/types";

export type Command = { moldau: string; curl: string; python: string; note?: string };

/** Quoted for a POSIX shell. */
export function quoted(text: string): string {
  return /^[A-Za-z0-9_./:=,@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

function pythonText(text: string): string {
  // JSON's strings are Python's, too.
  return JSON.stringify(text);
}

function curl(method: string, path: string, body?: unknown): string {
  const words = ["curl", "-s"];
  if (method !== "GET" && !(method === "POST" && body !== undefined)) words.push("-X", method);
  words.push(quoted(`${location.origin}/api/v1${path}`));
  if (body !== undefined) {
    words.push("-H", "'content-type: application/json'", "-d", quoted(JSON.stringify(body)));
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

function pythonValue(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return pythonText(value);
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([name, one]) => `${pythonText(name)}: ${pythonValue(one)}`)
      .join(", ")}}`;
  return String(value);
}

const part = encodeURIComponent;
const LOGIN_NOTE = "On a cluster with users add your credentials: an Authorization header, or options of moldau.";

/** What has no command of its own is shown as requests. */
function command(moldau: string, method: string, path: string, body?: unknown, python?: string): Command {
  return { moldau, curl: curl(method, path, body), python: python ?? http(method, path, body), note: LOGIN_NOTE };
}

export function createTopic(name: string, partitions: number, replicas: number, configs: Record<string, string>): Command {
  const body = { name, partitions, replication_factor: replicas, configs };
  const options = [
    partitions > 0 ? ` --partitions ${partitions}` : "",
    replicas > 0 ? ` --replication-factor ${replicas}` : "",
    ...Object.entries(configs).map(([key, value]) => ` --config ${quoted(`${key}=${value}`)}`),
  ].join("");
  return command(`moldau topic create ${quoted(name)}${options}`, "POST", "/topics", body);
}

export function showTopic(name: string): Command {
  return command(`moldau topic describe ${quoted(name)}`, "GET", `/topics/${part(name)}`);
}

export function deleteTopic(name: string): Command {
  return command(`moldau topic delete ${quoted(name)}`, "DELETE", `/topics/${part(name)}`);
}

export function growTopic(name: string, count: number): Command {
  return command(`moldau topic alter ${quoted(name)} --partitions ${count}`, "POST", `/topics/${part(name)}/partitions`, {
    count,
  });
}

export function configureTopic(name: string, configs: Record<string, string | null>): Command {
  const options = Object.entries(configs)
    .map(([key, value]) => (value === null ? ` --delete-config ${quoted(key)}` : ` --config ${quoted(`${key}=${value}`)}`))
    .join("");
  return command(`moldau topic alter ${quoted(name)}${options}`, "PATCH", `/topics/${part(name)}/configs`, { configs });
}

/** One message. What is no text has no command: an argument would change it. */
export function produce(topic: string, sent: RecordsSent): Command {
  const { key, value, headers = [], partition = null } = sent.records[0]!;
  const compression = sent.compression ?? "none";
  const isBinary = value !== null && sent.value_encoding === "base64";
  const moldau = [
    `moldau produce ${quoted(topic)} -m ${quoted(value ?? "")}`,
    key === null ? "" : ` --key ${quoted(key)}`,
    ...headers.map(([name, content]) => ` -H ${quoted(`${name}=${content ?? ""}`)}`),
    partition === null ? "" : ` -p ${partition}`,
    compression === "none" ? "" : ` --compression ${compression}`,
    value === null ? " --tombstones" : "",
  ].join("");
  const encoded = (text: string | null): string => (text === null ? "None" : `${pythonText(text)}.encode()`);
  const given = [
    pythonText(topic),
    isBinary ? `base64.b64decode(${pythonText(value)})` : encoded(value),
    key === null ? "" : `key=${encoded(key)}`,
    headers.length ? `headers=[${headers.map(([name, content]) => `(${pythonText(name)}, ${encoded(content)})`).join(", ")}]` : "",
    partition === null ? "" : `partition=${partition}`,
  ].filter(Boolean);
  const settings = compression === "none" ? "" : `, compression_type="${compression}"`;
  const python =
    `${isBinary ? "import base64\n\n" : ""}from moldau import Producer\n\n` +
    `with Producer("${location.hostname}:9092"${settings}) as producer:\n    producer.send(${given.join(", ")}).result()`;
  return command(isBinary ? "" : moldau, "POST", `/topics/${part(topic)}/records`, sent, python);
}

export function showGroup(group: string): Command {
  return command(`moldau group describe ${quoted(group)}`, "GET", `/groups/${part(group)}`);
}

export function deleteGroup(group: string): Command {
  return command(`moldau group delete ${quoted(group)}`, "DELETE", `/groups/${part(group)}`);
}

export function request(moldau: string, method: string, path: string, body?: unknown): Command {
  return command(moldau, method, path, body);
}

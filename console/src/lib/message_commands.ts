/** Producing and searching as commands. */

import type { Params } from "../api/client";
import type { RecordsSent } from "../api/types";
import { kafkaAddresses } from "./addresses";
import { type Command, command, moldau, query } from "./commands";
import { readJsonTerm } from "./filters";
import { pythonText } from "./quoting";

// ---- producing

/** One message. What an argument would change has no command of moldau. */
export function produce(topic: string, sent: RecordsSent): Command {
  return command(produceLine(topic, sent), "POST", ["topics", topic, "records"], sent, producePython(topic, sent));
}

function produceLine(topic: string, sent: RecordsSent): string {
  const { key, value, headers = [], partition = null } = sent.records[0]!;
  const { compression = "none" } = sent;
  const isBinary =
    (value !== null && sent.value_encoding === "base64") ||
    (key !== null && sent.key_encoding === "base64") ||
    (headers.length > 0 && sent.header_encoding === "base64");
  // A line ends there; and a header has a text, after the first "=".
  const isOther =
    /[\r\n]$/.test(value ?? "") || headers.some(([name, content]) => content === null || name === "" || name.includes("="));
  if (isBinary || isOther) return "";
  return moldau("kafka", "produce", [topic], [
    "-m",
    value ?? "",
    ...(key === null ? [] : ["--key", key]),
    ...headers.flatMap(([name, content]) => ["-H", `${name}=${content}`]),
    ...(partition === null ? [] : ["-p", partition]),
    ...(compression === "none" ? [] : ["--compression", compression]),
    ...(value === null ? ["--tombstones"] : []),
  ]);
}

function producePython(topic: string, sent: RecordsSent): string {
  const { key, value, headers = [], partition = null } = sent.records[0]!;
  const { compression = "none" } = sent;
  let decodes = false;
  const encoded = (text: string | null, encoding: string | undefined): string => {
    if (text === null) return "None";
    if (encoding !== "base64") return `${pythonText(text)}.encode()`;
    decodes = true;
    return `base64.b64decode(${pythonText(text)})`;
  };
  const pairs = headers.map(([name, content]) => `(${pythonText(name)}, ${encoded(content, sent.header_encoding)})`);
  const given = [
    pythonText(topic),
    encoded(value, sent.value_encoding),
    ...(key === null ? [] : [`key=${encoded(key, sent.key_encoding)}`]),
    ...(pairs.length ? [`headers=[${pairs.join(", ")}]`] : []),
    ...(partition === null ? [] : [`partition=${partition}`]),
  ];
  const settings = compression === "none" ? "" : `, compression_type="${compression}"`;
  return (
    `${decodes ? "import base64\n\n" : ""}from moldau import Producer\n\n` +
    `with Producer(${pythonText(kafkaAddresses())}${settings}) as producer:\n    producer.send(${given.join(", ")}).result()`
  );
}

// ---- searching

const LAST = 100;
/** Of moldau's filters. */
const PATTERN_MAX = 500;
const FILTER_MAX = 4096;

/** Messages that fit the parameters of a search, as the page gives them to the API. */
export function search(topic: string, params: Params): Command {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) for (const one of texts(value)) asked.append(name, one);
  return query(searchLine(topic, params), ["topics", topic, "search"], asked);
}

function texts(value: Params[string]): string[] {
  return (Array.isArray(value) ? value : [value]).filter((one) => one !== null && one !== undefined && one !== "").map(String);
}

function searchLine(topic: string, params: Params): string {
  const terms = [
    ...texts(params.contains).map(containing),
    ...texts(params.key).map((key) => `key = ${literal(key)}`),
    ...texts(params.header).map(withHeader),
    ...texts(params.json).map(withJson),
  ];
  const filter = terms.join(" and ");
  if (terms.includes(null) || filter.length > FILTER_MAX) return "";
  return moldau("kafka", "consume", [topic], [
    "--offset",
    startOf(params, filter !== ""),
    ...texts(params.partition).flatMap((one) => ["--partition", one]),
    ...(filter ? ["--filter", filter] : []),
    "--exit-at-end",
  ]);
}

/** moldau reads forward: the newest that fit are found on the way from the oldest. */
function startOf(params: Params, isFiltered: boolean): string {
  const [offset] = texts(params.offset);
  const [time] = texts(params.time);
  if (offset !== undefined) return offset;
  if (time !== undefined) return `@${new Date(Number(time)).toISOString()}`;
  return params.direction === "oldest" || isFiltered ? "beginning" : `-${LAST}`;
}

/** Of the language of --filter, in which a backslash stands for itself before most characters. */
function literal(text: string): string {
  return `"${text.replace(/[\\"]/g, "\\$&")}"`;
}

function containing(text: string): string | null {
  const pattern = text.replace(/[.^$*+?{}[\]\\|()]/g, "\\$&");
  return pattern.length > PATTERN_MAX ? null : `value ~ ${literal(pattern)}`;
}

function withHeader(text: string): string {
  const at = text.indexOf(":");
  return at < 0 ? `header.${literal(text)}` : `header.${literal(text.slice(0, at))} = ${literal(text.slice(at + 1))}`;
}

/** A path, or PATH=VALUE. Null: moldau cannot tell a null from what is missing. */
function withJson(text: string): string | null {
  const term = readJsonTerm(text);
  if ("rest" in term) return null;
  const path = term.path.map((one) => (/^\d{1,9}$/.test(one) ? `[${one}]` : `.${/^[A-Za-z_]\w*$/.test(one) ? one : literal(one)}`)).join("");
  const field = path.startsWith("[") ? `.${path}` : path;
  const value = term.equals;
  if (value === null) return `(${field} or ${field} = false)`;
  if (value === "null") return null;
  const isTyped = /^(true|false|-?\d{1,40}(\.\d{1,40})?([eE][+-]?\d{1,3})?)$/.test(value);
  return isTyped ? `(${field} = ${value} or ${field} = ${literal(value)})` : `${field} = ${literal(value)}`;
}

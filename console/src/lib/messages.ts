/** Messages as the page shows them: what kind of content, a short form, files to download. */

import type { Message } from "../api/types";
import { fromBase64, hexDump } from "./hex";
import { indented, type Json, parseJson } from "./json";

/** Characters of a line of a dump, which shows sixteen bytes. */
const HEX_LINE = 78;

export type Content =
  | { kind: "null" }
  | { kind: "empty" }
  | { kind: "json"; text: string; json: Json }
  | { kind: "text"; text: string }
  | { kind: "bytes"; data: Uint8Array };

const PREVIEW_MAX = 300;
/** Longer ones are shown as they were sent: to read them would keep the page from answering. */
export const JSON_READ_MAX = 2_000_000;

function listed(text: string | null, base64: string | null | undefined): Content {
  if (base64 !== null && base64 !== undefined) return { kind: "bytes", data: fromBase64(base64) };
  if (text === null) return { kind: "null" };
  return text === "" ? { kind: "empty" } : { kind: "text", text };
}

function contentOf(text: string | null, base64: string | null | undefined): Content {
  const found = listed(text, base64);
  if (found.kind !== "text" || found.text.length > JSON_READ_MAX || !/^\s*[[{]/.test(found.text)) return found;
  const json = parseJson(found.text);
  return json === null ? found : { kind: "json", text: found.text, json };
}

export function valueOf(message: Message): Content {
  return contentOf(message.value, message.value_base64);
}

export function keyOf(message: Message): Content {
  return contentOf(message.key, message.key_base64);
}

/** The same in a list, which shows JSON as the text that it is: to read all of them would take long. */
export function listedValueOf(message: Message): Content {
  return listed(message.value, message.value_base64);
}

export function listedKeyOf(message: Message): Content {
  return listed(message.key, message.key_base64);
}

/** The end of a transaction: no message of a producer. */
export function isMarker(message: Message): boolean {
  return message.kind === "commit" || message.kind === "abort";
}

export type Part = { text: string; isAll: boolean };

/** As lines: the first of it, up to about `most` characters. */
export function firstOf(content: Content, most: number): Part {
  switch (content.kind) {
    case "json":
      // What is cut off at the end of a line may be cut within it.
      return firstOfText(indented(content.json, most), most);
    case "text":
      return firstOfText(content.text, most);
    case "bytes": {
      const lines = Math.ceil(most / HEX_LINE);
      return { text: hexDump(content.data, lines), isAll: content.data.length <= lines * 16 };
    }
    default:
      return { text: "", isAll: true };
  }
}

function firstOfText(text: string, most: number): Part {
  if (text.length <= most) return { text, isAll: true };
  // Two halves of a character stay together.
  const end = /[\ud800-\udbff]/.test(text[most - 1]!) ? most - 1 : most;
  return { text: text.slice(0, end), isAll: false };
}

/** One line of it. Control characters, which could be taken for others, are shown as such. */
export function preview(content: Content): string {
  switch (content.kind) {
    case "null":
      return "";
    case "empty":
      return "";
    case "bytes":
      return [...content.data.subarray(0, 40)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    default:
      return content.text.slice(0, PREVIEW_MAX).replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "·");
  }
}

export function identity(message: Message): string {
  return `${message.partition}-${message.offset}`;
}

export function ndjson(messages: Message[]): string {
  return messages.map((one) => JSON.stringify(one) + "\n").join("");
}

const COLUMNS = [
  "partition",
  "offset",
  "timestamp",
  "kind",
  "is_cut",
  "value_bytes",
  "key",
  "value",
  "headers",
  "key_base64",
  "value_base64",
] as const;

/** One that is no text is told from a text that looks the same. */
function headersOf({ headers, binary_headers = [] }: Message): unknown[] {
  return headers.map(([name, content], at) => [name, binary_headers.includes(at) ? { base64: content } : content]);
}

/** What a spreadsheet would run; and what is like that once it is guarded, so that no two texts become one. */
const FORMULA = /^'*[=+\-@\t\r]/;
const NEGATIVE_NUMBER = /^-\d+(\.\d+)?(e[+-]?\d+)?$/i;

function guarded(text: string): string {
  return FORMULA.test(text) && !NEGATIVE_NUMBER.test(text) ? `'${text}` : text;
}

export function csv(messages: Message[]): string {
  const cell = (value: unknown): string => {
    if (value === null || value === undefined) return "";
    // Not the same as null, to most that read it.
    if (value === "") return '""';
    const safe = typeof value === "string" ? guarded(value) : JSON.stringify(value);
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [COLUMNS.join(","), ...messages.map((one) => COLUMNS.map((name) => cell(name === "is_cut" ? (one.is_cut ?? false) : name === "headers" ? headersOf(one) : one[name])).join(","))].join("\r\n") + "\r\n";
}

export function download(name: string, type: string, content: string | Uint8Array<ArrayBuffer>): void {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

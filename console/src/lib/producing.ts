/** What is typed to be produced, and the request it becomes. A message that is sent again stays what it was. */

import type { Compression, RecordSent, RecordsSent } from "../api/types";
import { fromBase64, toBase64 } from "./hex";
import { fill } from "./template";

export type HeaderTyped = {
  name: string;
  content: string;
  as: "text" | "base64" | "null";
  /** It came with a message: its name may be empty. */
  isGiven: boolean;
};

/** The bytes of a value that is not typed. */
export type FileGiven = { name: string; base64: string; size: number };

export type Typed = {
  hasKey: boolean;
  key: string;
  keyAs: "text" | "base64";
  value: string;
  isTombstone: boolean;
  file: FileGiven | null;
  headers: HeaderTyped[];
  partition: string;
  times: number;
  compression: Compression;
  /** {{n}} and the others are replaced. */
  isTemplate: boolean;
};

/** A message with the bytes of its headers in base64. */
export type Exact = {
  key: string | null;
  value: string | null;
  headers: [string, string | null][];
  key_base64?: string | null;
  value_base64?: string | null;
};

/** A request takes 4 MiB, and bytes become longer in it by a third. */
export const FILE_BYTES_MAX = 2_900_000;
/** Longer text makes a field for typing slow. */
const TYPED_MAX = 500_000;

export function empty(): Typed {
  return {
    hasKey: false,
    key: "",
    keyAs: "text",
    value: "",
    isTombstone: false,
    file: null,
    headers: [],
    partition: "",
    times: 1,
    compression: "none",
    isTemplate: true,
  };
}

export function again(message: Exact): Typed {
  const { key = null, key_base64 = null, value, value_base64 = null } = message;
  const bytes = value_base64 ?? (value !== null && value.length > TYPED_MAX ? encoded(value) : null);
  const isTyped = key !== null && fitsOneLine(key);
  return {
    ...empty(),
    hasKey: key !== null || key_base64 !== null,
    key: isTyped ? key : (key_base64 ?? (key === null ? "" : encoded(key))),
    keyAs: isTyped || (key === null && key_base64 === null) ? "text" : "base64",
    value: bytes === null ? (value ?? "") : "",
    isTombstone: value === null && value_base64 === null,
    file: bytes === null ? null : { name: "that of the message", base64: bytes, size: fromBase64(bytes).length },
    headers: message.headers.map(([name, content]) => header(name, content)),
    isTemplate: false,
  };
}

function header(name: string, base64: string | null): HeaderTyped {
  const found = { name, isGiven: true };
  if (base64 === null) return { ...found, content: "", as: "null" };
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(fromBase64(base64));
    if (fitsOneLine(text)) return { ...found, content: text, as: "text" };
  } catch {
    // Bytes that are no text.
  }
  return { ...found, content: base64, as: "base64" };
}

/** A field of one line drops the ends of lines. */
function fitsOneLine(text: string): boolean {
  return !/[\r\n]/.test(text);
}

function encoded(text: string): string {
  return toBase64(new TextEncoder().encode(text));
}

/** `count` messages, of which the first has the number `from`. */
export function request(typed: Typed, from: number, count: number): RecordsSent {
  const isBinary = typed.headers.some((one) => one.as === "base64");
  const found: RecordsSent = {
    records: Array.from({ length: count }, (_, at) => record(typed, from + at, isBinary)),
  };
  if (typed.hasKey && typed.keyAs === "base64") found.key_encoding = "base64";
  if (typed.file && !typed.isTombstone) found.value_encoding = "base64";
  if (isBinary) found.header_encoding = "base64";
  if (typed.compression !== "none") found.compression = typed.compression;
  return found;
}

function record(typed: Typed, at: number, hasBinaryHeaders: boolean): RecordSent {
  const filled = (text: string): string => (typed.isTemplate ? fill(text, at) : text);
  const found: RecordSent = {
    key: !typed.hasKey ? null : typed.keyAs === "base64" ? typed.key : filled(typed.key),
    value: typed.isTombstone ? null : typed.file ? typed.file.base64 : filled(typed.value),
  };
  if (typed.headers.length)
    found.headers = typed.headers.map((one) => {
      if (one.as === "null") return [one.name, null];
      if (one.as === "base64") return [one.name, one.content];
      return [one.name, hasBinaryHeaders ? encoded(filled(one.content)) : filled(one.content)];
    });
  if (typed.partition !== "") found.partition = Number(typed.partition);
  return found;
}

// ---- what was typed, while another page is looked at

const KEPT_MAX = 5;
const kept = new Map<string, Typed>();

export function keep(topic: string, typed: Typed): void {
  kept.delete(topic);
  kept.set(topic, typed);
  for (const oldest of kept.keys()) {
    if (kept.size <= KEPT_MAX) break;
    kept.delete(oldest);
  }
}

export function keptFor(topic: string): Typed | null {
  return kept.get(topic) ?? null;
}

/** How values of a topic are shown: by themselves, or as what the reader says that they are. */

import { avroReader } from "./avro";
import { fromBase64 } from "./hex";
import type { Json } from "./json";
import type { Message } from "../api/types";
import { parseProtobuf } from "./protobuf";

export const SHOWN_AS = [
  { name: "auto", title: "Automatic" },
  { name: "text", title: "Text" },
  { name: "hex", title: "Hex" },
  { name: "protobuf", title: "Protobuf" },
  { name: "avro", title: "Avro" },
] as const;

const DECODED_MAX = 2_000_000;

export type ShownAs = (typeof SHOWN_AS)[number]["name"];

/** Of a schema registry: a zero, then the id of the schema. */
export function registryId(data: Uint8Array): number | null {
  return data.length > 5 && data[0] === 0 ? new DataView(data.buffer, data.byteOffset).getUint32(1) : null;
}

export function bytesOf(message: Message): Uint8Array<ArrayBuffer> | null {
  if (message.value_base64 !== undefined && message.value_base64 !== null) return fromBase64(message.value_base64);
  return message.value === null ? null : new TextEncoder().encode(message.value);
}

export type Decoded = { json: Json | null; error: string };

/** Throws nothing: what cannot be decoded says why. */
export function decode(message: Message, as: "protobuf" | "avro", schema: string): Decoded {
  const whole = bytesOf(message);
  if (whole === null) return { json: null, error: "It has no value." };
  if (message.is_cut) return { json: null, error: "Load all of it first." };
  if (whole.length > DECODED_MAX) return { json: null, error: "It is too large to be decoded here." };
  const isFramed = registryId(whole) !== null;
  try {
    if (as === "avro") {
      const read = avroReader(schema);
      return { json: read(isFramed ? whole.subarray(5) : whole), error: "" };
    }
    // A registry puts the place of the message in its schema before it: mostly a single zero.
    const found = (isFramed ? parseProtobuf(whole.subarray(whole[5] === 0 ? 6 : 5)) : null) ?? parseProtobuf(whole);
    return found === null ? { json: null, error: "It is no message of Protobuf." } : { json: found, error: "" };
  } catch (error) {
    return { json: null, error: error instanceof Error ? error.message : String(error) };
  }
}

const KEY = "moldau.schema.";

/** Schemas are kept by the browser, for each topic. */
export function storedSchema(topic: string): string {
  try {
    return localStorage.getItem(KEY + topic) ?? "";
  } catch {
    return "";
  }
}

export function storeSchema(topic: string, schema: string): void {
  try {
    if (schema) localStorage.setItem(KEY + topic, schema);
    else localStorage.removeItem(KEY + topic);
  } catch {
    // A browser that stores nothing: the schema lasts as long as the page.
  }
}

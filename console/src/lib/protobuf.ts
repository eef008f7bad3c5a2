/** Protobuf without its schema: numbers of fields, and what their bytes can mean. */

import type { Json } from "./json";

const DEPTH_MAX = 20;
const FIELD_MAX = 536_870_911n;

/** null: it is no message of Protobuf. */
export function parseProtobuf(data: Uint8Array, depth = 0): Json | null {
  if (!data.length || depth > DEPTH_MAX) return null;
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  const fields = new Map<string, Json[]>();
  let at = 0;

  function varint(): bigint | null {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const byte = data[at++];
      if (byte === undefined) return null;
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return BigInt.asUintN(64, value);
    }
    return null;
  }

  while (at < data.length) {
    const tag = varint();
    if (tag === null || tag >> 3n === 0n || tag >> 3n > FIELD_MAX) return null;
    let found: Json | null = null;
    switch (Number(tag & 7n)) {
      case 0: {
        const value = varint();
        if (value === null) return null;
        // As of int64: a negative number has its highest bit set.
        found = { kind: "number", text: String(BigInt.asIntN(64, value)) };
        break;
      }
      case 1:
        if (at + 8 > data.length) return null;
        found = fixed(view.getBigInt64(at, true), view.getFloat64(at, true));
        at += 8;
        break;
      case 2: {
        const size = varint();
        if (size === null || size > BigInt(data.length - at)) return null;
        found = lengthDelimited(data.subarray(at, at + Number(size)), depth);
        at += Number(size);
        break;
      }
      case 5:
        if (at + 4 > data.length) return null;
        found = fixed(BigInt(view.getInt32(at, true)), view.getFloat32(at, true));
        at += 4;
        break;
      default:
        return null;
    }
    const name = String(tag >> 3n);
    const known = fields.get(name);
    if (known) known.push(found);
    else fields.set(name, [found]);
  }
  return {
    kind: "object",
    entries: [...fields].map(([name, values]) => [name, values.length === 1 ? values[0]! : { kind: "array", items: values }]),
  };
}

/** Eight or four bytes are an integer or a fraction. What is a plain fraction is taken for one. */
function fixed(whole: bigint, fraction: number): Json {
  const size = Math.abs(fraction);
  return { kind: "number", text: size > 1e-6 && size < 1e15 ? String(fraction) : String(whole) };
}

function lengthDelimited(data: Uint8Array, depth: number): Json {
  const text = asText(data);
  if (text !== null) return { kind: "string", text };
  return parseProtobuf(data, depth + 1) ?? { kind: "string", text: hex(data) };
}

export function asText(data: Uint8Array): string | null {
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data);
    return /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/.test(text) ? null : text;
  } catch {
    return null;
  }
}

export function hex(data: Uint8Array): string {
  return [...data].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

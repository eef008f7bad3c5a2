/** Avro in its binary encoding, read with the schema that wrote it. Numbers stay exact. */

import type { Json } from "./json";
import { hex } from "./protobuf";

type Schema = string | Schema[] | { [name: string]: unknown; type: unknown };

const ITEMS_MAX = 100_000;
const DEPTH_MAX = 100;

export class AvroError extends Error {}

/** Reads messages of one schema. Throws AvroError for one that is not understood. */
export function avroReader(text: string): (data: Uint8Array) => Json {
  let root: Schema;
  try {
    root = JSON.parse(text) as Schema;
  } catch {
    throw new AvroError("The schema is no JSON.");
  }
  const named = new Map<string, Schema>();
  collect(root, "", named);
  return (data) => {
    const reader = new Reader(data, named);
    const found = reader.read(root, "", 0);
    if (!reader.isAtEnd) throw new AvroError("The schema does not fit: there are bytes left.");
    return found;
  };
}

function fullName(schema: Record<string, unknown>, space: string): string {
  const name = String(schema["name"]);
  const own = schema["namespace"];
  const inside = typeof own === "string" ? own : space;
  return name.includes(".") || !inside ? name : `${inside}.${name}`;
}

function spaceOf(name: string): string {
  return name.includes(".") ? name.slice(0, name.lastIndexOf(".")) : "";
}

function collect(schema: Schema, space: string, named: Map<string, Schema>): void {
  if (typeof schema === "string" || schema === null) return;
  if (Array.isArray(schema)) return schema.forEach((one) => collect(one, space, named));
  const type = schema.type as Schema;
  if (schema["name"] !== undefined && ["record", "error", "enum", "fixed"].includes(String(type))) {
    const name = fullName(schema, space);
    named.set(name, schema);
    for (const field of fieldsOf(schema)) collect(field.type, spaceOf(name), named);
  } else if (type === "array") collect(schema["items"] as Schema, space, named);
  else if (type === "map") collect(schema["values"] as Schema, space, named);
  else if (typeof type === "object") collect(type, space, named);
}

function fieldsOf(schema: Record<string, unknown>): { name: string; type: Schema }[] {
  return Array.isArray(schema["fields"]) ? (schema["fields"] as { name: string; type: Schema }[]) : [];
}

const number = (value: unknown): Json => ({ kind: "number", text: String(value) });
const string = (text: string): Json => ({ kind: "string", text });
const word = (text: "true" | "false" | "null"): Json => ({ kind: "word", text });

class Reader {
  #at = 0;
  readonly #view: DataView;

  constructor(
    private readonly data: Uint8Array,
    private readonly named: Map<string, Schema>,
  ) {
    this.#view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  }

  get isAtEnd(): boolean {
    return this.#at === this.data.length;
  }

  read(schema: Schema, space: string, depth: number): Json {
    if (depth > DEPTH_MAX) throw new AvroError("It is nested too deep.");
    if (Array.isArray(schema)) {
      const chosen = schema[this.#size()];
      if (chosen === undefined) throw new AvroError("The schema does not fit: it has no such branch.");
      return this.read(chosen, space, depth + 1);
    }
    if (typeof schema === "string") return this.#simple(schema, space, depth);
    const type = schema.type as Schema;
    switch (type) {
      case "record":
      case "error": {
        const inside = spaceOf(fullName(schema, space));
        return {
          kind: "object",
          entries: fieldsOf(schema).map(({ name, type }) => [name, this.read(type, inside, depth + 1)]),
        };
      }
      case "enum": {
        const symbol = (schema["symbols"] as string[] | undefined)?.[this.#size()];
        if (symbol === undefined) throw new AvroError("The schema does not fit: it has no such symbol.");
        return string(symbol);
      }
      case "fixed":
        return string(hex(this.#take(Number(schema["size"]))));
      case "array":
        return { kind: "array", items: this.#blocks(() => this.read(schema["items"] as Schema, space, depth + 1)) };
      case "map":
        return {
          kind: "object",
          entries: this.#blocks((): [string, Json] => [this.#text(), this.read(schema["values"] as Schema, space, depth + 1)]),
        };
      default:
        // A logical type: shown as what it is written as.
        return this.read(type, space, depth + 1);
    }
  }

  #simple(type: string, space: string, depth: number): Json {
    switch (type) {
      case "null":
        return word("null");
      case "boolean":
        return word(this.#take(1)[0] ? "true" : "false");
      case "int":
      case "long":
        return number(this.#long());
      case "float":
        this.#take(4);
        return number(this.#view.getFloat32(this.#at - 4, true));
      case "double":
        this.#take(8);
        return number(this.#view.getFloat64(this.#at - 8, true));
      case "string":
        return string(this.#text());
      case "bytes":
        return string(hex(this.#take(this.#size())));
    }
    const known = this.named.get(type) ?? this.named.get(space ? `${space}.${type}` : type);
    if (known === undefined) throw new AvroError(`The schema has no type '${type}'.`);
    return this.read(known, space, depth + 1);
  }

  #blocks<T>(item: () => T): T[] {
    const found: T[] = [];
    for (;;) {
      let count = this.#long();
      if (count === 0n) return found;
      if (count < 0n) {
        count = -count;
        this.#long(); // The size of the block, which is read anyway.
      }
      if (BigInt(found.length) + count > ITEMS_MAX) throw new AvroError("It has too many items.");
      for (; count > 0n; count--) found.push(item());
    }
  }

  #long(): bigint {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const byte = this.#take(1)[0]!;
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return BigInt.asIntN(64, (value >> 1n) ^ -(value & 1n));
    }
    throw new AvroError("The schema does not fit: a number has no end.");
  }

  #size(): number {
    const size = this.#long();
    if (size < 0n || size > 1n << 31n) throw new AvroError("The schema does not fit: a length is wrong.");
    return Number(size);
  }

  #text(): string {
    return new TextDecoder().decode(this.#take(this.#size()));
  }

  #take(size: number): Uint8Array {
    if (!(size >= 0) || this.#at + size > this.data.length) throw new AvroError("The schema does not fit: there are too few bytes.");
    this.#at += size;
    return this.data.subarray(this.#at - size, this.#at);
  }
}

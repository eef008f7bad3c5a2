import { describe, expect, it } from "vitest";
import type { Message } from "../src/api/types";
import { avroReader } from "../src/lib/avro";
import { decode } from "../src/lib/decoding";
import { toBase64 } from "../src/lib/hex";
import { indented, type Json } from "../src/lib/json";
import { parseProtobuf } from "../src/lib/protobuf";

const bytes = (text: string): Uint8Array => Uint8Array.from(text.split(" ").map((one) => parseInt(one, 16)));
const flat = (json: Json | null): string => (json === null ? "null" : indented(json).replace(/\s+/g, " "));

function message(data: Uint8Array): Message {
  return { partition: 0, offset: 0, timestamp: 0, key: null, value: null, headers: [], value_base64: toBase64(data) };
}

describe("Protobuf without a schema", () => {
  it("reads numbers, text and messages in messages", () => {
    // The examples of the encoding's own documentation.
    expect(flat(parseProtobuf(bytes("08 96 01")))).toBe('{ "1": 150 }');
    expect(flat(parseProtobuf(bytes("12 07 74 65 73 74 69 6e 67")))).toBe('{ "2": "testing" }');
    expect(flat(parseProtobuf(bytes("1a 03 08 96 01")))).toBe('{ "3": { "1": 150 } }');
  });

  it("keeps 64 bits exact, and the sign", () => {
    expect(flat(parseProtobuf(bytes("08 ff ff ff ff ff ff ff ff 7f")))).toBe('{ "1": 9223372036854775807 }');
    expect(flat(parseProtobuf(bytes("08 ff ff ff ff ff ff ff ff ff 01")))).toBe('{ "1": -1 }');
  });

  it("shows a field that repeats as a list", () => {
    expect(flat(parseProtobuf(bytes("08 01 08 02")))).toBe('{ "1": [ 1, 2 ] }');
  });

  it.each(["", "08", "0f 01", "12 09 74", "00 01", "ff ff ff ff ff ff ff ff ff ff ff"])("refuses %s", (text) => {
    expect(parseProtobuf(text ? bytes(text) : new Uint8Array())).toBeNull();
  });
});

describe("Avro", () => {
  const person = JSON.stringify({
    type: "record",
    name: "Person",
    namespace: "example",
    fields: [
      { name: "id", type: "long" },
      { name: "name", type: ["null", "string"] },
      { name: "tags", type: { type: "array", items: "string" } },
      { name: "born", type: { type: "int", logicalType: "date" } },
      { name: "best", type: ["null", "Person"] },
    ],
  });

  it("reads a record with its union, list and reference to itself", () => {
    const data = bytes("54 02 08 61 6e 6e 61 02 02 78 00 14 02 02 00 00 00 00");
    expect(flat(avroReader(person)(data))).toBe(
      '{ "id": 42, "name": "anna", "tags": [ "x" ], "born": 10, "best": { "id": 1, "name": null, "tags": [], "born": 0, "best": null } }',
    );
  });

  it("keeps 64 bits exact", () => {
    expect(flat(avroReader('"long"')(bytes("fe ff ff ff ff ff ff ff ff 01")))).toBe("9223372036854775807");
  });

  it("reads what a schema registry framed", () => {
    const found = decode(message(bytes("00 00 00 00 07 54")), "avro", '"long"');
    expect(flat(found.json)).toBe("42");
  });

  it.each([
    ['"long"', "54 00", "bytes left"],
    ['"string"', "54", "too few bytes"],
    ['"Nothing"', "00", "no type"],
    ["{", "00", "no JSON"],
    ['{"type": "array", "items": "null"}', "fe ff ff ff 0f", "too many"],
    ['["null"]', "04", "no such branch"],
  ])("says why %s does not fit %s", (schema, data, why) => {
    const found = decode(message(bytes(data)), "avro", schema);
    expect(found.json).toBeNull();
    expect(found.error).toContain(why);
  });
});

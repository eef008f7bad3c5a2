import { expect, test } from "vitest";
import type { Message } from "../src/api/types";
import { csv, keyOf, listedKeyOf, listedValueOf, preview, shown, valueOf } from "../src/lib/messages";

const message = (more: Partial<Message>): Message => ({
  partition: 0,
  offset: 1,
  timestamp: 2,
  key: null,
  value: null,
  headers: [],
  ...more,
});

test("kinds of content", () => {
  expect(valueOf(message({})).kind).toBe("null");
  expect(valueOf(message({ value: "" })).kind).toBe("empty");
  expect(valueOf(message({ value: '{"a":1}' })).kind).toBe("json");
  expect(valueOf(message({ value: "{a" })).kind).toBe("text");
  expect(keyOf(message({ key_base64: "/w==" }))).toEqual({ kind: "bytes", data: new Uint8Array([255]) });
});

test("a preview shows characters that hide or turn text", () => {
  expect(preview(valueOf(message({ value: "a\n\u202eb\u0000" })))).toBe("a··b·");
});

test("bytes are shown in hex", () => {
  const dump = shown(valueOf(message({ value_base64: btoa("Moldau\u0000\u00ff") })));
  expect(dump).toBe("00000000  4d 6f 6c 64 61 75 00 ff                           Moldau··");
});

test("a spreadsheet runs nothing of a message", () => {
  const [, line] = csv([message({ key: "=1+1", value: 'say "hi", all', headers: [["h", "v"]] })]).split("\r\n");
  expect(line).toBe(`0,1,2,'=1+1,"say ""hi"", all","[[""h"",""v""]]",,`);
});

test("a list shows JSON as its text", () => {
  expect(listedValueOf(message({ value: '{"a": 1}' }))).toEqual({ kind: "text", text: '{"a": 1}' });
  expect(listedKeyOf(message({ key: "" }))).toEqual({ kind: "empty" });
  expect(listedValueOf(message({})).kind).toBe("null");
  expect(listedValueOf(message({ value_base64: "/w==" })).kind).toBe("bytes");
});

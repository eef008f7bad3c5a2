import { expect, test } from "vitest";
import type { Message } from "../src/api/types";
import { csv, firstOf, JSON_READ_MAX, keyOf, listedKeyOf, listedValueOf, preview, valueOf } from "../src/lib/messages";

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
  const dump = firstOf(valueOf(message({ value_base64: btoa("Moldau\u0000\u00ff") })), 1000);
  expect(dump.isAll).toBe(true);
  expect(dump.text).toBe("00000000  4d 6f 6c 64 61 75 00 ff                           Moldau··");
});

test("a spreadsheet runs nothing of a message", () => {
  const [, line] = csv([message({ key: "=1+1", value: 'say "hi", all', headers: [["h", "v"]] })]).split("\r\n");
  expect(line).toBe(`0,1,2,,false,,'=1+1,"say ""hi"", all","[[""h"",""v""]]",,`);
});

test("CSV guards formulas so that each text can be told, and leaves numbers as they are", () => {
  const texts = ["=1", "'=1", "''=1", "'a", "-1+cmd", "-9223372036854775808", "-1.5e-7", "-1\n=2"];
  const found = texts.map((value) => csv([message({ key: "k", value })]).split("\r\n")[1]!.split(",")[7]);
  expect(found).toEqual(["'=1", "''=1", "'''=1", "'a", "'-1+cmd", "-9223372036854775808", "-1.5e-7", `"'-1\n=2"`]);
});

test("CSV tells bytes of a header from a text that looks the same", () => {
  const [, line] = csv([message({ headers: [["a", "/w=="], ["b", "/w=="]], binary_headers: [1] })]).split("\r\n");
  expect(line).toBe(`0,1,2,,false,,,,"[[""a"",""/w==""],[""b"",{""base64"":""/w==""}]]",,`);
});

test("CSV tells what is cut, a tombstone from an empty value, and a marker", () => {
  const lines = csv([
    message({ kind: "tombstone", key: "k" }),
    message({ value: "" }),
    message({ value: "ab", is_cut: true, value_bytes: 9 }),
    message({ kind: "abort" }),
  ]).split("\r\n");
  expect(lines).toEqual([
    "partition,offset,timestamp,kind,is_cut,value_bytes,key,value,headers,key_base64,value_base64",
    "0,1,2,tombstone,false,,k,,[],,",
    '0,1,2,,false,,,"",[],,',
    "0,1,2,,true,9,,ab,[],,",
    "0,1,2,abort,false,,,,[],,",
    "",
  ]);
});

test("a list shows JSON as its text", () => {
  expect(listedValueOf(message({ value: '{"a": 1}' }))).toEqual({ kind: "text", text: '{"a": 1}' });
  expect(listedKeyOf(message({ key: "" }))).toEqual({ kind: "empty" });
  expect(listedValueOf(message({})).kind).toBe("null");
  expect(listedValueOf(message({ value_base64: "/w==" })).kind).toBe("bytes");
});

test("of what is long the first part is shown", () => {
  expect(firstOf({ kind: "text", text: "abc" }, 3)).toEqual({ text: "abc", isAll: true });
  expect(firstOf({ kind: "text", text: "abcd" }, 3)).toEqual({ text: "abc", isAll: false });
  expect(firstOf({ kind: "text", text: "ab\u{1f600}d" }, 3)).toEqual({ text: "ab", isAll: false });
  const dump = firstOf({ kind: "bytes", data: new Uint8Array(10_000) }, 1000);
  expect(dump.text.split("\n").length).toBe(13);
  expect(dump.isAll).toBe(false);
  const list = valueOf(message({ value: JSON.stringify(Array(1000).fill({ id: 1 })) }));
  const part = firstOf(list, 100);
  expect(part.text).toBe(firstOf(list, 1e9).text.slice(0, 100));
  expect(part.isAll).toBe(false);
});

test("JSON of many megabytes is shown as it was sent", () => {
  const value = `{"a":"${"z".repeat(JSON_READ_MAX)}"}`;
  expect(valueOf(message({ value })).kind).toBe("text");
  expect(valueOf(message({ value: '{"a":"z"}' })).kind).toBe("json");
});

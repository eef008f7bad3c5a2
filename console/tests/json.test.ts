import { describe, expect, test } from "vitest";
import { hasFewer, indented, parseJson } from "../src/lib/json";

describe("JSON is read without losing anything", () => {
  test("numbers keep their digits", () => {
    const json = parseJson('{"id": 9007199254740993, "pi": 3.14159265358979323846, "e": 1e400}');
    expect(indented(json!)).toBe('{\n  "id": 9007199254740993,\n  "pi": 3.14159265358979323846,\n  "e": 1e400\n}');
  });

  test("names that are there twice stay", () => {
    expect(indented(parseJson('{"a":1,"a":2}')!)).toBe('{\n  "a": 1,\n  "a": 2\n}');
  });

  test("__proto__ is a name like others", () => {
    expect(parseJson('{"__proto__": {"x": 1}}')).toMatchObject({ entries: [["__proto__", { kind: "object" }]] });
  });

  test.each(["", "{", "[1,]", "{'a':1}", "01", "1.", "nul", '"\u0001"', '"\\x"', "[1] 2", "{\"a\":1,}"])("%j is none", (text) => {
    expect(parseJson(text)).toBeNull();
  });

  test.each(["0", "-0", "[]", "{}", " [ ] ", '"\\ud83d"', "null", "[[[]]]"])("%j is some", (text) => {
    expect(parseJson(text)).not.toBeNull();
  });

  test("what is nested too deep is not read, and breaks nothing", () => {
    expect(parseJson("[".repeat(100_000) + "]".repeat(100_000))).toBeNull();
  });

  test("what JSON.stringify writes is read back", () => {
    const value = { a: [1, "two\n\u2028", null, true, { b: {} }], "": [] };
    expect(JSON.parse(indented(parseJson(JSON.stringify(value))!))).toEqual(value);
  });

  test("a string of ten megabytes is read", () => {
    const text = "z\\n\u00e9".repeat(2_500_000);
    expect(parseJson(`{"a":"${text}"}`)).toMatchObject({ entries: [["a", { text: JSON.parse(`"${text}"`) }]] });
  });

  test("lines end where they are many", () => {
    const wide = parseJson("[".repeat(150) + Array(10_000).fill(1).join() + "]".repeat(150))!;
    const first = indented(wide, 50_000);
    expect(first.length).toBeLessThan(60_000);
    expect(indented(wide).startsWith(first.slice(0, 50_000))).toBe(true);
  });

  test("a tree is small or not", () => {
    expect(hasFewer(parseJson('{"a": [1, 2, {"b": 3}]}')!, 7)).toBe(true);
    expect(hasFewer(parseJson('{"a": [1, 2, {"b": 3}]}')!, 6)).toBe(false);
    expect(hasFewer(parseJson(JSON.stringify(Array(100).fill([1, 2, 3])))!, 300)).toBe(false);
  });
});

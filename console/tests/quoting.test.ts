import { execFileSync } from "node:child_process";
import { expect, test } from "vitest";
import { canBePasted, json, pythonText, pythonValue, quoted } from "../src/lib/quoting";

const HARMFUL = ["", "$(touch x)", "`touch x`", "it's", `a"b\\`, "a;b & c | d > e", "!!", "~", "*", "-rf", "two\nlines", "\\'", "é 日本 😀"];

test("a shell takes quoted text as one word, and as it is", () => {
  const printed = execFileSync("sh", ["-c", `printf '%s\\0' ${HARMFUL.map(quoted).join(" ")}`]).toString();
  expect(printed.split("\0").slice(0, -1)).toEqual(HARMFUL);
});

test("what is harmless is left as it is", () => {
  expect(quoted("orders.eu-1")).toBe("orders.eu-1");
  expect(quoted("it's $(rm)")).toBe(`'it'"'"'s $(rm)'`);
});

test("keys of a terminal cannot be pasted", () => {
  expect(["\u001b[201~", "\u0003", "a\rb", "\u009b", "\u007f"].map(canBePasted)).toEqual([false, false, false, false, false]);
  expect(canBePasted("two\nlines\tand é 日本 😀")).toBe(true);
});

test("JSON and Python's text have no keys of a terminal, and say the same", () => {
  const text = "\u001b[201~ \u007f \u009b \r\n \u2028 \"'\\ 😀";
  expect(canBePasted(json({ text }))).toBe(true);
  expect(JSON.parse(json({ text }))).toEqual({ text });
  expect(pythonText(text)).not.toMatch(/[\u0000-\u001f\u007f-\u009f]/);
});

test("a value is the same in Python", () => {
  expect(pythonValue({ a: [1, -2.5, null, true, false, "x'\""], b: undefined })).toBe(
    `{"a": [1, -2.5, None, True, False, "x'\\""], "b": None}`,
  );
});

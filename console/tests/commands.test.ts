import { beforeAll, expect, test, vi } from "vitest";
import { produce, quoted } from "../src/lib/commands";

beforeAll(() => {
  vi.stubGlobal("location", { origin: "http://b1:8080", hostname: "b1" });
});

test("what a shell could take for its own is quoted", () => {
  expect(quoted("orders.eu-1")).toBe("orders.eu-1");
  expect(quoted("it's $(rm)")).toBe(`'it'"'"'s $(rm)'`);
  expect(quoted("")).toBe("''");
});

test("a message with everything is the same message as a command", () => {
  const found = produce("orders", {
    records: [{ key: "k 1", value: '{"a": 1}', headers: [["trace", "x"]], partition: 2 }],
    compression: "zstd",
  });
  expect(found.moldau).toBe(
    `moldau produce orders -m '{"a": 1}' --key 'k 1' -H trace=x -p 2 --compression zstd`,
  );
  expect(found.curl).toContain("http://b1:8080/api/v1/topics/orders/records");
  expect(found.curl).toContain('"compression":"zstd"');
  expect(found.python).toContain('Producer("b1:9092", compression_type="zstd")');
  expect(found.python).toContain(
    'send("orders", "{\\"a\\": 1}".encode(), key="k 1".encode(), headers=[("trace", "x".encode())], partition=2)',
  );
});

test("a tombstone has no value", () => {
  const found = produce("orders", { records: [{ key: "k", value: null }] });
  expect(found.moldau).toBe("moldau produce orders -m '' --key k --tombstones");
  expect(found.python).toContain('send("orders", None, key="k".encode())');
});

test("bytes that are no text have no command", () => {
  const found = produce("orders", { records: [{ key: null, value: "//4=" }], value_encoding: "base64" });
  expect(found.moldau).toBe("");
  expect(found.curl).toContain('"value_encoding":"base64"');
  expect(found.python).toContain('base64.b64decode("//4=")');
});

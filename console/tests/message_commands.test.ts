import { beforeAll, expect, test, vi } from "vitest";
import { overview } from "../src/api/overview.svelte";
import { produce, search } from "../src/lib/message_commands";

beforeAll(() => {
  overview.latest = null;
  vi.stubGlobal("location", { origin: "http://b1:8080", hostname: "b1", port: "8080", protocol: "http:" });
});

test("a message with everything is the same message as a command", () => {
  const found = produce("orders", {
    records: [{ key: "k 1", value: '{"a": 1}', headers: [["trace", "x"]], partition: 2 }],
    compression: "zstd",
  });
  expect(found.moldau).toBe(`moldau produce orders -m '{"a": 1}' --key 'k 1' -H trace=x -p 2 --compression zstd`);
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

test("bytes that are no text have no command, and are bytes in the request and in Python", () => {
  const value = produce("orders", { records: [{ key: null, value: "//4=" }], value_encoding: "base64" });
  expect(value.moldau).toBe("");
  expect(value.curl).toContain('"value_encoding":"base64"');
  expect(value.python).toContain('import base64');
  expect(value.python).toContain('base64.b64decode("//4=")');
  const key = produce("orders", { records: [{ key: "//4=", value: "v" }], key_encoding: "base64" });
  expect(key.moldau).toBe("");
  expect(key.python).toContain('send("orders", "v".encode(), key=base64.b64decode("//4="))');
  const header = produce("orders", { records: [{ key: null, value: "v", headers: [["h", "/w=="], ["n", null]] }], header_encoding: "base64" });
  expect(header.moldau).toBe("");
  expect(header.python).toContain('headers=[("h", base64.b64decode("/w==")), ("n", None)]');
});

test.each([
  ["a header without a value", [["h", null]], "v"],
  ["a header with = in its name", [["a=b", "c"]], "v"],
  ["a value that ends like a line", [], "v\n"],
] as [string, [string, string | null][], string][])("%s has no command", (_, headers, value) => {
  expect(produce("orders", { records: [{ key: null, value, headers }] }).moldau).toBe("");
});

test("a search names all that is asked for", () => {
  const found = search("orders", { contains: "$(touch x)", key: "k1", header: "h:v", json: "a.b[0]=1", partition: "2", direction: "newest" });
  expect(found.moldau).toBe(
    `moldau consume orders --offset beginning --partition 2 ` +
      `--filter 'value ~ "\\\\$\\\\(touch x\\\\)" and key = "k1" and header."h" = "v" and (.a.b[0] = 1 or .a.b[0] = "1")' --exit-at-end`,
  );
  expect(found.curl).toBe(
    "curl -s 'http://b1:8080/api/v1/topics/orders/search?contains=%24%28touch+x%29&key=k1&header=h%3Av&json=a.b%5B0%5D%3D1&partition=2&direction=newest'",
  );
  expect(found.python).toContain("search?contains=%24%28touch+x%29&key=k1");
});

test.each([
  [{ direction: "newest" }, "--offset -100"],
  [{ direction: "oldest" }, "--offset beginning"],
  [{ direction: "oldest", offset: "17", time: "" }, "--offset 17"],
  [{ direction: "oldest", time: 1769860800123 }, "--offset @2026-01-31T12:00:00.123Z"],
])("a search of %o begins there", (params, option) => {
  expect(search("t", params).moldau).toBe(`moldau consume t ${option} --exit-at-end`);
});

test("what moldau cannot ask for has no command", () => {
  expect(search("t", { json: "a=null" }).moldau).toBe("");
  expect(search("t", { json: "a>1" }).moldau).toBe("");
  expect(search("t", { contains: "x".repeat(501) }).moldau).toBe("");
  expect(search("t", { contains: "\u001b" }).moldau).toBe("");
});

test("a quoted name in a path is one", () => {
  expect(search("t", { json: '"a.b=c"[0]=x' }).moldau).toContain(`--filter '."a.b=c"[0] = "x"'`);
});

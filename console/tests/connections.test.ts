import { expect, test } from "vitest";
import type { Connected } from "../src/api/types";
import { byClient, looked } from "../src/lib/connections";

const connected = (more: Partial<Connected>): Connected => ({
  client_id: "c",
  software: "lib",
  version: "1",
  user: "",
  address: "10.0.0.1:5000",
  listener: "kafka",
  protocol: "kafka",
  opened_at_ms: 1,
  requests: 0,
  bytes_in: 0,
  bytes_out: 0,
  throttled_ms: 0,
  errors: 0,
  idle_ms: 0,
  ...more,
});

test("a rate is what was added since the look before", () => {
  const first = looked(1, [connected({ requests: 10, bytes_in: 1000, bytes_out: 5 })], 10_000, undefined);
  expect(first.rows[0]!.rates).toEqual({ requests: null, bytes_in: null, bytes_out: null });
  const second = looked(1, [connected({ requests: 30, bytes_in: 5000, bytes_out: 5 })], 14_000, first);
  expect(second.rows[0]!.rates).toEqual({ requests: 5, bytes_in: 1000, bytes_out: 0 });
});

test("a new connection from the same address is another one", () => {
  const first = looked(1, [connected({ requests: 10 })], 0, undefined);
  const second = looked(1, [connected({ requests: 3, opened_at_ms: 2 })], 1000, first);
  expect(second.rows[0]!.rates.requests).toBeNull();
});

test("connections that look the same are told apart by their order", () => {
  const first = looked(1, [connected({ requests: 1 }), connected({ requests: 2 })], 0, undefined);
  const second = looked(1, [connected({ requests: 2 }), connected({ requests: 4 })], 1000, first);
  expect(new Set(second.rows.map((one) => one.key)).size).toBe(2);
  expect(second.rows.map((one) => one.rates.requests)).toEqual([1, 2]);
});

test("what is not counted, or counts anew, has no rate", () => {
  const first = looked(1, [connected({ requests: 9, bytes_in: null, bytes_out: 1 })], 0, undefined);
  const second = looked(1, [connected({ requests: 3, bytes_in: null, bytes_out: 3 })], 2000, first);
  expect(second.rows[0]!.rates).toEqual({ requests: null, bytes_in: null, bytes_out: 1 });
});

test("connections of a client are one client", () => {
  const before = [looked(1, [connected({ bytes_in: 0 })], 0, undefined), looked(2, [connected({ bytes_in: null })], 0, undefined)];
  const rows = [
    ...looked(1, [connected({ bytes_in: 500, requests: 2, errors: 1, user: "ann" })], 1000, before[0]).rows,
    ...looked(2, [connected({ bytes_in: null, requests: 3, throttled_ms: 7, software: "other" })], 1000, before[1]).rows,
    ...looked(2, [connected({ client_id: null, software: "curl" })], 1000, undefined).rows,
  ];
  const [client, none] = byClient(rows);
  expect(client).toMatchObject({
    client_id: "c",
    software: ["lib", "other"],
    users: ["ann"],
    brokers: [1, 2],
    connections: 2,
    errors: 1,
    throttled_ms: 7,
    requests: 5,
    bytes_in: 500,
    rates: { requests: 5, bytes_in: 500 },
  });
  expect(none).toMatchObject({ client_id: "", connections: 1, rates: { requests: null } });
});

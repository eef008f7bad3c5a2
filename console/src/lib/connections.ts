/** Connections of clients: how much goes over each, from one look to the next, and over all of a client. */

import type { Connected } from "../api/types";

export type Traffic = { requests: number | null; bytes_in: number | null; bytes_out: number | null };

export type Row = Connected & {
  broker: number;
  key: string;
  /** Per second; null until it was seen twice, and what is not counted. */
  rates: Traffic;
};

/** What a broker said, and when. */
export type Look = { at_ms: number; rows: readonly Row[] };

const UNKNOWN: Traffic = { requests: null, bytes_in: null, bytes_out: null };
const COUNTED = ["requests", "bytes_in", "bytes_out"] as const;

/** The connections of a broker, compared with an earlier look at the same. */
export function looked(broker: number, connections: readonly Connected[], at_ms: number, before: Look | undefined): Look {
  const known = new Map(before?.rows.map((one) => [one.key, one]));
  const seconds = before ? (at_ms - before.at_ms) / 1000 : 0;
  const same = new Map<string, number>();
  const rows = connections.map((one) => {
    const name = `${broker} ${one.listener} ${one.address} ${one.opened_at_ms}`;
    const number = (same.get(name) ?? 0) + 1;
    same.set(name, number);
    const key = `${name} ${number}`;
    const old = known.get(key);
    return { ...one, broker, key, rates: old && seconds > 0 ? compared(one, old, seconds) : UNKNOWN };
  });
  return { at_ms, rows };
}

function compared(now: Connected, old: Connected, seconds: number): Traffic {
  const found = { ...UNKNOWN };
  for (const name of COUNTED) {
    const [after, before] = [now[name], old[name]];
    if (after !== null && before !== null && after >= before) found[name] = (after - before) / seconds;
  }
  return found;
}

/** All connections of one client id. */
export type Client = Traffic & {
  client_id: string;
  software: string[];
  users: string[];
  brokers: number[];
  connections: number;
  errors: number;
  throttled_ms: number;
  rates: Traffic;
};

/** Of those without a client id, one. */
export function byClient(rows: readonly Row[]): Client[] {
  const found = new Map<string, Row[]>();
  for (const one of rows) {
    const name = one.client_id ?? "";
    const others = found.get(name);
    if (others) others.push(one);
    else found.set(name, [one]);
  }
  return [...found].map(([client_id, theirs]) => ({
    client_id,
    software: different(theirs.map((one) => one.software)),
    users: different(theirs.map((one) => one.user)),
    brokers: [...new Set(theirs.map((one) => one.broker))].sort((a, b) => a - b),
    connections: theirs.length,
    errors: theirs.reduce((sum, one) => sum + one.errors, 0),
    throttled_ms: theirs.reduce((sum, one) => sum + one.throttled_ms, 0),
    ...added(theirs),
    rates: added(theirs.map((one) => one.rates)),
  }));
}

function different(names: string[]): string[] {
  return [...new Set(names.filter(Boolean))].sort();
}

/** Of what is known. */
function added(all: readonly Traffic[]): Traffic {
  const found = { ...UNKNOWN };
  for (const name of COUNTED) for (const one of all) if (one[name] !== null) found[name] = (found[name] ?? 0) + one[name];
  return found;
}

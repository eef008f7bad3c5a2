import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { beforeEach, expect, test, vi } from "vitest";
import { overview } from "../src/api/overview.svelte";
import type { Overview } from "../src/api/types";
import { deleteGroup, listQueues, moldau, removeBroker, resetGroup, showGroup } from "../src/lib/commands";
import { produce } from "../src/lib/message_commands";
import { MADE, playSamples, samples } from "./sample_commands";

type Broker = { alive: boolean; kafka: [string, number]; grpc: [string, number] | null };

function cluster(...brokers: Broker[]): void {
  overview.latest = { brokers } as unknown as Overview;
}

function page(address: string): void {
  const { origin, hostname, port, protocol } = new URL(address);
  vi.stubGlobal("location", { origin, hostname, port, protocol });
}

const broker = (host: string, kafka: number, grpc: number, alive = true): Broker => ({ alive, kafka: [host, kafka], grpc: [host, grpc] });

beforeEach(() => {
  page("http://b1:8080");
  overview.latest = null;
});

test("a sample is made of each command", () => {
  expect(Object.keys(samples()).sort()).toEqual(MADE.sort());
});

test("each line of moldau is one of those that moldau is tested with", async () => {
  cluster(broker("b1", 9192, 8100));
  const lines = [...Object.values(samples()).flat(), ...playSamples()].map((one) => one.moldau).filter(Boolean);
  // tests/cli/test_copied_lines.py has moldau read them.
  await expect(lines.join("\n") + "\n").toMatchFileSnapshot("moldau_lines.txt");
});

test("pages make no commands of their own", () => {
  const root = join(import.meta.dirname, "../src/pages");
  const files = readdirSync(root, { recursive: true, encoding: "utf8" }).filter((name) => /\.(svelte|ts)$/.test(name));
  expect(files.length).toBeGreaterThan(20);
  const own = files.filter((name) => /\b(moldau|command|query)\(/.test(readFileSync(join(root, name), "utf8")));
  // Its lines have numbers only, and are tested with the others.
  expect(own).toEqual(["play/acts.ts"]);
});

test("commands name brokers that are alive, unless one is where they look by themselves", () => {
  expect(showGroup("g").moldau).toBe("moldau group describe g");
  cluster(broker("b1", 9192, 8100), broker("::1", 9092, 8000), broker("b3", 9092, 8000, false));
  expect(showGroup("g").moldau).toBe("moldau group describe g -b 'b1:9192,[::1]:9092'");
  expect(listQueues().moldau).toBe("moldau queue list --grpc 'b1:8100,[::1]:8000'");
  cluster(broker("127.0.0.1", 9092, 8000), broker("127.0.0.1", 9093, 8001));
  expect(showGroup("g").moldau).toBe("moldau group describe g");
  expect(listQueues().moldau).toBe("moldau queue list");
  cluster({ ...broker("b1", 9192, 8100), grpc: null });
  expect(listQueues().moldau).toBe("moldau queue list");
});

test("what talks HTTP names the broker of the page", () => {
  expect(removeBroker(2).moldau).toBe("moldau broker remove 2 --http b1:8080");
  page("http://localhost:8080");
  expect(removeBroker(2).moldau).toBe("moldau broker remove 2");
  page("https://ui.example");
  expect(removeBroker(2).moldau).toBe("moldau broker remove 2 --http ui.example:443 --tls");
});

test("a name that begins like an option is a name", () => {
  expect(deleteGroup("--yes").moldau).toBe("moldau group delete -- --yes");
});

test("what a terminal would take for keys is in no line", () => {
  expect(deleteGroup("a\u001b[201~b").moldau).toBe("");
  expect(moldau("kafka", "topic list", [], ["--x", "\u0003"])).toBe("");
  expect(deleteGroup("a\u001b[201~b").curl).toContain("/groups/a%1B%5B201~b");
});

test("offsets of several partitions are reset by several lines, or by none", () => {
  const seek = { topic: "t", partition: 0, position: "5" };
  expect(resetGroup("g", [seek, { ...seek, partition: 1 }], {}).moldau).toBe(
    "moldau group seek g --topic t --partition 0 --to 5\nmoldau group seek g --topic t --partition 1 --to 5",
  );
  expect(resetGroup("g", [], {}).moldau).toBe("");
});

test("what is too long for the word of a command is not copied for curl", () => {
  const sent = { records: [{ key: null, value: "é".repeat(60_000) }] };
  expect(produce("t", sent).curl).toBe("");
  expect(produce("t", sent).python).toContain("ééé");
});

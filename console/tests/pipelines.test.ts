import { expect, test } from "vitest";
import type { PipelineShown } from "../src/api/types";
import { resultOf, shareOf } from "../src/lib/pipelines";

const pipeline = (more: Partial<PipelineShown>): PipelineShown => ({
  name: "p",
  kind: "archive",
  state: "running",
  topic: "t",
  topics: ["t"],
  host: "h",
  batch: null,
  batch_seconds: null,
  rows: null,
  rows_total: null,
  rows_per_second: null,
  lag: null,
  dead_letters: null,
  note: "",
  error: "",
  hint: "",
  summary: "",
  audit: null,
  started_at_ms: null,
  updated_at_ms: 1,
  ...more,
});

test("a share is of what has an end, and runs", () => {
  expect(shareOf(pipeline({ rows: 30, rows_total: 120 }))).toBe(0.25);
  expect(shareOf(pipeline({ rows: 130, rows_total: 120 }))).toBe(1);
  expect(shareOf(pipeline({ rows: 30 }))).toBeNull();
  expect(shareOf(pipeline({ rows: 0, rows_total: 0 }))).toBeNull();
  expect(shareOf(pipeline({ rows: 30, rows_total: 120, state: "failed" }))).toBeNull();
});

test("an audit says what it found", () => {
  const audit = pipeline({ kind: "audit", state: "finished", audit: { ok: false, summary: "2 records are missing" } });
  expect(resultOf(audit)).toEqual({ text: "2 records are missing", tone: "bad" });
  expect(resultOf({ ...audit, audit: { ok: true, summary: "" } })).toEqual({ text: "All is there.", tone: "good" });
  expect(resultOf(pipeline({ summary: "5 files" }))).toEqual({ text: "5 files", tone: "plain" });
  expect(resultOf(pipeline({}))).toBeNull();
});

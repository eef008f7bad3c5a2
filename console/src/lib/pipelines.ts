/** How far a pipeline is, and what it found. */

import type { PipelineShown } from "../api/types";

/** Of a pipeline that has an end, and runs; 1 is all. */
export function shareOf(one: PipelineShown): number | null {
  if (one.rows === null || one.rows_total === null || one.rows_total <= 0) return null;
  return isAlive(one) ? Math.min(1, one.rows / one.rows_total) : null;
}

export function isAlive(one: PipelineShown): boolean {
  return one.state === "starting" || one.state === "running";
}

/** Of an audit that has ended, and of others what they say at their end. */
export function resultOf(one: PipelineShown): { text: string; tone: "good" | "bad" | "plain" } | null {
  if (one.audit) return { text: one.audit.summary || (one.audit.ok ? "All is there." : "The records differ."), tone: one.audit.ok ? "good" : "bad" };
  return one.summary ? { text: one.summary, tone: "plain" } : null;
}

/** Server-Sent Events read by fetch, which can send a token; EventSource cannot. */

import { asProblem, Problem, request } from "./client";
import { connection } from "./connection.svelte";

export type ServerEvent = { name: string; id: string; data: string };

/** Splits what arrives into events: a piece may end anywhere. */
export class EventReader {
  #rest = "";

  read(piece: string): ServerEvent[] {
    const blocks = (this.#rest + piece).split("\n\n");
    this.#rest = blocks.pop() ?? "";
    const found: ServerEvent[] = [];
    for (const block of blocks) {
      const event: ServerEvent = { name: "message", id: "", data: "" };
      const data: string[] = [];
      for (const line of block.split("\n")) {
        const [field = "", ...rest] = line.split(":");
        const value = rest.join(":").replace(/^ /, "");
        if (field === "event") event.name = value;
        else if (field === "id") event.id = value;
        else if (field === "data") data.push(value);
      }
      if (data.length) found.push({ ...event, data: data.join("\n") });
    }
    return found;
  }
}

const AGAIN_MS = [500, 1000, 2000, 4000];
/** Brokers send a comment after ten seconds without an event. */
const QUIET_MS_MAX = 25_000;

export type Followed = {
  event: (event: ServerEvent) => void;
  problem?: (problem: Problem) => void;
  open?: () => void;
  /** It broke off, or was never open; when something of it came last. */
  broken?: (heardMs: number) => void;
};

/**
 * Follows a stream until `signal` ends it, and connects again when it breaks off or says nothing for `quietMsMax`.
 * A refusal that another try cannot change (no right, no such topic) goes to `on.problem`, and ends it.
 */
export async function follow(
  url: () => string,
  on: Followed,
  signal: AbortSignal,
  quietMsMax = QUIET_MS_MAX,
): Promise<void> {
  let failures = 0;
  let heard = Date.now();
  while (!signal.aborted) {
    const quiet = new Quiet(quietMsMax);
    try {
      const init = { signal: AbortSignal.any([signal, quiet.signal]), headers: { accept: "text/event-stream" } };
      const reply = await request(url(), init);
      on.open?.();
      const reader = reply.body!.pipeThrough(new TextDecoderStream()).getReader();
      const events = new EventReader();
      for (;;) {
        quiet.heard();
        heard = Date.now();
        const { value, done } = await reader.read();
        if (done) break;
        failures = 0;
        for (const event of events.read(value)) {
          if (event.name === "error") throw endOf(event.data);
          on.event(event);
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      const problem = asProblem(error);
      if (problem.status >= 400 && problem.status < 500 && problem.status !== 429) {
        on.problem?.(problem);
        return;
      }
    } finally {
      quiet.end();
    }
    if (signal.aborted) return;
    connection.doubted();
    on.broken?.(heard);
    await pause(AGAIN_MS[Math.min(failures++, AGAIN_MS.length - 1)]!, signal);
  }
}

/** Ends a request of which nothing comes: a broker that hangs closes no connection. */
class Quiet {
  #ends = new AbortController();
  #timer: ReturnType<typeof setTimeout>;

  constructor(readonly msMax: number) {
    this.#timer = this.#begun();
  }

  get signal(): AbortSignal {
    return this.#ends.signal;
  }

  heard(): void {
    clearTimeout(this.#timer);
    this.#timer = this.#begun();
  }

  end(): void {
    clearTimeout(this.#timer);
    this.#ends.abort();
  }

  #begun(): ReturnType<typeof setTimeout> {
    return setTimeout(() => this.#ends.abort(), this.msMax);
  }
}

function endOf(data: string): Problem {
  try {
    const found = JSON.parse(data) as { status?: number; error?: string; detail?: string; hint?: string };
    return new Problem(found.status ?? 503, found.error ?? "", found.detail ?? "", found.hint ?? "");
  } catch {
    return new Problem(503, "", data);
  }
}

export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", done);
  });
}

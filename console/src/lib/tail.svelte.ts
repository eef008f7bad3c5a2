/** New messages as they come. What is left out is counted: by the broker in bursts, and by this page. */

import { address, type Params, type Problem } from "../api/client";
import { follow } from "../api/events";
import { mostlyWhileSeen } from "../api/tabs";
import type { Message } from "../api/types";

const KEPT_MAX = 5000;
const GAPS_MAX = 100;

/** `to`: null while it lasts. */
export type Gap = { from: number; to: number | null };

export class Tail {
  /** Newest first. */
  shown = $state.raw<Message[]>([]);
  isOn = $state(false);
  isPaused = $state(false);
  /** Came while it was paused, and is not shown yet. */
  waiting = $state(0);
  skipped = $state(0);
  forgotten = $state(0);
  /** Times in which nothing was followed: what came then is not here. */
  gaps = $state.raw<Gap[]>([]);
  problem = $state.raw<Problem | null>(null);
  #held: Message[] = [];
  #end: (() => void) | undefined;

  start(topic: string, filters: Params): void {
    this.stop();
    this.shown = [];
    this.#held = [];
    this.isPaused = false;
    this.skipped = this.forgotten = this.waiting = 0;
    this.gaps = [];
    this.problem = null;
    this.isOn = true;
    this.#end = mostlyWhileSeen("moldau.live", () => this.#follow(topic, filters));
  }

  #follow(topic: string, filters: Params): () => void {
    const running = new AbortController();
    const on = {
      open: (): void => {
        const [last, ...before] = this.gaps;
        if (last && last.to === null) this.gaps = [{ ...last, to: Date.now() }, ...before];
      },
      broken: (heardMs: number): void => this.#broken(heardMs),
      event: (event: { data: string }): void => this.#add(JSON.parse(event.data) as { records: Message[]; skipped: number }),
      problem: (problem: Problem): void => {
        this.problem = problem;
        this.isOn = false;
      },
    };
    void follow(() => address(["topics", topic, "live"], filters), on, running.signal);
    return () => {
      running.abort();
      this.#broken(Date.now());
    };
  }

  #broken(sinceMs: number): void {
    if (this.gaps[0]?.to !== null) this.gaps = [{ from: sinceMs, to: null }, ...this.gaps].slice(0, GAPS_MAX);
  }

  #add(batch: { records: Message[]; skipped: number }): void {
    this.skipped += batch.skipped;
    const newest = [...batch.records].reverse();
    if (this.isPaused) {
      this.#held = this.#kept([...newest, ...this.#held]);
      this.waiting = this.#held.length;
    } else this.shown = this.#kept([...newest, ...this.shown]);
  }

  #kept(messages: Message[]): Message[] {
    this.forgotten += Math.max(0, messages.length - KEPT_MAX);
    return messages.slice(0, KEPT_MAX);
  }

  pause(): void {
    this.isPaused = true;
  }

  goOn(): void {
    this.isPaused = false;
    this.shown = this.#kept([...this.#held, ...this.shown]);
    this.#held = [];
    this.waiting = 0;
  }

  stop(): void {
    this.#end?.();
    this.#end = undefined;
    this.isOn = false;
  }
}

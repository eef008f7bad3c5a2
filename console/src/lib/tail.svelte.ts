/** New messages as they come. What is left out is counted: by the broker in bursts, and by this page. */

import { address, type Params, type Problem } from "../api/client";
import { follow } from "../api/events";
import type { Message } from "../api/types";

const KEPT_MAX = 5000;

export class Tail {
  /** Newest first. */
  shown = $state.raw<Message[]>([]);
  isOn = $state(false);
  isPaused = $state(false);
  /** Came while it was paused, and is not shown yet. */
  waiting = $state(0);
  skipped = $state(0);
  forgotten = $state(0);
  problem = $state.raw<Problem | null>(null);
  #held: Message[] = [];
  #running: AbortController | undefined;

  start(topic: string, filters: Params): void {
    this.stop();
    this.shown = [];
    this.#held = [];
    this.isPaused = false;
    this.skipped = this.forgotten = this.waiting = 0;
    this.problem = null;
    this.isOn = true;
    const running = (this.#running = new AbortController());
    const on = {
      event: (event: { data: string }): void => this.#add(JSON.parse(event.data) as { records: Message[]; skipped: number }),
      problem: (problem: Problem): void => {
        this.problem = problem;
        this.isOn = false;
      },
    };
    void follow(() => address(["topics", topic, "live"], filters), on, running.signal);
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
    this.#running?.abort();
    this.isOn = false;
  }
}

/** A search through a topic, page by page: it can be stopped at any time, and goes on where it was. */

import { asProblem, get, type Params, type Problem } from "../api/client";
import type { Message, SearchPage } from "../api/types";
import { joined, type Range } from "./searched";

const HITS_PER_RUN = 100;
export const SHOWN_MAX = 20_000;
const UNREADABLE_MAX = 1000;

export class Search {
  found = $state.raw<Message[]>([]);
  isRunning = $state(false);
  isDone = $state(false);
  /** By the reader, before it had found a page of messages. */
  isStopped = $state(false);
  searched = $state(0);
  searchedBytes = $state(0);
  left = $state(0);
  /** Deleted by retention before it was their turn. */
  gone = $state(0);
  ranges = $state.raw<Range[]>([]);
  unreadable = $state.raw<SearchPage["unreadable"]>([]);
  problem = $state.raw<Problem | null>(null);
  #cursor: string | null = null;
  #running: AbortController | undefined;

  /** Begins anew. */
  begin(topic: string, filters: Params): void {
    this.stop();
    this.found = [];
    this.isDone = false;
    this.searched = this.searchedBytes = this.left = this.gone = 0;
    this.ranges = [];
    this.unreadable = [];
    this.#cursor = null;
    void this.goOn(topic, filters);
  }

  /** No more can be shown. */
  get isFull(): boolean {
    return this.found.length >= SHOWN_MAX;
  }

  /** Nothing is searched for. */
  clear(): void {
    this.stop();
    this.found = [];
    this.isStopped = this.isDone = false;
  }

  /** The next hits, from where it stopped. */
  async goOn(topic: string, filters: Params): Promise<void> {
    this.#running?.abort();
    const running = (this.#running = new AbortController());
    const { signal } = running;
    this.isRunning = true;
    this.isStopped = false;
    this.problem = null;
    let hits = 0;
    try {
      while (!signal.aborted && hits < HITS_PER_RUN && !this.isFull) {
        const limit = Math.min(HITS_PER_RUN - hits, SHOWN_MAX - this.found.length);
        const wanted = { ...filters, limit, cursor: this.#cursor };
        const page = await get<SearchPage>(["topics", topic, "search"], wanted, signal);
        if (signal.aborted) break;
        hits += page.records.length;
        if (page.records.length) this.found = [...this.found, ...page.records];
        this.searched += page.searched.records;
        this.searchedBytes += page.searched.bytes;
        this.left = page.left_records;
        this.gone += page.searched.gone;
        this.ranges = joined(this.ranges, page.searched.ranges);
        if (page.unreadable.length) this.unreadable = [...this.unreadable, ...page.unreadable].slice(0, UNREADABLE_MAX);
        this.#cursor = page.cursor;
        if (page.cursor === null) {
          this.isDone = true;
          break;
        }
      }
    } catch (error) {
      if (!signal.aborted) this.problem = asProblem(error);
    }
    if (this.#running === running) this.isRunning = false;
  }

  stop(): void {
    this.isStopped = this.isRunning;
    this.#running?.abort();
    this.isRunning = false;
  }
}

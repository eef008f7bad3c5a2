/** The live state of the cluster: one stream for all parts of the page that show some of it. */

import { asProblem, type Problem } from "./client";
import { address } from "./client";
import { connection } from "./connection.svelte";
import { follow } from "./events";
import { share, type Told, whileSeen } from "./tabs";
import type { HappenedEvent, History, Overview } from "./types";

const POINTS_MAX = 450;
const EVENTS_MAX = 200;
/** Events come every two seconds. */
const QUIET_MS_MAX = 10_000;

class LiveOverview {
  latest = $state.raw<Overview | null>(null);
  history = $state.raw<History | null>(null);
  events = $state.raw<HappenedEvent[]>([]);
  problem = $state.raw<Problem | null>(null);

  /** While this tab is seen: by a stream, or by another tab that has one. `who`: rights differ between users. */
  watch(who: string): () => void {
    return whileSeen(() => this.#begin(who));
  }

  #begin(who: string): () => void {
    const ended = new AbortController();
    let isLeading = false;
    let quiet: ReturnType<typeof setTimeout> | undefined;
    const heard = (): void => {
      clearTimeout(quiet);
      quiet = setTimeout(() => connection.doubted(), QUIET_MS_MAX);
    };
    const show = (data: string): void => {
      heard();
      try {
        this.#show(JSON.parse(data) as Overview);
      } catch (error) {
        this.problem = asProblem(error);
      }
    };
    const lead = async (tell: (what: Told) => void, signal: AbortSignal): Promise<void> => {
      isLeading = true;
      const event = (event: { data: string }): void => {
        show(event.data);
        tell({ data: event.data });
      };
      const problem = (problem: Problem): void => {
        this.problem = problem;
      };
      await follow(() => address(["overview", "stream"]), { event, problem }, signal, QUIET_MS_MAX);
      isLeading = false;
    };
    const told = (what: Told): void => {
      if (what.asks && isLeading && this.latest) tell({ has: JSON.stringify(this.#whole()) });
      if (isLeading) return;
      if (what.data !== undefined) show(what.data);
      else if (what.has !== undefined) show(what.has);
    };
    const tell = share(`moldau.overview ${who}`, { lead, told }, ended.signal);
    // What was shown before may be long ago, and its history has a gap.
    tell({ asks: true });
    heard();
    return () => {
      clearTimeout(quiet);
      ended.abort();
    };
  }

  /** As the first event of a stream: with the history. */
  #whole(): Overview | null {
    return this.latest && { ...this.latest, history: this.history, events: this.events };
  }

  #show(next: Overview): void {
    const isOther = this.latest !== null && this.latest.answered_by !== next.answered_by;
    this.latest = next;
    this.problem = null;
    this.history = next.history ?? added(this.history, next);
    // Ids are those of one broker; a new process of it counts anew, and sends its history first.
    this.events = isOther || next.history ? next.events : merged(next.events, this.events);
  }
}

function added(history: History | null, next: Overview): History | null {
  if (history === null) return null;
  const put = <T>(list: T[], value: T): T[] => [...list.slice(-POINTS_MAX + 1), value];
  return {
    at_ms: put(history.at_ms, next.at_ms),
    bytes_in: put(history.bytes_in, next.rates.bytes_in),
    bytes_out: put(history.bytes_out, next.rates.bytes_out),
    records_in: put(history.records_in, next.rates.records_in),
    produce_p99_ms: put(history.produce_p99_ms, next.latency.produce_p99_ms),
    commit_p99_ms: put(history.commit_p99_ms, next.latency.commit_p99_ms),
    lag: put(history.lag, next.lag.records),
  };
}

function merged(fresh: HappenedEvent[], known: HappenedEvent[]): HappenedEvent[] {
  const ids = new Set(fresh.map((one) => one.id));
  return [...fresh, ...known.filter((one) => !ids.has(one.id))].slice(0, EVENTS_MAX);
}

export const overview = new LiveOverview();

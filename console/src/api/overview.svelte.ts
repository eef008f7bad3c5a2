/** The live state of the cluster: one stream for all parts of the page that show some of it. */

import { asProblem, type Problem } from "./client";
import { address } from "./client";
import { follow } from "./events";
import type { HappenedEvent, History, Overview } from "./types";

const POINTS_MAX = 450;
const EVENTS_MAX = 200;

class LiveOverview {
  latest = $state.raw<Overview | null>(null);
  history = $state.raw<History | null>(null);
  events = $state.raw<HappenedEvent[]>([]);
  problem = $state.raw<Problem | null>(null);

  watch(): () => void {
    const ended = new AbortController();
    const shown = (data: string): void => {
      try {
        this.#show(JSON.parse(data) as Overview);
      } catch (error) {
        this.problem = asProblem(error);
      }
    };
    void follow(
      () => address(["overview", "stream"]),
      { event: (event) => shown(event.data), problem: (problem) => (this.problem = problem) },
      ended.signal,
    );
    return () => ended.abort();
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

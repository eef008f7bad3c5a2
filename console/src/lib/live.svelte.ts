/** Data of a page: loaded, loaded again when what it depends on changes, and now and then if told. */

import { asProblem, type Problem } from "../api/client";
import { connection } from "../api/connection.svelte";

export class Live<T> {
  value = $state.raw<T | null>(null);
  problem = $state.raw<Problem | null>(null);
  isLoading = $state(true);
  #again = $state(0);

  /** In the set-up of a component. What `load` reads before its first await is what it depends on. */
  constructor(load: (signal: AbortSignal) => Promise<T> | null, everyMs = 0) {
    $effect(() => {
      void this.#again;
      void connection.returns;
      const ended = new AbortController();
      let timer: ReturnType<typeof setTimeout> | undefined;

      const next = (): void => {
        if (everyMs && !ended.signal.aborted) timer = setTimeout(() => run(false), everyMs);
      };
      const run = (isFirst: boolean): void => {
        if (!isFirst && document.hidden) return next();
        const work = load(ended.signal);
        if (work === null) return;
        if (isFirst) this.isLoading = true;
        work
          .then((value) => {
            if (ended.signal.aborted) return;
            this.value = value;
            this.problem = null;
          })
          .catch((error: unknown) => {
            if (!ended.signal.aborted) this.problem = asProblem(error);
          })
          .finally(() => {
            if (ended.signal.aborted) return;
            this.isLoading = false;
            next();
          });
      };
      run(true);
      return () => {
        clearTimeout(timer);
        ended.abort();
      };
    });
  }

  reload(): void {
    this.#again++;
  }
}

type Page = { next: string | number | null; silent?: number[] };

/** All pages of a list, up to `most` entries. `silent`: brokers that did not answer, whose entries are missing. */
export async function all<P extends Page, E>(
  page: (after: string | null) => Promise<P>,
  entries: (page: P) => E[],
  most: number,
): Promise<{ entries: E[]; isCut: boolean; silent: number[] }> {
  const found: E[] = [];
  const silent = new Set<number>();
  let after: string | null = null;
  for (;;) {
    const one: P = await page(after);
    found.push(...entries(one));
    one.silent?.forEach((broker) => silent.add(broker));
    if (one.next === null || found.length >= most) return { entries: found, isCut: one.next !== null, silent: [...silent] };
    after = String(one.next);
  }
}

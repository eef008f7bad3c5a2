/** Of several tabs one does the work for all: browsers allow a page six connections to a broker, and its tabs share them. */

export type Told = { data?: string; asks?: boolean; has?: string };

/**
 * While it is not ended, this tab either leads, by a lock of the browser that one tab has, or hears what the leader
 * tells. `lead` goes on until its signal ends it. Without locks (plain HTTP from another machine) each tab leads.
 */
export function share(
  name: string,
  on: { lead: (tell: (what: Told) => void, signal: AbortSignal) => Promise<void>; told: (what: Told) => void },
  signal: AbortSignal,
): (what: Told) => void {
  const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel(name);
  const tell = (what: Told): void => channel?.postMessage(what);
  const isShared = channel !== null && navigator.locks !== undefined;
  if (channel && isShared) channel.onmessage = (event: MessageEvent<Told>) => on.told(event.data);
  signal.addEventListener("abort", () => channel?.close());
  if (isShared) void navigator.locks.request(name, { signal }, () => on.lead(tell, signal)).catch(() => {});
  else void on.lead(tell, signal);
  return isShared ? tell : () => {};
}

/** Calls `begin` whenever this tab is seen, and what it returned when it is seen no longer. */
export function whileSeen(begin: () => () => void): () => void {
  let end: (() => void) | null = null;
  const changed = (): void => {
    if (document.hidden) {
      end?.();
      end = null;
    } else end ??= begin();
  };
  document.addEventListener("visibilitychange", changed);
  changed();
  return () => {
    document.removeEventListener("visibilitychange", changed);
    end?.();
  };
}

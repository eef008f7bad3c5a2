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

const UNSEEN_MS_MAX = 60_000;

/**
 * Like `whileSeen`, but one tab goes on when it is not seen: somebody may look elsewhere for a moment. Without locks
 * (plain HTTP from another machine) each goes on for a minute.
 */
export function mostlyWhileSeen(name: string, begin: () => () => void): () => void {
  let end = document.hidden ? null : begin();
  let isEnded = false;
  let seen = (): void => {};
  const rest = (): void => {
    if (!document.hidden || isEnded) return;
    end?.();
    end = null;
  };
  const changed = (): void => {
    seen();
    if (!document.hidden) {
      end ??= begin();
    } else if (navigator.locks) {
      const isSeen = new Promise<void>((resolve) => (seen = resolve));
      void navigator.locks.request(name, { ifAvailable: true }, (lock) => (lock ? isSeen : rest()));
    } else {
      const timer = setTimeout(rest, UNSEEN_MS_MAX);
      seen = () => clearTimeout(timer);
    }
  };
  document.addEventListener("visibilitychange", changed);
  return () => {
    isEnded = true;
    document.removeEventListener("visibilitychange", changed);
    seen();
    end?.();
  };
}

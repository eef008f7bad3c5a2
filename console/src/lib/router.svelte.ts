/** The address of the page: its path below /ui, and its query, in which every filter is kept. */

const BASE = "/ui";

class Route {
  path = $state("/");
  query = $state(new URLSearchParams());

  constructor() {
    this.read();
    window.addEventListener("popstate", () => this.read());
  }

  read(): void {
    this.path = location.pathname.replace(/^\/ui(?=\/|$)/, "") || "/";
    this.query = new URLSearchParams(location.search);
  }

  /** The decoded parts of the path: /topics/a%2Fb is ["topics", "a/b"]. */
  get parts(): string[] {
    return this.path.split("/").filter(Boolean).map(decoded);
  }

  get(name: string, otherwise = ""): string {
    return this.query.get(name) ?? otherwise;
  }

  all(name: string): string[] {
    return this.query.getAll(name);
  }
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const route = new Route();

export type Query = Record<string, string | number | boolean | string[] | null | undefined>;

/** The address of a page: link(["topics", name], { tab: "messages" }). */
export function link(parts: (string | number)[], query: Query = {}): string {
  const path = parts.map((part) => "/" + encodeURIComponent(part)).join("");
  const text = withQuery(new URLSearchParams(), query).toString();
  return `${BASE}${path || "/"}${text ? `?${text}` : ""}`;
}

export function go(address: string, replace = false): void {
  const change = replace ? "replaceState" : "pushState";
  history[change](null, "", address);
  route.read();
  if (!replace) {
    window.scrollTo(0, 0);
    // A new page begins at its heading, also for those who cannot see it.
    requestAnimationFrame(() => document.getElementById("heading")?.focus({ preventScroll: true }));
  }
}

/** Changes filters of this page. What is empty leaves the address. `isStep`: Back returns to those before. */
export function setQuery(changes: Query, isStep = false): void {
  const query = withQuery(new URLSearchParams(location.search), changes).toString();
  const address = location.pathname + (query ? `?${query}` : "");
  if (!isStep || address === location.pathname + location.search) return go(address, true);
  history.pushState(null, "", address);
  route.read();
}

function withQuery(query: URLSearchParams, changes: Query): URLSearchParams {
  for (const [name, value] of Object.entries(changes)) {
    query.delete(name);
    if (Array.isArray(value)) for (const one of value) query.append(name, one);
    else if (value !== null && value !== undefined && value !== "" && value !== false)
      query.set(name, String(value));
  }
  return query;
}

/** Links of this page change the address without a new load. */
export function followLinks(): void {
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const anchor = (event.target as Element | null)?.closest("a");
    if (!anchor || anchor.target || anchor.hasAttribute("download")) return;
    const to = new URL(anchor.href, location.href);
    if (to.origin !== location.origin || !/^\/ui(\/|$)/.test(to.pathname)) return;
    if (to.hash) return;
    event.preventDefault();
    go(to.pathname + to.search);
  });
}

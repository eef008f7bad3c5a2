/** Requests to the broker that served this page. Every failure is a Problem with a next step. */

import { connection } from "./connection.svelte";
import { login } from "./login.svelte";

const ROOT = "/api/v1";

export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint = "",
  ) {
    super(message);
  }

  /** 0: no reply at all. */
  get isLost(): boolean {
    return this.status === 0;
  }
}

export type Params = Record<string, string | number | boolean | readonly (string | number)[] | null | undefined>;

export function address(path: (string | number)[], params: Params = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value === null || value === undefined || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) query.append(name, String(one));
  }
  const text = query.toString();
  return `${ROOT}${path.map((part) => "/" + encodeURIComponent(part)).join("")}${text ? `?${text}` : ""}`;
}

/** Without a reply for so long, the broker is asked whether it is there. A search may take longer. */
const SLOW_MS = 5000;

export async function request(url: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (login.token) headers.set("authorization", `Bearer ${login.token}`);
  const signals = init.signal ? [init.signal] : [];
  // A change may have been made, though nobody says so: its reply is waited for.
  if ((init.method ?? "GET") === "GET") signals.push(connection.signal);
  const slow = setTimeout(() => connection.doubted(), SLOW_MS);
  let reply: Response;
  try {
    reply = await fetch(url, { ...init, headers, signal: AbortSignal.any(signals), credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    connection.doubted();
    throw new Problem(0, "NETWORK_EXCEPTION", "The broker does not answer.", "This page tries again by itself.");
  } finally {
    clearTimeout(slow);
  }
  connection.works();
  if (reply.ok) return reply;
  const problem = await problemOf(reply);
  if (reply.status === 401) login.asked(problem.message);
  throw problem;
}

async function problemOf(reply: Response): Promise<Problem> {
  try {
    const body = (await reply.json()) as { detail?: string; error?: string; hint?: string };
    return new Problem(reply.status, body.error ?? "", body.detail ?? reply.statusText, body.hint ?? "");
  } catch {
    return new Problem(reply.status, "", `${reply.status} ${reply.statusText}`);
  }
}

export async function get<T>(path: (string | number)[], params: Params = {}, signal?: AbortSignal): Promise<T> {
  const reply = await request(address(path, params), signal ? { signal } : {});
  return (await reply.json()) as T;
}

export async function send<T>(
  method: "POST" | "PATCH" | "DELETE",
  path: (string | number)[],
  body?: unknown,
  signal?: AbortSignal,
): Promise<T> {
  const init: RequestInit = { method, ...(signal ? { signal } : {}) };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { "content-type": "application/json" };
  }
  const reply = await request(address(path), init);
  return (await reply.json()) as T;
}

export function asProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  return new Problem(-1, "", error instanceof Error ? error.message : String(error));
}

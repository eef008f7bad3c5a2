import { afterEach, expect, test, vi } from "vitest";

vi.stubGlobal("sessionStorage", { getItem: () => null, setItem: () => {}, removeItem: () => {} });
const { EventReader, follow } = await import("../src/api/events");
const { connection } = await import("../src/api/connection.svelte");
const { request } = await import("../src/api/client");

afterEach(() => {
  vi.useRealTimers();
});

const TEXT = ": hello\n\nretry: 1000\n\nid: 7\nevent: records\ndata: {\"a\":\ndata: 1}\n\nid: 8\ndata: x\n\n";

test.each([1, 2, 3, 7, 1000])("events are read from pieces of %d characters", (size) => {
  const reader = new EventReader();
  const found = [];
  for (let at = 0; at < TEXT.length; at += size) found.push(...reader.read(TEXT.slice(at, at + size)));
  expect(found).toEqual([
    { name: "records", id: "7", data: '{"a":\n1}' },
    { name: "message", id: "8", data: "x" },
  ]);
});

/** A broker that takes connections, and says nothing from some time on. */
function hanging(url: string, init: RequestInit): Promise<Response> {
  const ended = (): Promise<never> =>
    new Promise((_, reject) => init.signal?.addEventListener("abort", () => reject(new Error("aborted"))));
  if (!url.endsWith("/stream")) return ended();
  const first = new TextEncoder().encode("data: 1\n\n");
  return Promise.resolve(
    new Response(
      new ReadableStream({
        start: (controller) => {
          controller.enqueue(first);
          init.signal?.addEventListener("abort", () => controller.error(new Error("aborted")));
        },
      }),
    ),
  );
}

test("a stream of which nothing comes is opened again, and says since when", async () => {
  vi.useFakeTimers();
  // The broker is there.
  vi.stubGlobal("fetch", (url: string, init: RequestInit) => (url === "/healthz" ? Promise.resolve(new Response()) : hanging(url, init)));
  const ended = new AbortController();
  const broken: number[] = [];
  const events: string[] = [];
  const began = Date.now();
  void follow(() => "/stream", { event: (event) => events.push(event.data), broken: (heard) => broken.push(heard) }, ended.signal, 5000);
  await vi.advanceTimersByTimeAsync(4900);
  expect([events, broken]).toEqual([["1"], []]);
  await vi.advanceTimersByTimeAsync(1000);
  expect([events, broken]).toEqual([["1", "1"], [began]]);
  ended.abort();
});

test("a broker that hangs is lost, and what is read from it ends; a change is waited for", async () => {
  vi.useFakeTimers();
  vi.stubGlobal("fetch", hanging);
  const read = request("/api/v1/topics").catch((error: { status: number }) => error.status);
  const changed = vi.fn();
  void request("/api/v1/topics", { method: "POST" }).then(changed, changed);
  await vi.advanceTimersByTimeAsync(3000);
  expect(connection.isLost).toBe(false);
  await vi.advanceTimersByTimeAsync(8000);
  expect(connection.isLost).toBe(true);
  expect(await read).toBe(0);
  expect(changed).not.toHaveBeenCalled();
});

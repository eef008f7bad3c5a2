import { beforeEach, expect, test, vi } from "vitest";

vi.stubGlobal("sessionStorage", { getItem: () => null, setItem: () => {}, removeItem: () => {} });
const { Search, SHOWN_MAX } = await import("../src/lib/search.svelte");

let pages: object[];

beforeEach(() => {
  vi.stubGlobal("fetch", async () => new Response(JSON.stringify(pages.shift())));
});

function page(records: number, more: object = {}, searched: object = {}): object {
  const found = { records, bytes: 1, gone: 0, ranges: [], ...searched };
  return { records: Array(records).fill({}), searched: found, unreadable: [], left_records: 7, cursor: "c", ...more };
}

test("what was searched, deleted and cannot be read is known over all pages", async () => {
  const unreadable = { partition: 0, first_offset: 1, last_offset: 2, reason: "it is malformed" };
  pages = [
    page(1, { unreadable: [unreadable] }, { gone: 2, ranges: [{ partition: 0, from: 5, to: 9 }] }),
    page(0, { cursor: null, left_records: 0 }, { gone: 1, ranges: [{ partition: 0, from: 1, to: 5 }] }),
  ];
  const search = new Search();
  await search.goOn("t", {});
  expect(search).toMatchObject({ gone: 3, left: 0, isDone: true, unreadable: [unreadable] });
  expect(search.ranges).toEqual([{ partition: 0, from: 1, to: 9 }]);
});

test("no message is left out silently when the list is full", async () => {
  const search = new Search();
  search.found = Array(SHOWN_MAX - 30).fill({});
  pages = [page(30), page(100)];
  await search.goOn("t", {});
  expect(search.isFull).toBe(true);
  expect(search.found).toHaveLength(SHOWN_MAX);
  expect(pages).toHaveLength(1);
});

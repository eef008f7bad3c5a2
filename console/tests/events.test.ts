import { expect, test, vi } from "vitest";

vi.stubGlobal("sessionStorage", { getItem: () => null, setItem: () => {}, removeItem: () => {} });
const { EventReader } = await import("../src/api/events");

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

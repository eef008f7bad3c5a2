import { expect, test } from "vitest";
import {
  asQuery,
  asTyped,
  contentParams,
  type Filters,
  filtersOf,
  jsonMistake,
  mistakesOf,
  partitionGroups,
  partitionsOf,
  readJsonTerm,
  searchParams,
} from "../src/lib/filters";
import { joined } from "../src/lib/searched";

const asked = (more: Partial<Filters>): Filters => ({ ...filtersOf(() => ""), ...more });

test.each(["", "a", ".a.b", "user.items[0].x=1", 'user."odd name"=a>b', "a[0][1]", "a=", "Zoë.0=x y"])("%j is a path", (text) => {
  expect(jsonMistake(text)).toBe("");
});

test.each(["nonsense(", "amount>5", "a!=b", "a..b", "a.", ".", "=x", "a b", "user.id = 42", "[0]x", '"a', '"\\x"', "amount==5"])(
  "%j is none",
  (text) => {
    expect(jsonMistake(text)).not.toBe("");
  },
);

test("names and indexes of a path", () => {
  expect(readJsonTerm('.user.tags[1]."a.b=c".0=x=y')).toEqual({ path: ["user", "tags", "1", "a.b=c", "0"], equals: "x=y" });
  expect(readJsonTerm("a")).toEqual({ path: ["a"], equals: null });
  expect(readJsonTerm("amount>5")).toEqual({ rest: ">5" });
});

test("what cannot be searched for is named", () => {
  expect(mistakesOf(asked({}))).toEqual({});
  expect(mistakesOf(asked({ time: "garbage", offset: "x" }))).toEqual({});
  expect(Object.keys(mistakesOf(asked({ from: "time", time: "garbage" })))).toEqual(["time"]);
  expect(Object.keys(mistakesOf(asked({ from: "offset", offset: "-1" })))).toEqual(["offset"]);
  expect(Object.keys(mistakesOf(asked({ partition: "9-1" })))).toEqual(["partition"]);
});

test("a time has its zone in the address, and is the same in the form", () => {
  const typed = asked({ from: "time", time: "2026-11-19T07:03:12" });
  const query = asQuery(typed);
  expect(query.time).toBe(new Date("2026-11-19T07:03:12").toISOString().replace(".000", ""));
  expect(asTyped(asked({ from: "time", time: String(query.time) }))).toEqual(typed);
  expect(searchParams(asked({ from: "time", time: "2026-11-19T07:03:12Z" }), 1)).toMatchObject({
    direction: "oldest",
    time: Date.UTC(2026, 10, 19, 7, 3, 12),
  });
});

test("what is not asked for leaves the address", () => {
  expect(asQuery(asked({ from: "newest", time: "2026-11-19T07:03:12", offset: "3" }))).toMatchObject({ from: null, time: null, offset: null });
});

test("many partitions are searched in groups, first the first", () => {
  expect(partitionGroups(256)).toEqual([]);
  expect(partitionGroups(600).map((one) => one.value)).toEqual(["0-255", "256-511", "512-599"]);
  expect(partitionsOf("", 256)).toEqual([]);
  expect(partitionsOf("", 2000)).toHaveLength(256);
  expect(partitionsOf("512-599", 600)?.at(-1)).toBe(599);
  expect(partitionsOf("7", 2000)).toEqual([7]);
  expect(partitionsOf("0-256", 2000)).toBeNull();
  expect(contentParams(asked({ markers: "true" }), 2000)).toMatchObject({ markers: true, partition: { length: 256 } });
});

test("ranges that meet are one", () => {
  const first = joined([], [{ partition: 1, from: 50, to: 100 }, { partition: 0, from: 5, to: 5 }]);
  expect(first).toEqual([{ partition: 1, from: 50, to: 100 }]);
  expect(joined(first, [{ partition: 1, from: 10, to: 50 }, { partition: 0, from: 3, to: 4 }, { partition: 1, from: 1, to: 2 }])).toEqual([
    { partition: 0, from: 3, to: 4 },
    { partition: 1, from: 1, to: 2 },
    { partition: 1, from: 10, to: 100 },
  ]);
});

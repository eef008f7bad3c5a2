import { expect, test } from "vitest";
import { shareOf } from "../src/lib/moves";

test("what retention removed needs no copy", () => {
  expect(shareOf({ match: 1500, lag: 500 }, 1000, 2000)).toBe(0.5);
  expect(shareOf({ match: 0, lag: 2000 }, 1000, 2000)).toBe(0);
  expect(shareOf({ match: 2001, lag: 0 }, 1000, 2000)).toBe(1);
});

test("a share that is not known is not made up", () => {
  expect(shareOf({ match: null, lag: null }, 0, 10)).toBeNull();
  expect(shareOf({ match: 5, lag: 5 }, null, 10)).toBeNull();
  expect(shareOf({ match: 0, lag: 0 }, 0, 0)).toBeNull();
});

import { describe, expect, test } from "vitest";
import { goesOn, leftOver } from "../src/lib/outcome";

const ALL = { is_complete: true, refused: [], silent: [] };
const REFUSED = { is_complete: false, refused: [{ broker: 2, error: "the disk is full" }], silent: [3] };

describe("what many brokers did", () => {
  test("all", () => expect(leftOver(ALL)).toBe(""));
  test("more", () => expect(leftOver({ ...ALL, is_complete: false })).toBe("There are more: do it again."));
  test("not by all", () =>
    expect(leftOver(REFUSED)).toBe("Broker 2 refused: the disk is full. Broker 3 did not answer."));
  test("goes on as long as it gets on", () => {
    expect(goesOn({ ...ALL, is_complete: false }, 5)).toBe(true);
    expect(goesOn({ ...ALL, is_complete: false }, 0)).toBe(false);
    expect(goesOn(ALL, 5)).toBe(false);
    expect(goesOn(REFUSED, 5)).toBe(false);
  });
});

import { beforeAll, describe, expect, test } from "vitest";
import type { PlayBoard } from "../src/api/types";
import { bodyOf, boundsOf, commandOf, cut, delayOf, faultsOf, heal, isDown, kill, pairs, pause, slow } from "../src/pages/play/acts";

const ready = (id: number) => ({ id, state: "ready", reason: "", http: `127.0.0.1:${8079 + id}`, resumes_in_ms: null });
const board: PlayBoard = {
  answered_by: 1,
  offers: ["kill", "pause", "resume", "restart", "link", "disk", "heal"],
  about: "",
  brokers: [ready(1), { ...ready(3), state: "killed" }, { ...ready(2), state: "paused", resumes_in_ms: 4000 }],
  links: [{ a: 1, b: 3 }],
  disks: [{ broker: 2, delay_ms: 250 }],
};

beforeAll(() => {
  (globalThis as Record<string, unknown>).location = { origin: "http://127.0.0.1:8080", hostname: "127.0.0.1", port: "8080", protocol: "http:" };
});

describe("what can be done", () => {
  test("a pause is as long as chosen, in the request and in each command", () => {
    const act = pause(2);
    expect(bodyOf(act, 30)).toEqual({ action: "pause", seconds: 30 });
    const command = commandOf(act, 30);
    expect(command.moldau).toBe("moldau cluster pause 2 --for 30s");
    expect(command.curl).toContain("http://127.0.0.1:8080/api/v1/play/brokers/2");
    expect(command.curl).toContain('{"action":"pause","seconds":30}');
    expect(command.python).toContain('"seconds": 30');
    expect(boundsOf(act)).toMatchObject({ least: 1, most: 120, usual: 10 });
  });

  test("a slow disk has a delay, and no pause", () => {
    expect(bodyOf(slow(1, false), 700)).toEqual({ broker: 1, delay_ms: 700 });
    expect(commandOf(slow(1, false), 700).moldau).toBe("moldau cluster slow 1 --by 700ms");
  });

  test("a broker without a supervisor has no command of moldau for it", () => {
    expect([kill(1, true).moldau, slow(1, true).moldau, heal(true).moldau]).toEqual(["", "", ""]);
    expect(kill(1, true).words.join(" ")).toContain("moldau dev");
  });

  test("only what silences a broker says so", () => {
    expect([kill(3, false).silences, pause(3).silences, cut(1, 3).silences]).toEqual([3, 3, undefined]);
  });
});

describe("what is broken on purpose", () => {
  test("each pair of brokers is there once, the smaller id first", () => {
    expect(pairs(board)).toEqual([
      { a: 1, b: 2, isCut: false },
      { a: 1, b: 3, isCut: true },
      { a: 2, b: 3, isCut: false },
    ]);
  });

  test("all of it is in one sentence", () => {
    const words = faultsOf(board);
    for (const one of ["broker 3 is killed", "broker 2 is paused", "the link 1 – 3 is cut", "broker 2 takes 250 ms"])
      expect(words).toContain(one);
    expect(faultsOf({ ...board, brokers: [ready(1)], links: [], disks: [] })).toBe("");
    expect([delayOf(board, 2), delayOf(board, 1)]).toEqual([250, 0]);
    expect(board.brokers.map(isDown)).toEqual([false, true, false]);
  });
});

import { describe, expect, test } from "vitest";
import { bytes, dateTime, duration, large, milliseconds, perSecond, ranges, retention, sentence } from "../src/lib/format";

describe("numbers as people read them", () => {
  test.each([
    [null, "–"],
    [0, "0 B"],
    [1023, "1,023 B"],
    [1024, "1 KiB"],
    [1024 * 1024 - 1, "1 MiB"],
    [1536, "1.5 KiB"],
    [1e13, "9.09 TiB"],
  ])("%s bytes", (value, words) => expect(bytes(value)).toBe(words));

  test.each([
    [0.5, "0.5"],
    [9999, "9,999"],
    [12_345_678, "12.3 M"],
  ])("%s", (value, words) => expect(large(value)).toBe(words));

  test.each([
    [0, "0 s"],
    [0.4, "< 1 s"],
    [59, "59 s"],
    [60, "1 min"],
    [93_784, "1 d 2 h"],
    [86_400 + 59, "1 d"],
    [-1, "–"],
  ])("%s seconds", (value, words) => expect(duration(value)).toBe(words));

  test.each([
    [0, "0/s"],
    [0.2, "< 1/s"],
    [1234.4, "1,234/s"],
  ])("%s per second", (value, words) => expect(perSecond(value)).toBe(words));

  test("a retention without end", () => expect(retention(-1)).toBe("for ever"));
  test("milliseconds", () => expect([milliseconds(1.234), milliseconds(2345)]).toEqual(["1.23 ms", "2.35 s"]));
  test("ranges", () => expect(ranges([7, 0, 1, 2, 3, 9, 10])).toBe("0–3, 7, 9, 10"));
  test("timestamps that are no times", () => expect([dateTime(-1), dateTime(9e15)]).toEqual(["–", "–"]));
});

test.each([
  ["all 3 brokers respond, 7171 partitions have a leader", "All 3 brokers respond, 7,171 partitions have a leader"],
  ["broker 1234 at 10.0.0.1:9092 is not alive", "Broker 1234 at 10.0.0.1:9092 is not alive"],
])("%s", (text, words) => expect(sentence(text)).toBe(words));

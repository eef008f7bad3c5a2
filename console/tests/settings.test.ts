import { describe, expect, test } from "vitest";
import { inWords, isAbout } from "../src/lib/settings";

describe("settings as people read them", () => {
  test.each([
    ["group.max.session.timeout.ms", "1800000", "30 min"],
    ["offsets.retention.minutes", "10080", "7 d"],
    ["log.retention.hours", "36", "1 d 12 h"],
    ["socket.request.max.bytes", "104857600", "100 MiB"],
    ["log.retention.bytes", "-1", "no limit"],
    ["max.compaction.lag.ms", "9223372036854775807", "no limit"],
    ["num.partitions", "6", ""],
    ["log.dirs", "/data", ""],
    ["group.initial.rebalance.delay.ms", "0", ""],
    ["log.retention.ms", "", ""],
    ["log.retention.ms", null, ""],
  ])("%s = %s", (name, value, words) => expect(inWords(name, value)).toBe(words));

  const setting = { name: "group.max.size", doc: "Maximum members of a group. Set at the start, as group.size_max." };

  test.each([
    ["", true],
    ["max.size", true],
    ["Members maximum", true],
    ["size_max", true],
    ["members offsets", false],
  ])("a search for %j", (words, found) => expect(isAbout(setting, words)).toBe(found));
});

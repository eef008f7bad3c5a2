import { expect, test } from "vitest";
import { nextStep } from "../src/lib/hints";

test.each([
  ["UNKNOWN_TOPIC_OR_PARTITION", 404, "GET /api/v1/topics lists the topics", "look at the list of topics"],
  ["NON_EMPTY_GROUP", 409, "stop its members first, or remove them by force: true", "stop its members first, or do it all the same, if that is offered"],
  ["NOT_LEADER_OR_FOLLOWER", 503, "retry after Retry-After; GET /readyz shows why", "try again in a moment"],
  ["INVALID_REQUEST", 400, "name some with partition=0&partition=1…", ""],
])("what %s says to programs is said otherwise to people", (code, status, hint, shown) => {
  expect(nextStep({ code, status, hint })).toBe(shown);
});

test("other hints stay", () => {
  const hint = "wait until more brokers are in sync, or lower the topic's min.insync.replicas";
  expect(nextStep({ code: "NOT_ENOUGH_REPLICAS", status: 503, hint })).toBe(hint);
  expect(nextStep({ code: "X", status: 403, hint: "an administrator can grant the right: moldau acl add --help" })).toContain("moldau acl");
});

/** The next step for somebody who looks at a page: what brokers say is for programs that send requests. */

import type { Problem } from "../api/client";

const OF_REQUESTS = /\b(GET|POST|PATCH|DELETE) \/|: (true|false)\b|\b\w+=\w|Retry-After|\bomit\b/;
const TOPICS = "look at the list of topics";
const BROKERS = "look at the list of brokers";

const HERE: Record<string, string> = {
  UNKNOWN_TOPIC_OR_PARTITION: TOPICS,
  UNKNOWN_TOPIC_ID: TOPICS,
  GROUP_ID_NOT_FOUND: "look at the lists of groups and queues",
  NON_EMPTY_GROUP: "stop its members first, or do it all the same, if that is offered",
  TRANSACTIONAL_ID_NOT_FOUND: "look at the list of transactions",
  BROKER_ID_NOT_REGISTERED: BROKERS,
  INVALID_REPLICA_ASSIGNMENT: BROKERS,
  INVALID_REPLICATION_FACTOR: `${BROKERS} for how many there are`,
  INVALID_CONFIG: "look at the configuration of a topic for what there is",
  NO_REASSIGNMENT_IN_PROGRESS: "there is nothing to cancel",
  OFFSET_OUT_OF_RANGE: "begin with the oldest or the newest",
  THROTTLING_QUOTA_EXCEEDED: "try again in a moment, with less at once",
};

/** Empty: there is none to name. */
export function nextStep({ code, hint, status }: Pick<Problem, "code" | "hint" | "status">): string {
  if (!OF_REQUESTS.test(hint)) return hint;
  return HERE[code] ?? (status === 503 ? "try again in a moment" : "");
}

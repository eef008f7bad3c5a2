/** Names for what pages use of the OpenAPI document. Its shapes, in schema.ts, are generated: npm run types. */

import type { components } from "./schema";

type Schemas = components["schemas"];

/** Keys and values are asked for as text: null with the bytes in `*_base64` if they are none. */
type AsText<T> = Omit<T, "key" | "value" | "headers" | "key_base64" | "value_base64" | "binary_headers"> & {
  key: string | null;
  value: string | null;
  headers: [string, string | null][];
  key_base64?: string | null;
  value_base64?: string | null;
  binary_headers?: number[];
};

export type Me = Schemas["Me"];
export type LoginReply = Schemas["LoginReply"];
export type Overview = Schemas["Overview"];
export type Trouble = Schemas["OverviewProblem"];
export type BrokerLive = Schemas["BrokerLive"];
export type BrokerShown = Schemas["BrokerShown"];
export type HappenedEvent = Schemas["HappenedEvent"];
export type History = Schemas["History"];
export type Setting = Schemas["Setting"];
export type LogLevel = Schemas["LogLevelShown"];
export type LogLevelList = Schemas["LogLevelList"];

export type TopicList = Schemas["TopicList"];
export type TopicListed = Schemas["TopicListed"];
export type TopicShown = Schemas["TopicShown"];
export type PartitionShown = Schemas["PartitionShown"];
export type LeadersElected = Schemas["LeadersElected"];
export type TopicElected = Schemas["TopicElected"];
export type TopicSettings = Schemas["TopicSettings"];
export type SettingMeaning = Schemas["SettingMeaning"];
export type TopicGroup = Schemas["TopicGroup"];
export type TopicGroupList = Schemas["TopicGroupList"];

type Found = Schemas["Message"];
/** Of a search or a live view, which say more, or of a partition. */
export type Message = AsText<Schemas["RecordShown"]> &
  Pick<Found, "partition"> &
  Partial<Pick<Found, "kind" | "is_cut" | "value_bytes">>;
export type SearchPage = Omit<Schemas["SearchPage"], "records"> & { records: Message[] };
export type RecordsShown = Omit<Schemas["RecordsShown"], "records"> & { records: AsText<Schemas["RecordShown"]>[] };
type Sent = Partial<Pick<Schemas["RecordSent"], "partition" | "headers">>;
export type RecordSent = Sent & { key: string | null; value: string | null };
export type RecordsSent = Partial<Pick<Schemas["RecordsSent"], "compression" | "key_encoding" | "value_encoding" | "header_encoding">> & {
  records: RecordSent[];
};
export type Compression = Schemas["RecordsSent"]["compression"];
export type Stored = Schemas["RecordsStored"];

export type GroupList = Schemas["GroupList"];
export type GroupListed = Schemas["GroupListed"];
export type GroupShown = Schemas["GroupShown"];
export type GroupReset = Schemas["GroupReset"];
export type Position = Schemas["PositionShown"];
export type Member = Schemas["MemberShown"];
export type ResetPartition = Schemas["ResetPartition"];

export type QueueList = Schemas["QueueList"];
export type QueueListed = Schemas["QueueListed"];
export type QueueShown = Schemas["QueueShown"];
export type DeadLetter = AsText<Schemas["DeadLetterShown"]>;
export type DeadLetterList = Omit<Schemas["DeadLetterList"], "records"> & { records: DeadLetter[] };
export type Purged = Schemas["PurgeReply"];
export type PurgeWanted = Schemas["PurgeWanted"];
export type RedriveWanted = Schemas["RedriveWanted"];
export type Redriven = Schemas["RedriveReply"];

export type Connected = Schemas["ConnectionShown"];
export type ConnectionList = Schemas["ConnectionList"];
export type RaftGroup = Schemas["RaftGroupShown"];
export type RaftGroupList = Schemas["RaftGroupList"];
export type Transaction = Schemas["TransactionShown"];
export type TransactionAborted = Schemas["TransactionAborted"];
export type TransactionList = Schemas["TransactionList"];
export type PipelineShown = Schemas["PipelineShown"];
export type PipelineList = Schemas["PipelineList"];

export type PlayBoard = Schemas["PlayBoard"];
export type PlayedBroker = Schemas["PlayedBroker"];

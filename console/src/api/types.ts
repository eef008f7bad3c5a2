/** Shapes of the API that pages use, by the names of the OpenAPI document. */

export type Me = {
  user: string;
  has_login: boolean;
  read_only: boolean;
  authorizes: boolean;
  cluster: string[];
  expires_at_ms: number | null;
  play: boolean;
};

export type Trouble = { text: string; remedy: string; broker: number | null; topic: string | null };

export type BrokerLive = {
  id: number;
  rack: string | null;
  state: string;
  alive: boolean;
  is_controller: boolean;
  http: [string, number] | null;
  kafka: [string, number];
  version: string | null;
  started_at_ms: number | null;
  cpu: number | null;
  resident_bytes: number | null;
  disk_free_bytes: number | null;
  disk_total_bytes: number | null;
  leaders: number | null;
  replicas: number | null;
  connections: number | null;
  bytes_in: number | null;
  bytes_out: number | null;
  records_in: number | null;
  loop_delay_ms: number | null;
  flush_ms: number | null;
  log_bytes: number | null;
  silent: boolean;
};

export type HappenedEvent = {
  id: number;
  at_ms: number;
  kind: string;
  text: string;
  broker: number | null;
  topic: string | null;
};

export type History = {
  at_ms: number[];
  bytes_in: (number | null)[];
  bytes_out: (number | null)[];
  records_in: (number | null)[];
  produce_p99_ms: (number | null)[];
  commit_p99_ms: (number | null)[];
  lag: (number | null)[];
};

export type Overview = {
  at_ms: number;
  cluster_id: string;
  answered_by: number;
  controller: number;
  metadata_version: number;
  health: { state: "healthy" | "degraded" | "failing"; sentence: string; problems: Trouble[] };
  brokers: BrokerLive[];
  counts: { topics: number; partitions: number; leaderless: number; under_replicated: number; groups: number | null };
  leaderless: { topic: string; partition: number }[];
  under_replicated: { topic: string; partition: number; missing: number[] }[];
  rates: { bytes_in: number | null; bytes_out: number | null; records_in: number | null; requests: number | null };
  latency: {
    produce_p50_ms: number | null;
    produce_p99_ms: number | null;
    commit_p50_ms: number | null;
    commit_p99_ms: number | null;
    flush_p99_ms: number | null;
  };
  lag: { records: number | null; groups: { group: string; lag: number; lag_seconds: number | null }[] };
  events: HappenedEvent[];
  history: History | null;
};

export type TopicListed = {
  name: string;
  id: string;
  internal: boolean;
  partitions: number;
  replication_factor: number;
  leaderless: number;
  under_replicated: number;
  log_bytes?: number | null;
  records?: number | null;
  retention_ms?: number | null;
  retention_bytes?: number | null;
  cleanup_policy?: string | null;
  records_in?: number | null;
  bytes_in?: number | null;
};

export type Setting = { name: string; value: string | null; source: string; type: string; read_only: boolean };

export type SettingMeaning = {
  name: string;
  type: string;
  default: string | null;
  doc: string;
  values: string[] | null;
  unit: string | null;
  read_only: boolean;
};

export type PartitionShown = {
  partition: number;
  leader: number;
  leader_epoch: number;
  replicas: number[];
  in_sync: number[];
  adding: number[];
  removing: number[];
  start_offset: number | null;
  end_offset: number | null;
  log_bytes: number | null;
};

export type TopicShown = {
  name: string;
  id: string;
  internal: boolean;
  partition_count: number;
  replication_factor: number;
  configs: Setting[];
  partitions: PartitionShown[];
  next: number | null;
  may?: string[];
};

export type GroupListed = {
  group: string;
  type: string;
  state: string;
  protocol_type: string;
  coordinator: number;
  lag?: number | null;
};

export type Position = {
  topic: string;
  partition: number;
  committed: number;
  metadata: string;
  end_offset: number | null;
  lag: number | null;
  lag_seconds?: number | null;
};

export type Member = {
  member_id: string;
  instance_id: string | null;
  client_id: string;
  client_host: string;
  topics: string[];
  assigned: { topic: string; partitions: number[] }[];
};

export type GroupShown = {
  group: string;
  type: string;
  state: string;
  protocol: string;
  coordinator: number;
  member_count: number;
  members: Member[];
  lag: number | null;
  offsets: Position[];
  next: string | null;
  may?: string[];
};

export type TopicGroup = {
  group: string;
  state: string;
  member_count: number;
  lag: number | null;
  partitions: { partition: number; committed: number; end_offset: number | null; lag: number | null }[];
};

export type ResetPartition = { partition: number; from: number | null; to: number; read_again: number; skipped: number };

export type Message = {
  partition: number;
  offset: number;
  timestamp: number;
  key: string | null;
  value: string | null;
  headers: [string, string | null][];
  key_base64?: string;
  value_base64?: string;
  value_bytes?: number;
  is_cut?: boolean;
  kind?: string;
};

export type SearchPage = {
  records: Message[];
  searched: { records: number; bytes: number; ranges: { partition: number; from: number; to: number }[] };
  left_records: number;
  cursor: string | null;
};

export type Stored = { records: { partition: number; offset: number | null; error: string | null }[] };

export type QueueListed = {
  group: string;
  topics: string[];
  visibility_ms: number;
  attempts_max: number;
  backoff_ms: number;
  backoff_ms_max: number;
  dead_letter_topic: string;
};

export type QueuePartition = {
  partition: number;
  leader: number;
  ready: number | null;
  leased: number | null;
  delayed: number | null;
  dead: number | null;
  redeliveries: number | null;
  oldest_ready_ms: number | null;
};

export type InFlight = { partition: number; offset: number; worker: string; attempt: number; lease_left_ms: number };

export type QueueShown = {
  group: string;
  topic: string;
  settings: Record<string, unknown>;
  ready: number | null;
  leased: number | null;
  delayed: number | null;
  dead: number | null;
  partitions: QueuePartition[];
  in_flight: InFlight[];
  in_flight_count: number;
  silent: number[];
};

export type DeadLetter = Message & {
  reason: string;
  attempts: number | null;
  died_at_ms: number | null;
  source: { topic: string; partition: number; offset: number } | null;
};

export type Connected = {
  client_id: string;
  software: string;
  version: string;
  user: string;
  address: string;
  listener: string;
  protocol: string;
  opened_at_ms: number | null;
  requests: number;
  bytes_in: number;
  bytes_out: number;
  throttled_ms: number;
  errors: number;
  idle_ms: number | null;
};

export type RaftMember = { broker: number; role: string; match: number | null; lag: number | null; is_in_sync: boolean };

export type RaftGroup = {
  group: string;
  leader: number;
  term: number;
  commit: number | null;
  members: RaftMember[];
  recent: { at_ms: number; text: string }[];
};

export type Transaction = {
  transactional_id: string;
  producer_id: number;
  producer_epoch: number;
  state: string;
  age_ms: number | null;
  timeout_ms: number | null;
  partitions: { topic: string; partition: number }[];
  coordinator: number;
  is_hanging: boolean;
};

export type PipelineShown = {
  name: string;
  kind: string;
  state: string;
  topic: string | null;
  batch: number | null;
  rows: number | null;
  lag: number | null;
  dead_letters: number | null;
  error: string;
  hint: string;
  updated_at_ms: number;
};

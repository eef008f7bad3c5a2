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

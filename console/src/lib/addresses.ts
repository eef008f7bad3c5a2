/** Where commands reach this cluster. Those of moldau name it, unless it is where they look by themselves. */

import { overview } from "../api/overview.svelte";
import type { BrokerLive } from "../api/types";

/** One that answers is enough. */
const NAMED_MAX = 3;
const KAFKA_PORT = 9092;
const GRPC_PORT = 8000;
const HTTP_PORT = 8080;

type Place = { host: string; port: number };

/** How a command talks to the cluster; "files": by the directory of a cluster on this machine. */
export type Reach = "kafka" | "grpc" | "http" | "files";

function places(of: (broker: BrokerLive) => readonly unknown[] | null): Place[] {
  const alive = (overview.latest?.brokers ?? []).filter((one) => one.alive);
  const found = alive.map(of).filter((one) => one !== null) as [string, number][];
  return found.slice(0, NAMED_MAX).map(([host, port]) => ({ host, port }));
}

function named({ host, port }: Place): string {
  return host.includes(":") && !host.startsWith("[") ? `[${host}]:${port}` : `${host}:${port}`;
}

/** Commands look at localhost. */
function isUsual({ host, port }: Place, usual: number): boolean {
  return port === usual && (host === "localhost" || host === "127.0.0.1");
}

function option(name: string, found: Place[], usual: number): string[] {
  return !found.length || found.some((one) => isUsual(one, usual)) ? [] : [name, found.map(named).join(",")];
}

/** This page came from there. */
function http(): string[] {
  const isSecure = location.protocol === "https:";
  const port = Number(location.port) || (isSecure ? 443 : 80);
  return [...option("--http", [{ host: location.hostname, port }], HTTP_PORT), ...(isSecure ? ["--tls"] : [])];
}

export function reaching(reach: Reach): string[] {
  switch (reach) {
    case "kafka":
      return option("-b", places((one) => one.kafka), KAFKA_PORT);
    case "grpc":
      return option("--grpc", places((one) => one.grpc), GRPC_PORT);
    case "http":
      return http();
    case "files":
      return [];
  }
}

/** For clients that have no address of their own. */
export function kafkaAddresses(): string {
  const found = places((one) => one.kafka);
  return found.length ? found.map(named).join(",") : named({ host: location.hostname, port: KAFKA_PORT });
}

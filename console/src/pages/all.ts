/** Which page an address shows, and the pages in the order of the menu. */

import type { Component } from "svelte";
import Broker from "./Broker.svelte";
import Brokers from "./Brokers.svelte";
import Clients from "./Clients.svelte";
import Group from "./Group.svelte";
import Groups from "./Groups.svelte";
import NotFound from "./NotFound.svelte";
import Overview from "./Overview.svelte";
import Pipelines from "./Pipelines.svelte";
import Play from "./Play.svelte";
import Queues from "./Queues.svelte";
import Raft from "./Raft.svelte";
import Settings from "./Settings.svelte";
import Topics from "./Topics.svelte";
import Transactions from "./Transactions.svelte";
import Queue from "./queue/Queue.svelte";
import Topic from "./topic/Topic.svelte";

type Section = {
  path: string;
  title: string;
  list: Component;
  one?: Component;
  names?: number;
  /** In the menu only where the cluster was started to be played with. */
  isPlay?: boolean;
};

export const SECTIONS: Section[] = [
  { path: "", title: "Overview", list: Overview },
  { path: "topics", title: "Topics", list: Topics, one: Topic },
  { path: "groups", title: "Groups", list: Groups, one: Group },
  { path: "queues", title: "Queues", list: Queues, one: Queue, names: 2 },
  { path: "transactions", title: "Transactions", list: Transactions },
  { path: "pipelines", title: "Pipelines", list: Pipelines },
  { path: "clients", title: "Clients", list: Clients },
  { path: "brokers", title: "Brokers", list: Brokers, one: Broker },
  { path: "raft", title: "Raft", list: Raft },
  { path: "play", title: "Play", list: Play, isPlay: true },
  { path: "settings", title: "Settings", list: Settings },
];

export function pageOf(parts: string[]): { title: string; section: string; component: Component } {
  const section = SECTIONS.find((one) => one.path === (parts[0] ?? ""));
  const names = Math.max(0, parts.length - 1);
  const component = names === 0 ? section?.list : names === (section?.names ?? 1) ? section?.one : undefined;
  if (!section || !component) return { title: "Not found", section: "-", component: NotFound };
  return { title: section.title, section: section.path, component };
}

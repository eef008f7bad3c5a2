/** Which page an address shows, and the pages in the order of the menu. */

import type { Component } from "svelte";
import Brokers from "./Brokers.svelte";
import Broker from "./Broker.svelte";
import Group from "./Group.svelte";
import Groups from "./Groups.svelte";
import NotFound from "./NotFound.svelte";
import Overview from "./Overview.svelte";
import Topic from "./topic/Topic.svelte";
import Topics from "./Topics.svelte";

type Section = { path: string; title: string; list: Component; one?: Component };

export const SECTIONS: Section[] = [
  { path: "", title: "Overview", list: Overview },
  { path: "topics", title: "Topics", list: Topics, one: Topic },
  { path: "groups", title: "Groups", list: Groups, one: Group },
  { path: "brokers", title: "Brokers", list: Brokers, one: Broker },
];

export function pageOf(parts: string[]): { title: string; section: string; component: Component } {
  const section = SECTIONS.find((one) => one.path === (parts[0] ?? ""));
  const component = parts.length > 1 ? section?.one : section?.list;
  if (!section || !component || parts.length > 2) return { title: "Not found", section: "-", component: NotFound };
  return { title: section.title, section: section.path, component };
}

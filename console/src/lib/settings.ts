/** Settings of topics and brokers as people read them. */

import { bytes, duration } from "./format";

const SECONDS: Record<string, number> = { ms: 0.001, minutes: 60, hours: 3600 };
const SOURCES: Record<string, string> = {
  default_config: "default",
  static_broker_config: "broker's settings",
  dynamic_broker_config: "set on this broker",
  dynamic_default_broker_config: "set on all brokers",
  dynamic_topic_config: "set on this topic",
};

/** What a number means, where that is not obvious: Kafka's names end with the unit. */
export function inWords(name: string, text: string | null): string {
  const unit = name.slice(name.lastIndexOf(".") + 1);
  const seconds = SECONDS[unit];
  const number = Number(text);
  if (!number || !(seconds || unit === "bytes")) return "";
  if (number < 0) return "no limit";
  if (!seconds) return bytes(number);
  return number >= 1e15 ? "no limit" : duration(number * seconds);
}

/** Where the value of a setting comes from. */
export function sourceOf(name: string): string {
  return SOURCES[name] ?? name.replaceAll("_", " ");
}

/** Whether all of the words are in the name or the meaning. */
export function isAbout(setting: { name: string; doc?: string }, words: string): boolean {
  const text = `${setting.name} ${setting.doc ?? ""}`.toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

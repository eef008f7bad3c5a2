/** What the page of messages is asked for: as typed, in its address, and in a request. */

import type { Params } from "../api/client";
import type { Query } from "./router.svelte";

export const FILTERS = ["contains", "key", "header", "json", "partition", "from", "offset", "time", "markers"] as const;
/** Texts, also of what is a number or a flag; a time has its zone in the address, and is local in the form. */
export type Filters = Record<(typeof FILTERS)[number], string>;

/** Of a search or a live view; brokers refuse more. */
export const PARTITIONS_MAX = 256;

export function filtersOf(get: (name: string) => string): Filters {
  return Object.fromEntries(FILTERS.map((name) => [name, get(name)])) as Filters;
}

/** For the form: `datetime-local` takes local times, here to the second. */
export function asTyped(asked: Filters): Filters {
  const ms = Date.parse(asked.time);
  return { ...asked, time: Number.isNaN(ms) ? "" : localTime(ms) };
}

/** For the address: the same link means the same everywhere. */
export function asQuery(typed: Filters): Query {
  const ms = Date.parse(typed.time);
  return {
    ...typed,
    from: typed.from === "newest" ? null : typed.from,
    offset: typed.from === "offset" ? typed.offset : null,
    time: typed.from === "time" ? (Number.isNaN(ms) ? typed.time : zoned(ms)) : null,
  };
}

/** 2026-11-19T07:03:12 where the reader is. */
export function localTime(ms: number): string {
  const at = new Date(ms);
  return new Date(ms - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

export function zoned(ms: number): string {
  return new Date(ms).toISOString().replace(".000Z", "Z");
}

const STEP = /\[([0-9]{1,9})\]|(\.?)(?:([^\s()=!<>~"'&|\\.[\]]+)|("(?:[^"\\]|\\.)+"))/y;

export type JsonTerm = { path: string[]; equals: string | null };

/** As brokers read it: a path, or a path and the value that it must equal. What is no path: the rest of the text. */
export function readJsonTerm(text: string): JsonTerm | { rest: string } {
  const path: string[] = [];
  let at = 0;
  while (at < text.length && !(path.length && text[at] === "=")) {
    STEP.lastIndex = at;
    const [whole = "", index, dot, name, quoted] = STEP.exec(text) ?? [];
    const found = index ?? name ?? unquoted(quoted ?? "");
    if (!found || (index === undefined && path.length && !dot)) return { rest: text.slice(at) };
    path.push(found);
    at += whole.length;
  }
  return path.length ? { path, equals: at < text.length ? text.slice(at + 1) : null } : { rest: text };
}

function unquoted(text: string): string | undefined {
  try {
    return JSON.parse(text) as string;
  } catch {
    return undefined;
  }
}

/** What is wrong with a JSON filter, or nothing. */
export function jsonMistake(text: string): string {
  if (text === "") return "";
  const help = 'Write a path, or a path and the value that it must equal: user.items[0]."odd name"=42.';
  const found = readJsonTerm(text);
  if ("rest" in found) return found.rest ? `“${found.rest}” is no part of a path. ${help}` : `The path is missing. ${help}`;
  return found.equals?.startsWith("=") ? `One “=” is enough. ${help}` : "";
}

export type Mistakes = Partial<Record<(typeof FILTERS)[number], string>>;

export function mistakesOf(asked: Filters): Mistakes {
  const found: Mistakes = {};
  const json = jsonMistake(asked.json);
  if (json) found.json = json;
  if (asked.from === "time" && Number.isNaN(Date.parse(asked.time))) found.time = "This is no time.";
  if (asked.from === "offset" && !/^\d{1,19}$/.test(asked.offset)) found.offset = "This is no offset.";
  if (asked.partition !== "" && partitionsOf(asked.partition, Infinity) === null) found.partition = "This is no partition.";
  return found;
}

/** "256-511", for a select: as many as one search takes. */
export function partitionGroups(count: number): { value: string; title: string }[] {
  const found = [];
  for (let first = 0; count > PARTITIONS_MAX && first < count; first += PARTITIONS_MAX) {
    const last = Math.min(first + PARTITIONS_MAX, count) - 1;
    found.push({ value: `${first}-${last}`, title: `${first}–${last}` });
  }
  return found;
}

/** Those to ask for; all: []; null: what was asked for is none. Of many partitions the first are asked. */
export function partitionsOf(asked: string, count: number): number[] | null {
  const wanted = asked === "" ? (count > PARTITIONS_MAX ? `0-${PARTITIONS_MAX - 1}` : "") : asked;
  if (wanted === "") return [];
  const match = /^(\d{1,9})(?:-(\d{1,9}))?$/.exec(wanted);
  if (match === null) return null;
  const first = Number(match[1]);
  const last = Number(match[2] ?? match[1]);
  if (last < first || last - first >= PARTITIONS_MAX) return null;
  return Array.from({ length: last - first + 1 }, (_, at) => first + at);
}

/** Of live views, and of searches. */
export function contentParams(asked: Filters, partitionCount: number): Params {
  const { contains, key, header, json } = asked;
  return {
    contains,
    key,
    header,
    json,
    partition: partitionsOf(asked.partition, partitionCount) ?? asked.partition,
    markers: asked.markers === "true" ? true : null,
  };
}

export function searchParams(asked: Filters, partitionCount: number): Params {
  return {
    ...contentParams(asked, partitionCount),
    direction: asked.from === "" || asked.from === "newest" ? "newest" : "oldest",
    offset: asked.from === "offset" ? asked.offset : null,
    time: asked.from === "time" ? Date.parse(asked.time) : null,
  };
}

/** Whether a message may be left out for what it holds. */
export function choosesContent(asked: Filters): boolean {
  return Boolean(asked.contains || asked.key || asked.header || asked.json);
}

/** Numbers, sizes and times as people read them. */

export const NOT_KNOWN = "–";

type Value = number | null | undefined;

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export function count(value: Value): string {
  return value === null || value === undefined ? NOT_KNOWN : whole.format(value);
}

function scaled(value: number, step: number, units: string[]): string {
  let at = 0;
  while (Math.abs(value) >= step * 0.9995 && at < units.length - 1) {
    value /= step;
    at++;
  }
  const text = Math.abs(value) >= 1000 ? whole.format(value) : short.format(value);
  return units[at] ? `${text} ${units[at]}` : text;
}

export function bytes(value: Value): string {
  if (value === null || value === undefined) return NOT_KNOWN;
  return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
}

/** 12,345,678 as 12.3 M. */
export function large(value: Value): string {
  if (value === null || value === undefined) return NOT_KNOWN;
  if (Math.abs(value) < 10 && !Number.isInteger(value)) return value.toFixed(1);
  return Math.abs(value) < 10_000 ? whole.format(value) : scaled(value, 1000, ["", "k", "M", "G", "T"]);
}

export function perSecond(value: Value): string {
  if (value === null || value === undefined) return NOT_KNOWN;
  if (value === 0) return "0/s";
  if (value < 1) return "< 1/s";
  return `${large(Math.round(value))}/s`;
}

export function bytesPerSecond(value: Value): string {
  if (value === null || value === undefined) return NOT_KNOWN;
  return `${bytes(value)}/s`;
}

export function milliseconds(value: Value): string {
  if (value === null || value === undefined) return NOT_KNOWN;
  return value >= 1000 ? `${short.format(value / 1000)} s` : `${short.format(value)} ms`;
}

const STEPS: [number, string][] = [
  [86_400, "d"],
  [3_600, "h"],
  [60, "min"],
  [1, "s"],
];

/** 93,784 seconds as "1 d 2 h". */
export function duration(seconds: Value): string {
  if (seconds === null || seconds === undefined) return NOT_KNOWN;
  if (seconds < 0) return NOT_KNOWN;
  if (seconds < 1) return seconds === 0 ? "0 s" : "< 1 s";
  let left = Math.round(seconds);
  const words: string[] = [];
  for (const [size, unit] of STEPS) {
    const found = Math.floor(left / size);
    if (found || words.length) {
      if (found) words.push(`${found} ${unit}`);
      left -= found * size;
      if (words.length === 2 || (words.length === 1 && !found)) break;
    }
  }
  return words.join(" ");
}

/** A retention: -1 has no end. */
export function retention(ms: Value): string {
  if (ms === null || ms === undefined) return NOT_KNOWN;
  return ms < 0 ? "for ever" : duration(ms / 1000);
}

const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const moment = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" });

export function timeOf(ms: Value): string {
  return ms === null || ms === undefined || !isTime(ms) ? NOT_KNOWN : clock.format(ms);
}

/** With the date, and milliseconds where they matter: 2026-11-19 07:03:12.345. */
export function dateTime(ms: Value): string {
  if (ms === null || ms === undefined || !isTime(ms)) return NOT_KNOWN;
  return `${moment.format(ms)}.${String(Math.trunc(Math.abs(ms) % 1000)).padStart(3, "0")}`;
}

/** For narrow windows: the time of today, the date of another day. */
export function shortTime(ms: Value, now = Date.now()): string {
  if (ms === null || ms === undefined || !isTime(ms)) return NOT_KNOWN;
  const [date = "", time = ""] = moment.format(ms).split(" ");
  return moment.format(now).startsWith(date) ? time : date;
}

export function ago(ms: Value, now: number): string {
  if (ms === null || ms === undefined) return NOT_KNOWN;
  const seconds = (now - ms) / 1000;
  if (seconds < 1) return "now";
  return `${duration(seconds)} ago`;
}

/** Timestamps are whatever a producer sent; a Date has limits. */
export function isTime(ms: number): boolean {
  return ms >= 0 && ms <= 8.64e15;
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** A list of numbers as ranges: 0–3, 7. */
export function ranges(numbers: number[]): string {
  const sorted = [...numbers].sort((a, b) => a - b);
  const words: string[] = [];
  for (let at = 0; at < sorted.length; ) {
    let end = at;
    while (sorted[end + 1] === sorted[end]! + 1) end++;
    words.push(end - at >= 2 ? `${sorted[at]}–${sorted[end]}` : sorted.slice(at, end + 1).join(", "));
    at = end + 1;
  }
  return words.join(", ");
}

/** What the broker says, as a sentence of its own. */
/** As people read it: a capital at its begin, and counts as on the rest of the page. */
export function sentence(text: string): string {
  const counted = text.replace(/(?<![\w:.])\d{4,}(?= (?:partition|replica|topic|message|record|member)s?\b)/g, (count) => whole.format(Number(count)));
  return counted.charAt(0).toUpperCase() + counted.slice(1);
}

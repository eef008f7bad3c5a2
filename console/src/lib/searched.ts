/** What a search looked at. */

export type Range = { partition: number; from: number; to: number };

/** Those of all pages, by partition, joined where they meet. `to` is not a part of a range. */
export function joined(known: Range[], more: Range[]): Range[] {
  const sorted = [...known, ...more].filter((one) => one.to > one.from);
  sorted.sort((a, b) => a.partition - b.partition || a.from - b.from);
  const found: Range[] = [];
  for (const one of sorted) {
    const last = found.at(-1);
    if (last && last.partition === one.partition && one.from <= last.to) last.to = Math.max(last.to, one.to);
    else found.push({ ...one });
  }
  return found;
}

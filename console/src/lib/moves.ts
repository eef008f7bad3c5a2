/** How much of a log a new replica has. */

export function shareOf(
  member: { match: number | null; lag: number | null },
  start: number | null,
  commit: number | null,
): number | null {
  if (member.match === null || start === null || commit === null || commit <= start) return null;
  return Math.min(1, Math.max(0, (member.match - start) / (commit - start)));
}

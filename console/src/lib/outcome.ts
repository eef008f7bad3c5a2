/** What is to say of work that many brokers share, when some of it was not done. */

type Shared = { is_complete: boolean; refused: { broker: number; error: string }[]; silent: number[] };

/** Empty if all was done. */
export function leftOver(done: Shared): string {
  const parts = done.refused.map((one) => `Broker ${one.broker} refused: ${one.error}.`);
  if (done.silent.length) parts.push(`${done.silent.map((one) => `Broker ${one}`).join(", ")} did not answer.`);
  if (!parts.length && !done.is_complete) parts.push("There are more: do it again.");
  return parts.join(" ");
}

/** Whether another request would go on where this one stopped. */
export function goesOn(done: Shared, count: number): boolean {
  return !done.is_complete && count > 0 && !done.refused.length && !done.silent.length;
}

/** Templates of messages that repeat: {{n}}, {{uuid}} and {{now}}. */

function uuid(): string {
  // crypto.randomUUID is missing over plain HTTP to another machine.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6]! & 0x0f) | 0x40;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

export function fill(template: string, at: number): string {
  return template.replace(/\{\{(n|uuid|now)\}\}/g, (_, name: string) =>
    name === "n" ? String(at) : name === "now" ? String(Date.now()) : uuid(),
  );
}

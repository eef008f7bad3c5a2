/** Bytes as people read them: offset, sixteen bytes, and what of it is text. */

export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const raw = atob(text);
  const data = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) data[at] = raw.charCodeAt(at);
  return data;
}

export function toBase64(data: Uint8Array): string {
  let raw = "";
  for (let at = 0; at < data.length; at += 0x8000)
    raw += String.fromCharCode(...data.subarray(at, at + 0x8000));
  return btoa(raw);
}

export function hexDump(data: Uint8Array, linesMax = 256): string {
  const lines: string[] = [];
  for (let at = 0; at < data.length && lines.length < linesMax; at += 16) {
    const row = [...data.subarray(at, at + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0"));
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·"));
    const left = hex.slice(0, 8).join(" ").padEnd(23);
    const right = hex.slice(8).join(" ").padEnd(23);
    lines.push(`${at.toString(16).padStart(8, "0")}  ${left}  ${right}  ${text.join("")}`);
  }
  return lines.join("\n");
}

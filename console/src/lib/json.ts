/** Reads JSON without losing a digit: numbers stay the text that was sent. */

export type Json =
  | { kind: "object"; entries: [string, Json][] }
  | { kind: "array"; items: Json[] }
  | { kind: "string"; text: string }
  | { kind: "number"; text: string }
  | { kind: "word"; text: "true" | "false" | "null" };

const DEPTH_MAX = 200;
const SPACE = /[ \t\n\r]*/y;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const WORD = /true|false|null/y;

/** null: it is no JSON, or is nested too deep to be shown. */
export function parseJson(text: string): Json | null {
  let at = 0;

  function match(pattern: RegExp): string | null {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found === null) return null;
    at += found[0].length;
    return found[0];
  }

  function take(mark: string): boolean {
    match(SPACE);
    if (text[at] !== mark) return false;
    at++;
    return true;
  }

  function string(): string | null {
    match(SPACE);
    const found = match(STRING);
    return found === null ? null : (JSON.parse(found) as string);
  }

  function value(depth: number): Json | null {
    if (depth > DEPTH_MAX) return null;
    if (take("{")) {
      const entries: [string, Json][] = [];
      if (take("}")) return { kind: "object", entries };
      do {
        const name = string();
        if (name === null || !take(":")) return null;
        const found = value(depth + 1);
        if (found === null) return null;
        entries.push([name, found]);
      } while (take(","));
      return take("}") ? { kind: "object", entries } : null;
    }
    if (take("[")) {
      const items: Json[] = [];
      if (take("]")) return { kind: "array", items };
      do {
        const found = value(depth + 1);
        if (found === null) return null;
        items.push(found);
      } while (take(","));
      return take("]") ? { kind: "array", items } : null;
    }
    if (text[at] === '"') {
      const found = string();
      return found === null ? null : { kind: "string", text: found };
    }
    const word = match(WORD);
    if (word !== null) return { kind: "word", text: word as "true" };
    const number = match(NUMBER);
    return number === null ? null : { kind: "number", text: number };
  }

  const found = value(0);
  match(SPACE);
  return found !== null && at === text.length ? found : null;
}

/** The same JSON, one value per line. */
export function indented(json: Json, depth = 0): string {
  const pad = "  ".repeat(depth + 1);
  const end = "\n" + "  ".repeat(depth);
  switch (json.kind) {
    case "object":
      if (!json.entries.length) return "{}";
      return `{\n${json.entries
        .map(([name, one]) => `${pad}${JSON.stringify(name)}: ${indented(one, depth + 1)}`)
        .join(",\n")}${end}}`;
    case "array":
      if (!json.items.length) return "[]";
      return `[\n${json.items.map((one) => pad + indented(one, depth + 1)).join(",\n")}${end}]`;
    case "string":
      return JSON.stringify(json.text);
    default:
      return json.text;
  }
}

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
/** Without a choice under the star, for which engines keep a stack as long as the string. */
const PLAIN = /[^"\\\u0000-\u001f]*/y;
const ESCAPE = /\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})/y;
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
    const first = at;
    if (text[at] !== '"') return null;
    at++;
    do match(PLAIN);
    while (match(ESCAPE) !== null);
    if (text[at] !== '"') return null;
    at++;
    return JSON.parse(text.slice(first, at)) as string;
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

/** The same JSON, one value per line: the whole of it, or lines until `most` characters are passed. */
export function indented(json: Json, most = Infinity): string {
  const pieces: string[] = [];
  let length = 0;

  function put(piece: string): void {
    pieces.push(piece);
    length += piece.length;
  }

  function list<T>(open: string, close: string, items: T[], one: (item: T) => void, depth: number): void {
    if (!items.length) return put(open + close);
    put(open);
    let isFirst = true;
    for (const item of items) {
      if (length > most) return;
      put((isFirst ? "\n" : ",\n") + "  ".repeat(depth + 1));
      isFirst = false;
      one(item);
    }
    if (length <= most) put("\n" + "  ".repeat(depth) + close);
  }

  function write(value: Json, depth: number): void {
    if (value.kind === "object")
      list("{", "}", value.entries, ([name, one]) => {
        put(JSON.stringify(name) + ": ");
        write(one, depth + 1);
      }, depth);
    else if (value.kind === "array") list("[", "]", value.items, (one) => write(one, depth + 1), depth);
    else put(value.kind === "string" ? JSON.stringify(value.text) : value.text);
  }

  write(json, 0);
  return pieces.join("");
}

/** Whether it holds fewer values than `most`. */
export function hasFewer(json: Json, most: number): boolean {
  const open = [json];
  for (let seen = 0; open.length; seen++) {
    if (seen + open.length >= most) return false;
    const one = open.pop()!;
    if (one.kind === "array" && one.items.length < most) open.push(...one.items);
    else if (one.kind === "object" && one.entries.length < most) open.push(...one.entries.map(([, value]) => value));
    else if (one.kind === "array" || one.kind === "object") return false;
  }
  return true;
}

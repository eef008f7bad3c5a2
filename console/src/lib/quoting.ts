/** Text as words of a shell and as Python's literals, such that nothing of it is run. */

/** Quoted for a POSIX shell. */
export function quoted(text: string): string {
  return /^[A-Za-z0-9_./:=,@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

/** A terminal acts on control characters that are pasted, whatever quotes are around them. */
export function canBePasted(text: string): boolean {
  return !/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/.test(text);
}

/** JSON without a character that a terminal acts on. */
export function json(value: unknown): string {
  return JSON.stringify(value).replace(
    /[\u007f-\u009f\u2028\u2029]/g,
    (found) => "\\u" + found.charCodeAt(0).toString(16).padStart(4, "0"),
  );
}

/** JSON's strings are Python's, too. */
export function pythonText(text: string): string {
  return json(text);
}

export function pythonValue(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return pythonText(value);
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([name, one]) => `${pythonText(name)}: ${pythonValue(one)}`)
      .join(", ")}}`;
  return String(value);
}

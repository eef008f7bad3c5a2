import { expect, test } from "vitest";
import { again, empty, keep, keptFor, request } from "../src/lib/producing";

test("a message that is sent again is what it was", () => {
  const typed = again({
    key: null,
    key_base64: "//8=",
    value: '{"n": "{{n}}", "at": "{{now}}"}',
    headers: [
      ["bytes", "/w=="],
      ["none", null],
      ["text", btoa("/w==")],
      ["lines", btoa("a\r\nb")],
      ["", ""],
    ],
  });
  expect(request(typed, 0, 1)).toEqual({
    records: [
      {
        key: "//8=",
        value: '{"n": "{{n}}", "at": "{{now}}"}',
        headers: [
          ["bytes", "/w=="],
          ["none", null],
          ["text", btoa("/w==")],
          ["lines", btoa("a\r\nb")],
          ["", ""],
        ],
      },
    ],
    key_encoding: "base64",
    header_encoding: "base64",
  });
});

test("text is text: key, headers and an empty value", () => {
  const typed = again({ key: "k é", value: "", headers: [["h", "w6k="]] });
  expect(request(typed, 0, 1)).toEqual({ records: [{ key: "k é", value: "", headers: [["h", "é"]] }] });
});

test("a key of several lines is sent as its bytes", () => {
  const typed = again({ key: "a\nb", value: "v", headers: [] });
  expect(request(typed, 0, 1)).toEqual({ records: [{ key: btoa("a\nb"), value: "v" }], key_encoding: "base64" });
});

test("a tombstone without a key stays one", () => {
  expect(request(again({ key: null, value: null, headers: [] }), 0, 1)).toEqual({ records: [{ key: null, value: null }] });
});

test("a binary value, and a long one, are sent as bytes", () => {
  const binary = again({ key: null, value: null, value_base64: "/wA=", headers: [] });
  expect(binary.file).toMatchObject({ base64: "/wA=", size: 2 });
  expect(request(binary, 0, 1)).toEqual({ records: [{ key: null, value: "/wA=" }], value_encoding: "base64" });
  const long = again({ key: null, value: "é".repeat(600_000), headers: [] });
  expect([long.value, long.file?.size]).toEqual(["", 1_200_000]);
});

test("templates are filled in what is new: in key, value and headers, and not in bytes", () => {
  const typed = { ...empty(), hasKey: true, key: "k{{n}}", value: '{"n":{{n}}}', partition: "2", compression: "zstd" as const };
  typed.headers = [
    { name: "at", content: "{{n}}", as: "text", isGiven: false },
    { name: "b", content: "/w==", as: "base64", isGiven: false },
  ];
  expect(request(typed, 7, 2)).toEqual({
    records: [7, 8].map((n) => ({
      key: `k${n}`,
      value: `{"n":${n}}`,
      headers: [
        ["at", btoa(String(n))],
        ["b", "/w=="],
      ],
      partition: 2,
    })),
    header_encoding: "base64",
    compression: "zstd",
  });
});

test("what is typed is kept for some topics", () => {
  for (const topic of ["a", "b", "c", "d", "e", "a", "f"]) keep(topic, { ...empty(), value: topic });
  expect(keptFor("a")?.value).toBe("a");
  expect(keptFor("b")).toBeNull();
  expect(keptFor("f")?.value).toBe("f");
});

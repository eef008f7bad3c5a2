/** What can be done to a cluster on purpose: as a request, as a command, and in plain words. */

import type { PlayBoard, PlayedBroker } from "../../api/types";
import { type Command, command } from "../../lib/commands";
import { milliseconds } from "../../lib/format";

export const PAUSE_SECONDS = 10;
export const PAUSE_SECONDS_MAX = 120;
export const DELAY_MS = 200;
export const DELAY_MS_MAX = 5000;

export type Act = {
  title: string;
  button: string;
  isDanger: boolean;
  /** What happens, and what to watch. */
  words: string[];
  path: (string | number)[];
  body: Record<string, unknown>;
  moldau: string;
  done: string;
  /** The broker that will not answer for a while. */
  silences?: number;
  asks?: "seconds" | "delay_ms";
};

export function kill(id: number, isAlone: boolean): Act {
  return {
    title: `Kill broker ${id}`,
    button: "Kill",
    isDanger: true,
    words: [
      `The process of broker ${id} ends at once, as by kill -9. It loses nothing that it has acknowledged.`,
      isAlone
        ? "It is the only one: nobody is served until you start it again in the terminal, by moldau dev."
        : "The others notice the closed connections, and take over the partitions that it led. It stays down until you start it.",
    ],
    path: ["play", "brokers", id],
    body: { action: "kill" },
    moldau: isAlone ? "" : `moldau cluster kill ${id}`,
    done: `Broker ${id} is killed.`,
    silences: id,
  };
}

export function pause(id: number): Act {
  return {
    title: `Pause broker ${id}`,
    button: "Pause",
    isDanger: true,
    words: [
      `The process of broker ${id} is frozen, as on a machine that stalls. Its connections stay open, and it answers nobody.`,
      "The others cannot see whether it is dead: they wait for an election timeout, then take over. When it goes on, it finds that it leads no more.",
    ],
    path: ["play", "brokers", id],
    body: { action: "pause", seconds: PAUSE_SECONDS },
    moldau: `moldau cluster pause ${id} --for {seconds}s`,
    done: `Broker ${id} is paused. It goes on by itself.`,
    silences: id,
    asks: "seconds",
  };
}

export function resume(id: number): Act {
  return {
    title: `Let broker ${id} go on`,
    button: "Go on",
    isDanger: false,
    words: [`The process of broker ${id} goes on where it stood still. It learns who leads now, and catches up.`],
    path: ["play", "brokers", id],
    body: { action: "resume" },
    moldau: `moldau cluster resume ${id}`,
    done: `Broker ${id} goes on.`,
  };
}

export function restart(id: number, isDown: boolean): Act {
  return {
    title: isDown ? `Start broker ${id}` : `Restart broker ${id}`,
    button: isDown ? "Start" : "Restart",
    isDanger: !isDown,
    words: isDown
      ? [`Broker ${id} starts, reads its logs, and fetches what it missed. Then it leads again what it prefers to lead.`]
      : [
          `Broker ${id} hands over what it leads, stops cleanly, and starts again: what an upgrade does. Clients hardly notice.`,
        ],
    path: ["play", "brokers", id],
    body: { action: "restart" },
    moldau: `moldau cluster restart ${id}`,
    done: isDown ? `Broker ${id} starts.` : `Broker ${id} restarts.`,
    ...(isDown ? {} : { silences: id }),
  };
}

export function cut(a: number, b: number): Act {
  return {
    title: `Cut the link between brokers ${a} and ${b}`,
    button: "Cut",
    isDanger: true,
    words: [
      `Nothing passes between brokers ${a} and ${b} any more, as if all packets were lost. Clients and other brokers still reach both.`,
      "Each takes the other for dead. A leader that no longer reaches a majority steps down; replicas behind the cut fall out of sync.",
    ],
    path: ["play", "links"],
    body: { a, b, is_cut: true },
    moldau: `moldau cluster cut ${a} ${b}`,
    done: `The link between brokers ${a} and ${b} is cut.`,
  };
}

export function mend(a: number, b: number): Act {
  return {
    title: `Mend the link between brokers ${a} and ${b}`,
    button: "Mend",
    isDanger: false,
    words: [`Brokers ${a} and ${b} connect again, and what is behind catches up.`],
    path: ["play", "links"],
    body: { a, b, is_cut: false },
    moldau: `moldau cluster cut ${a} ${b} --mend`,
    done: `The link between brokers ${a} and ${b} is mended.`,
  };
}

export function slow(id: number, isAlone: boolean): Act {
  return {
    title: `Slow the disk of broker ${id}`,
    button: "Slow",
    isDanger: true,
    words: [
      `Each flush of broker ${id} takes longer by this, as on a disk that fails or is shared.`,
      isAlone
        ? "Whoever waits for acknowledgements waits for them: watch the latencies of flushes and of produce."
        : "A message is committed when a majority has flushed it: one slow disk of three is not felt, also if it is the leader's. Two are.",
    ],
    path: ["play", "disks"],
    body: { broker: id, delay_ms: DELAY_MS },
    moldau: isAlone ? "" : `moldau cluster slow ${id} --by {delay_ms}ms`,
    done: `The disk of broker ${id} is slow.`,
    asks: "delay_ms",
  };
}

export function hasten(id: number, isAlone: boolean): Act {
  return {
    title: `Make the disk of broker ${id} fast again`,
    button: "Make it fast",
    isDanger: false,
    words: [`Flushes of broker ${id} take as long as its disk needs.`],
    path: ["play", "disks"],
    body: { broker: id, delay_ms: 0 },
    moldau: isAlone ? "" : `moldau cluster slow ${id} --by 0`,
    done: `The disk of broker ${id} is fast again.`,
  };
}

export function heal(isAlone: boolean): Act {
  return {
    title: "Make all well again",
    button: "Make all well again",
    isDanger: false,
    words: ["Brokers that are down start, paused ones go on, links are mended, and disks are as fast as they are."],
    path: ["play", "heal"],
    body: {},
    moldau: isAlone ? "" : "moldau cluster heal",
    done: "All faults have ended.",
  };
}

/** With what was chosen for it. */
export function bodyOf(act: Act, chosen: number): Record<string, unknown> {
  return act.asks ? { ...act.body, [act.asks]: chosen } : act.body;
}

export function commandOf(act: Act, chosen: number): Command {
  const moldau = act.asks ? act.moldau.replace(`{${act.asks}}`, String(chosen)) : act.moldau;
  return command(moldau, "POST", act.path, bodyOf(act, chosen));
}

export function boundsOf(act: Act): { label: string; least: number; most: number; usual: number } {
  return act.asks === "seconds"
    ? { label: "Seconds", least: 1, most: PAUSE_SECONDS_MAX, usual: PAUSE_SECONDS }
    : { label: "Milliseconds of each flush", least: 1, most: DELAY_MS_MAX, usual: DELAY_MS };
}

const DOWN = ["stopped", "killed", "failed"];

export function isDown(one: PlayedBroker): boolean {
  return DOWN.includes(one.state);
}

export function delayOf(board: PlayBoard, id: number): number {
  return board.disks.find((disk) => disk.broker === id)?.delay_ms ?? 0;
}

/** Each pair of brokers once. */
export function pairs(board: PlayBoard): { a: number; b: number; isCut: boolean }[] {
  const ids = board.brokers.map((one) => one.id).sort((one, other) => one - other);
  return ids.flatMap((a, at) =>
    ids.slice(at + 1).map((b) => ({ a, b, isCut: board.links.some((link) => link.a === a && link.b === b) })),
  );
}

/** What is broken on purpose, in a sentence; empty: nothing. */
export function faultsOf(board: PlayBoard): string {
  const found = [
    ...board.brokers.filter((one) => one.state === "paused" || isDown(one)).map((one) => `broker ${one.id} is ${one.state}`),
    ...board.links.map((link) => `the link ${link.a} – ${link.b} is cut`),
    ...board.disks.map((disk) => `each flush of broker ${disk.broker} takes ${milliseconds(disk.delay_ms)} longer`),
  ];
  return found.join("; ");
}

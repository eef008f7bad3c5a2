/** Who uses this page: a token of a login, kept as long as the tab is open, and what it may do. */

import type { Me } from "./types";

const KEY = "moldau.token";

function stored(): string {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

class Login {
  token = $state(stored());
  me = $state<Me | null>(null);
  /** Why a login is needed; null: it is not. */
  wanted = $state<string | null>(null);

  asked(why: string): void {
    this.me = null;
    this.wanted = this.token ? why : "";
    this.#keep("");
  }

  enter(token: string): void {
    this.#keep(token);
    this.wanted = null;
  }

  leave(): void {
    this.#keep("");
    this.me = null;
    this.wanted = "";
  }

  get isReadOnly(): boolean {
    return this.me?.read_only ?? false;
  }

  /** Whether an operation on the cluster is allowed. */
  may(operation: string): boolean {
    if (this.me === null) return false;
    return !this.me.authorizes || this.me.cluster.includes(operation);
  }

  /** The same for what changes something. */
  mayChange(operation = "ALTER"): boolean {
    return !this.isReadOnly && this.may(operation);
  }

  /** Whether the cluster may be operated: brokers, leaders, log levels. */
  get mayOperate(): boolean {
    return !this.isReadOnly && (this.may("ALTER") || this.may("ALTER_CONFIGS"));
  }

  #keep(token: string): void {
    this.token = token;
    try {
      if (token) sessionStorage.setItem(KEY, token);
      else sessionStorage.removeItem(KEY);
    } catch {
      // A browser that stores nothing: a new load of the page asks again.
    }
  }
}

export const login = new Login();

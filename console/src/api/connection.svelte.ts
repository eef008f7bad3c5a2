/** Whether the broker that served this page answers. While it does not, it is asked again and again. */

const AGAIN_MS = 1500;
/** A broker that hangs accepts connections, and answers none: its kernel does that. */
const ANSWER_MS_MAX = 5000;

class Connection {
  isLost = $state(false);
  since = $state(0);
  /** Grows with each return: what was shown before may be old. */
  returns = $state(0);
  #isAsking = false;
  #ends = new AbortController();

  /** Ends when the connection is lost: what is only read need not wait longer. */
  get signal(): AbortSignal {
    return this.#ends.signal;
  }

  works(): void {
    if (!this.isLost) return;
    this.isLost = false;
    this.returns++;
  }

  /** A request got no reply, or none yet. Only the broker itself tells whether it is gone: a single one may fail. */
  doubted(): void {
    if (this.#isAsking) return;
    this.#isAsking = true;
    void this.#ask();
  }

  async #ask(): Promise<void> {
    const late = new AbortController();
    const timer = setTimeout(() => late.abort(), ANSWER_MS_MAX);
    try {
      await fetch("/healthz", { cache: "no-store", signal: late.signal });
      this.#isAsking = false;
      this.works();
    } catch {
      if (!this.isLost) this.#lost();
      setTimeout(() => void this.#ask(), AGAIN_MS);
    } finally {
      clearTimeout(timer);
    }
  }

  #lost(): void {
    this.since = Date.now();
    this.isLost = true;
    this.#ends.abort();
    this.#ends = new AbortController();
  }
}

export const connection = new Connection();

/** Whether the broker that served this page answers. While it does not, it is asked again and again. */

const AGAIN_MS = 1500;

class Connection {
  isLost = $state(false);
  since = $state(0);
  /** Grows with each return: what was shown before may be old. */
  returns = $state(0);
  #isAsking = false;

  works(): void {
    if (!this.isLost) return;
    this.isLost = false;
    this.returns++;
  }

  /** A request got no reply. Only the broker itself tells whether it is gone: a single one may fail. */
  doubted(): void {
    if (this.#isAsking) return;
    this.#isAsking = true;
    void this.#ask();
  }

  async #ask(): Promise<void> {
    try {
      await fetch("/healthz", { cache: "no-store" });
      this.#isAsking = false;
      this.works();
    } catch {
      if (!this.isLost) this.since = Date.now();
      this.isLost = true;
      setTimeout(() => void this.#ask(), AGAIN_MS);
    }
  }
}

export const connection = new Connection();

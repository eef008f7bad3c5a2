/** Whether the broker that served this page answers. While it does not, it is asked again and again. */

const AGAIN_MS = 1500;

class Connection {
  isLost = $state(false);
  since = $state(0);
  /** Grows with each return: what was shown before may be old. */
  returns = $state(0);
  #timer: ReturnType<typeof setTimeout> | undefined;

  works(): void {
    if (!this.isLost) return;
    this.isLost = false;
    this.returns++;
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  lost(): void {
    if (!this.isLost) {
      this.isLost = true;
      this.since = Date.now();
    }
    this.#timer ??= setTimeout(() => void this.#ask(), AGAIN_MS);
  }

  async #ask(): Promise<void> {
    this.#timer = undefined;
    try {
      await fetch("/healthz", { cache: "no-store" });
      this.works();
    } catch {
      this.lost();
    }
  }
}

export const connection = new Connection();

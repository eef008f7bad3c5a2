/** What was done, said in a corner for some seconds. */

type Toast = { id: number; text: string };

class Toasts {
  shown = $state<Toast[]>([]);
  #next = 1;

  say(text: string): void {
    const id = this.#next++;
    this.shown.push({ id, text });
    setTimeout(() => this.dismiss(id), 8000);
  }

  dismiss(id: number): void {
    this.shown = this.shown.filter((one) => one.id !== id);
  }
}

export const toasts = new Toasts();

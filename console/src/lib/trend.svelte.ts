/** What a number was while the page was open. */

const POINTS_MAX = 600;

export class Trend {
  at = $state.raw<number[]>([]);
  values = $state.raw<(number | null)[]>([]);

  add(value: number | null): void {
    this.at = [...this.at.slice(-POINTS_MAX + 1), Date.now()];
    this.values = [...this.values.slice(-POINTS_MAX + 1), value];
  }
}

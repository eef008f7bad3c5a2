/** The time, once a second, for what says how long ago something was. */

class Now {
  ms = $state(Date.now());

  constructor() {
    setInterval(() => {
      if (!document.hidden) this.ms = Date.now();
    }, 1000);
  }
}

export const now = new Now();

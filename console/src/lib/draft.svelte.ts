/** A message to be produced again: handed from the page of messages to that which produces. */

import type { Message } from "../api/types";

class Draft {
  message = $state.raw<Message | null>(null);

  take(): Message | null {
    const found = this.message;
    this.message = null;
    return found;
  }
}

export const draft = new Draft();

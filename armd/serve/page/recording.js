/** What one request wrote: what was given, then the tokens of every step, as they came. */

export class Recording {
  start = null; // the server's first event: tokens, pieces, known, order, steps
  steps = []; // then one for each model call: {at: [{position, piece, logprob, ...}], seconds}
  end = null; // and the last: text, calls, seconds, tokens_per_second

  constructor() {
    this.places = []; // by position: {piece, given, step, logprob, rivals}
  }

  /** Takes in the next event of the stream. */
  add(event) {
    if (event.type === "start") {
      this.start = event;
      this.places = event.known.map((known, position) => ({
        piece: known ? event.pieces[position] : null,
        given: known,
        step: null,
      }));
    } else if (event.type === "step") {
      this.steps.push(event);
      for (const { position, ...drawn } of event.at) {
        this.places[position] = { ...drawn, given: false, step: this.steps.length };
      }
    } else if (event.type === "end") {
      this.end = event;
    }
  }

  /** How many steps there are, or will be. */
  get total() {
    if (this.end) return this.steps.length;
    return Math.max(this.start?.steps ?? 0, this.steps.length);
  }

  /** How many tokens are to be written. */
  get blanks() {
    return this.places.filter((place) => !place.given).length;
  }

  /** Is what stands there beyond the end of the text? Streams write behind an end not yet drawn. */
  dropped(position) {
    return this.end?.finish_reason === "stop" && position >= this.end.tokens.length;
  }

  /** Tokens written by the first `step` steps. */
  written(step) {
    return this.steps.slice(0, step).reduce((sum, { at }) => sum + at.length, 0);
  }

  /** The recorded clock after `step` steps, in seconds. */
  seconds(step) {
    return step > 0 ? this.steps[Math.min(step, this.steps.length) - 1].seconds : 0;
  }

  /** How many steps the recorded clock had seen by then. */
  stepsBy(seconds) {
    const later = this.steps.findIndex((step) => step.seconds > seconds);
    return later < 0 ? this.steps.length : later;
  }
}

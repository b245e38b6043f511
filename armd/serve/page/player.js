/** The scrubber: which step is shown, by hand, by the play button, or as it happens. */

import { quoted } from "./tokens.js";

const STEADY = 8; // steps a second
const SLOWED = 10; // times slower than it was

export class Player {
  /** `parts`: play, scrubber, step and pace elements. `onStep(step)` shows that step. */
  constructor(parts, onStep) {
    Object.assign(this, parts);
    this.onStep = onStep;
    this.recording = null;
    this.frame = 0; // of the animation, while playing
    this.held = false; // the reader has gone back while steps still arrive
    this.play.addEventListener("click", () => this.toggle());
    this.scrubber.addEventListener("input", () => {
      this.pause();
      this.#go(Number(this.scrubber.value));
      this.held = Number(this.scrubber.value) < this.recording.steps.length;
    });
    this.scrubber.addEventListener("keydown", (event) => {
      if (event.key !== " ") return;
      event.preventDefault();
      this.toggle();
    });
  }

  /** A recording begins, or is shown again from its end. */
  open(recording) {
    this.pause();
    this.recording = recording;
    this.held = false;
    this.play.disabled = this.scrubber.disabled = !recording.total;
    this.follow();
  }

  /** Shows the newest step, as they arrive. */
  follow() {
    this.scrubber.max = this.recording.total;
    if (!this.held && !this.frame) this.#go(this.recording.steps.length);
  }

  toggle() {
    if (this.frame) return this.pause();
    if (!this.recording?.steps.length) return;
    const last = this.recording.steps.length;
    this.#run(Number(this.scrubber.value) >= last ? 0 : Number(this.scrubber.value));
  }

  pause() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.#sign("Play");
  }

  /** Plays from that step to the last, at the pace that is chosen when it starts. */
  #run(from) {
    const { recording } = this;
    const pace = this.pace.value;
    const slowed = pace === "slow" ? SLOWED : 1;
    const began = performance.now();
    this.#sign("Pause");
    const tick = (now) => {
      const seconds = Math.max(0, now - began) / 1000;
      const step =
        pace === "steady"
          ? from + Math.floor(seconds * STEADY)
          : recording.stepsBy(recording.seconds(from) + seconds / slowed);
      this.#go(Math.min(Math.max(from, step), recording.steps.length));
      if (step >= recording.steps.length) this.pause();
      else this.frame = requestAnimationFrame(tick);
    };
    this.frame = requestAnimationFrame(tick);
  }

  #go(wanted) {
    const { steps, total } = this.recording;
    const step = Math.min(wanted, steps.length); // not all may have come
    this.scrubber.value = step;
    const clock = this.recording.seconds(step).toFixed(2);
    this.step.value = `step ${step} of ${total}, ${clock} s`;
    const landed = step ? steps[step - 1].at.map(({ piece }) => quoted(piece)).join(", ") : "";
    this.scrubber.setAttribute("aria-valuetext", `step ${step} of ${total} ${landed}`);
    this.scrubber.style.setProperty("--done", total ? step / total : 0);
    this.onStep(step);
  }

  #sign(label) {
    this.play.setAttribute("aria-label", label);
    this.play.title = label;
    this.play.classList.toggle("playing", label === "Pause");
  }
}

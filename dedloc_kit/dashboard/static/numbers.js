// Numbers that run up to their new value, where motion is welcome.

import { setText } from "./dom.js";

const MILLISECONDS = 700;

/** A function that shows a number in `element`, as `format` writes it; null is a dash. */
export function counter(element, format) {
  let shown = null; // what stands there now
  let goal = null;
  let frame = 0;

  return (value) => {
    if (value === goal && goal !== null) return;
    cancelAnimationFrame(frame);
    goal = value;
    if (value === null || value === undefined) {
      shown = null;
      setText(element, "–");
      return;
    }
    const from = shown;
    const still = document.hidden || matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (from === null || still) {
      shown = value;
      setText(element, format(value));
      return;
    }
    const begin = performance.now();
    const move = (now) => {
      const part = Math.min(1, Math.max(0, now - begin) / MILLISECONDS);
      shown = part < 1 ? from + (value - from) * (1 - (1 - part) ** 3) : value;
      setText(element, format(shown));
      if (part < 1) frame = requestAnimationFrame(move);
    };
    frame = requestAnimationFrame(move);
  };
}

// Numbers, times and names as people read them. Everything here returns plain text.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const precise = new Intl.NumberFormat("en", { notation: "compact", minimumFractionDigits: 2, maximumFractionDigits: 2 });

export const count = (value) => whole.format(value);

/** Large counts in short: 4.2M; below a hundred thousand in full. */
export const brief = (value) => (value < 100_000 ? whole.format(value) : compact.format(value));

/** A count that should be seen to move: in full as long as it fits. */
export const large = (value) => (value < 10_000_000 ? whole.format(value) : precise.format(value));

export const loss = (value) => (value === null || value === undefined ? "–" : value.toFixed(value < 10 ? 3 : 2));

export const rate = (value) => (value === null ? "–" : value < 10 ? value.toFixed(1) : whole.format(value));

export function percent(part, total) {
  if (!total) return "0 %";
  const share = (100 * part) / total;
  return share > 0 && share < 1 ? "< 1 %" : `${Math.round(share)} %`;
}

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** A length of time in its largest sensible unit. */
export function duration(seconds) {
  const units = [
    [86_400, "day"],
    [3_600, "hour"],
    [60, "minute"],
  ];
  for (const [length, name] of units) {
    if (seconds >= 1.5 * length) return plural(Math.round(seconds / length), name);
  }
  return seconds < 10 && seconds % 1 ? `${seconds.toFixed(1)} seconds` : plural(Math.round(seconds), "second");
}

/** When something was; a clock that runs ahead of ours says "just now". */
export function ago(time, now = Date.now() / 1000) {
  const seconds = now - time;
  return seconds < 90 ? "just now" : `${duration(seconds)} ago`;
}

/** A name that can be seen: people may send only spaces, or nothing. */
export function visibleName(name) {
  return /[^\p{C}\p{Z}\p{M}]/u.test(name) ? name : "anonymous";
}

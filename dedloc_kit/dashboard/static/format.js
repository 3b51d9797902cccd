// Numbers, times and names as people read them. Everything here returns plain text.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const precise = new Intl.NumberFormat("en", {
  notation: "compact",
  minimumFractionDigits: 2,
  maximumFractionDigits: 2,
});
const moment = new Intl.DateTimeFormat("en", {
  day: "numeric",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
  hour12: false,
});
const calendar = new Intl.DateTimeFormat("en", { day: "numeric", month: "short", year: "numeric" });

const UNITS = [
  [31_557_600, "year"],
  [86_400, "day"],
  [3_600, "hour"],
  [60, "minute"],
];

export const count = (value) => whole.format(value);

/** Large counts in short: 4.2M; below a hundred thousand in full. */
export const brief = (value) => (value < 100_000 ? whole.format(value) : compact.format(value));

/** A count that should be seen to move: in full as long as it fits. */
export const large = (value) => (value < 10_000_000 ? whole.format(value) : precise.format(value));

export const loss = (value) => (value === null || value === undefined ? "–" : value.toFixed(value < 10 ? 3 : 2));

export const rate = (value) => (value === null ? "–" : value < 10 ? value.toFixed(1) : whole.format(value));

/** Bytes, or bytes per second with "/s" behind it, in decimal units. */
export function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  const power = value < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(value) / 3));
  const number = value / 1000 ** power;
  return `${number < 10 && power ? number.toFixed(1) : whole.format(number)} ${units[power]}`;
}

export function percent(part, total) {
  if (!total) return "0 %";
  const share = (100 * part) / total;
  return share > 0 && share < 1 ? "< 1 %" : `${Math.round(share)} %`;
}

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** A length of time in its largest sensible unit. */
export function duration(seconds) {
  for (const [length, name] of UNITS) {
    if (seconds < 1.5 * length) continue;
    const number = seconds / length;
    return name === "year" && number < 10 ? `${number.toFixed(1)} years` : plural(Math.round(number), name);
  }
  return seconds < 10 && seconds % 1 ? `${seconds.toFixed(1)} seconds` : plural(Math.round(seconds), "second");
}

/** The same in short, where there is little room: 4.2 s, 13 min, 5 h, 24 days. */
export function brieflyFor(seconds) {
  return duration(seconds)
    .replace(/ seconds?$/, " s")
    .replace(/ minutes?$/, " min")
    .replace(/ hours?$/, " h");
}

/** When something was; a clock that runs ahead of ours says "just now". */
export function ago(time, now = Date.now() / 1000) {
  const seconds = now - time;
  return seconds < 90 ? "just now" : `${duration(seconds)} ago`;
}

/** A moment in this reader's time zone. */
export const at = (time) => moment.format(new Date(1000 * time));

/** A day, from seconds or from `2026-11-22`. */
export const day = (time) =>
  calendar.format(typeof time === "string" ? new Date(`${time}T12:00`) : new Date(1000 * time));

/** A name that can be seen: people may send only spaces, or nothing. */
export function visibleName(name) {
  return /[^\p{C}\p{Z}\p{M}]/u.test(name) ? name : "anonymous";
}

/** A device that can be seen. */
export const visibleDevice = (device) => (/[^\p{C}\p{Z}\p{M}]/u.test(device ?? "") ? device : "unknown device");

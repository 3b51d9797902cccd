// The global batch as it fills: one bar, each peer's share a coloured segment of it.

import { build, keyed, setAttribute, setName, setText } from "../dom.js";
import { count, duration, percent, plural } from "../format.js";
import { hueOf, nameOf, pageOf, tally } from "../names.js";

const NAMED = 0.08; // of the bar: a segment so wide has room for a name
const LISTED = 8;

export function batchPanel() {
  const title = build("h2", { id: "batch-title", text: "The next batch" });
  const note = build("p", { class: "note" });
  const bar = build("div", { class: "batch-bar", role: "img", "aria-label": "No samples yet" });
  const list = build("ul", { class: "shares", "aria-label": "Who fills it" });
  const element = build(
    "section",
    { class: "batch", "aria-labelledby": "batch-title" },
    build("div", { class: "heading" }, title, note),
    bar,
    list,
  );
  let fullAt = null; // when the batch should be full, by this browser's clock
  let told = null; // what that was told with

  function tick(state, connected) {
    const { batch, global_batch: size } = state;
    let text = `${count(batch.samples)} of ${count(size)} samples`;
    if (state.status === "training" && connected) {
      const seconds = fullAt === null ? null : Math.round((fullAt - Date.now()) / 1000);
      if (batch.samples >= size) text += ", averaging";
      else if (seconds !== null) text += seconds > 0 ? `, full in about ${duration(seconds)}` : ", full any moment";
    }
    setText(note, text);
  }

  function update(state, connected) {
    const { batch, global_batch: size } = state;
    element.hidden = state.status === "finished";
    const step = `Global step ${count(batch.step)}`;
    const titles = { training: `${step} is filling`, "coordinator lost": `${step} was filling` };
    setText(title, titles[state.status] ?? `${step} is next`);
    const news = `${batch.step} ${batch.samples} ${state.eta_seconds}`;
    if (news !== told) {
      told = news;
      fullAt = state.eta_seconds === null ? null : Date.now() + 1000 * state.eta_seconds;
    }
    tick(state, connected);

    // A batch may run over while it is averaged; then the whole bar is what there is.
    const whole = Math.max(size, batch.samples);
    const names = tally(batch.shares);
    const shares = batch.shares
      .filter((share) => share.samples > 0)
      .map((share) => ({ ...share, shown: nameOf(share, names) }));
    const { others } = batch;
    if (others.samples > 0)
      shares.push({ peer: "", shown: plural(others.peers, "more peer"), samples: others.samples });
    bar.classList.toggle("emptied", bar.dataset.step !== String(batch.step));
    bar.classList.toggle("idle", state.status !== "training");
    bar.dataset.step = batch.step;
    keyed(
      bar,
      shares,
      (share) => share.peer,
      () => build("span", {}, build("bdi", { class: "name" })),
      (segment, share) => {
        segment.className = share.peer ? `share ${hueOf(share.peer, batch.shares)}` : "share others";
        segment.title = `${share.shown}: ${count(share.samples)} samples`;
        segment.style.setProperty("flex-basis", `${(100 * share.samples) / whole}%`);
        setText(segment.firstChild, share.samples / whole >= NAMED ? share.shown : "");
      },
    );
    setAttribute(
      bar,
      "aria-label",
      `${count(batch.samples)} of ${count(size)} samples, ${percent(batch.samples, size)} of the batch`,
    );
    showList(shares, size, state);
  }

  function showList(shares, size, state) {
    const named = shares.filter((share) => share.peer).slice(0, LISTED);
    const rest = state.volunteers - named.length;
    const entries = rest > 0 && named.length ? [...named, { peer: "", rest }] : named;
    keyed(
      list,
      entries,
      (share) => share.peer,
      (share) =>
        share.peer
          ? build(
              "li",
              {},
              build("i", { class: `swatch ${hueOf(share.peer)}`, "aria-hidden": "true" }),
              build("a", { class: "name", href: pageOf(share.peer) }),
              build("span", { class: "amount" }),
            )
          : build("li", {}, build("a", { class: "name", href: pageOf("").replace(/people\/$/, "swarm") })),
      (item, share) => {
        const link = item.querySelector("a");
        if (share.peer) {
          setName(link, share.shown);
          setText(item.lastChild, percent(share.samples, size));
        } else setText(link, `and ${plural(share.rest, "more volunteer")}`);
      },
    );
  }

  return { element, update, tick };
}

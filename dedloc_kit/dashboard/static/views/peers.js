// Who is connected now: volunteers first, in parts where there are many.

import { build, keyed, section, setName, setText } from "../dom.js";
import { bytes, count, duration, plural, rate, visibleDevice } from "../format.js";
import { nameOf, pageOf, tally } from "../names.js";
import { pager } from "../pages.js";
import { keepAsking } from "../run.js";

const PAGE = 50;
const MODES = { full: "reachable", client: "client" };
const COLUMNS = [
  ["Peer", "who"],
  ["Device", "devices"],
  ["Samples/s", "number"],
  ["Upload", "number"],
  ["Mode", "mode"],
  ["Step", "number"],
  ["Behind", "number"],
  ["Toward the batch", "number"],
  ["Here for", "number"],
];

export function peerTable(signal) {
  const body = build("tbody");
  const head = build("tr", {}, ...COLUMNS.map(([text, kind]) => build("th", { scope: "col", class: kind, text })));
  const scroll = build(
    "div",
    { class: "wide tall", tabindex: "0", role: "region", "aria-label": "The peers in a table" },
    build("table", { class: "board peers-table" }, build("thead", {}, head), body),
  );
  const empty = build("p", { class: "empty", text: "Nobody is connected." });
  const pages = pager(PAGE, () => {
    again();
    part.heading.scrollIntoView({ block: "start" });
  });
  const part = section("Peers now", scroll, empty, pages.element);
  const again = keepAsking(
    () => `api/peers?offset=${pages.offset()}&limit=${PAGE}`,
    ({ status, values }) => {
      if (status !== 200) return;
      if (pages.offset() && pages.offset() >= values.total) {
        pages.first(); // there are fewer by now
        again();
        return;
      }
      const names = tally(values.peers);
      keyed(
        body,
        values.peers,
        (peer) => peer.peer,
        peerRow,
        (row, peer) => fillPeer(row, peer, names),
      );
      scroll.hidden = !values.peers.length;
      empty.hidden = values.peers.length > 0;
      pages.element.hidden = values.total <= PAGE;
      pages.show(values.total, values.peers.length, plural(values.total, "peer"));
      setText(part.note, values.peers.length ? `the swarm is at global step ${count(values.step)}` : "");
    },
    signal,
  );
  return part.section;
}

function peerRow() {
  const cells = COLUMNS.map(([, kind]) => build(kind === "who" ? "th" : "td", { class: kind }));
  cells[0].scope = "row";
  cells[0].append(
    build("a", { class: "name" }),
    build("span", { class: "badge", text: "lends its line" }),
    build("bdi", { class: "team" }),
  );
  return build("tr", {}, ...cells);
}

function fillPeer(row, peer, names) {
  const [who, device, speed, upload, mode, step, lag, samples, since] = row.children;
  const [link, badge, team] = who.children;
  link.href = pageOf(peer.peer);
  setName(link, nameOf(peer, names));
  badge.hidden = !peer.follower;
  setText(team, peer.team);
  setText(device, visibleDevice(peer.device));
  setText(speed, peer.follower ? "–" : rate(peer.samples_per_second));
  setText(upload, peer.upload === null ? "–" : `${bytes(peer.upload)}/s`);
  setText(mode, MODES[peer.mode]);
  mode.title = peer.mode === "client" ? "behind a router: reaches others, cannot be reached" : "others can reach it";
  setText(step, count(peer.step));
  setText(lag, peer.lag ? plural(peer.lag, "step") : "–");
  setText(samples, peer.follower ? "–" : count(peer.samples));
  setText(since, peer.since === null ? "–" : duration(Math.max(1, Date.now() / 1000 - peer.since)));
  row.classList.toggle("behind", !peer.current);
}

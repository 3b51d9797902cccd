// Everyone who has contributed: bubbles by contribution, teams, and the leaderboard.

import { pack } from "../bubbles.js";
import { build, buildSvg, keyed, section, setAttribute, setText } from "../dom.js";
import { brief, count, duration, percent, plural } from "../format.js";
import { hueOf, me, nameOf, pageOf, tally } from "../names.js";
import { go } from "../router.js";
import { keepAsking } from "../run.js";
import { leaderboard } from "./leaderboard.js";
import { hostList, lenderList } from "./gifts.js";
import { viewHead } from "./head.js";

const WHO = "Whoever gives computing is here, by the name they chose.";
const NARROW = matchMedia("(max-width: 40rem)");
const BUBBLES = 120;
const NAMED = 22; // the smallest radius with room for a name
const SMALLEST = 12; // letters, in the picture's pixels
const LETTER = 0.58; // the usual width of one for its size
const ROOM = 1.75; // of the radius, for a name

export function show(root, { signal }) {
  const head = viewHead("People", signal);
  const picture = buildSvg("svg", { class: "bubbles", role: "img", "aria-label": "Nobody yet" });
  const circles = section("Everyone, by contribution", picture);
  circles.note.append(build("span", { class: "key ring", text: "training now" }));
  const teamList = build("ol", { class: "teams" });
  const teams = section("Teams", teamList);
  teams.section.hidden = true;
  const mine = build(
    "p",
    { class: "me" },
    build("a", { href: pageOf(me() ?? ""), text: "This is you: your page in this run" }),
  );
  mine.hidden = !me();
  const empty = build("p", {
    class: "empty",
    hidden: true,
    text: "Nobody has given anything yet. The first global step will bring the first names.",
  });
  const board = leaderboard(signal);
  const upper = build("div", { class: "upper" }, circles.section, teams.section);
  const gifts = [hostList(signal), lenderList(signal)];
  root.append(head.element, build("div", { class: "page" }, mine, empty, upper, board, ...gifts));

  let known = null;
  const draw = () => known && drawBubbles(picture, known);
  NARROW.addEventListener("change", draw, { signal });
  document.fonts.ready.then(draw); // names are measured in the font that they are shown in

  keepAsking(
    () => `api/people?sort=total&limit=${BUBBLES}`,
    ({ status, values }) => {
      if (status !== 200) return;
      setText(
        head.lede,
        values.total
          ? `${plural(values.total, "person has", "people have")} given ${brief(values.samples_total)} samples together. ${WHO}`
          : WHO,
      );
      empty.hidden = values.total > 0;
      circles.section.hidden = board.hidden = values.total === 0;
      known = values;
      draw();
    },
    signal,
  );
  keepAsking(
    () => "api/teams",
    ({ status, values }) => status === 200 && showTeams(teams.section, teamList, values.teams),
    signal,
  );
}

function drawBubbles(picture, { people, total, samples_total: all }) {
  const shown = people.filter((person) => person.samples > 0);
  if (!shown.length) return;
  const names = tally(shown);
  const most = shown[0].samples;
  // Area by contribution; the smallest can still be seen.
  const [width, height] = NARROW.matches ? [480, 480] : [960, 520];
  const placed = pack(
    shown.map((person) => Math.max(0.035, Math.sqrt(person.samples / most))),
    width / height,
  );
  setAttribute(picture, "viewBox", `0 0 ${width} ${height}`);
  const left = Math.min(...placed.map((p) => p.x - p.r));
  const right = Math.max(...placed.map((p) => p.x + p.r));
  const top = Math.min(...placed.map((p) => p.y - p.r));
  const bottom = Math.max(...placed.map((p) => p.y + p.r));
  const scale = Math.min((width - 8) / (right - left), (height - 8) / (bottom - top), height / 3.2);
  const [x0, y0] = [width / 2 - (scale * (left + right)) / 2, height / 2 - (scale * (top + bottom)) / 2];
  keyed(
    picture,
    shown.map((person, index) => ({ ...person, ...placed[index], shown: nameOf(person, names) })),
    (person) => person.peer,
    (person) => {
      const label = buildSvg("text", { class: "bubble-name", dy: "0.35em", lengthAdjust: "spacingAndGlyphs" });
      return buildSvg(
        "g",
        { on: { click: () => go(pageOf(person.peer)) } },
        buildSvg("circle", { class: "ring" }),
        buildSvg("circle", { class: "disc" }),
        label,
        buildSvg("title"),
      );
    },
    (group, person) => {
      const [ring, disc, label, title] = group.children;
      const r = Math.max(1, scale * person.r - 1.5);
      setAttribute(group, "class", `bubble ${hueOf(person.peer, shown)}${person.active ? " active" : ""}`);
      group.style.setProperty("transform", `translate(${x0 + scale * person.x}px, ${y0 + scale * person.y}px)`);
      ring.setAttribute("r", r);
      disc.setAttribute("r", person.active && r > 6 ? r - Math.max(2.5, r * 0.07) : r);
      const size = Math.min(26, r / 2.8, (ROOM * r) / (LETTER * [...person.shown].length));
      setText(label, r >= NAMED ? shortened(person.shown, r) : "");
      label.style.setProperty("font-size", `${Math.max(SMALLEST, size)}px`);
      label.removeAttribute("textLength");
      if (label.getComputedTextLength() > ROOM * r) setAttribute(label, "textLength", ROOM * r); // wide letters
      setText(
        title,
        `${person.shown}: ${count(person.samples)} samples, ${percent(person.samples, all)}` +
          (person.active ? ", training now" : ""),
      );
    },
  );
  const active = shown.filter((person) => person.active).length;
  const rest = total > shown.length ? ` of the ${count(shown.length)} who gave most` : "";
  setAttribute(
    picture,
    "aria-label",
    `A circle for each${rest || " person"}, by contribution; ${count(active)} train now. ` +
      "The leaderboard below has the same.",
  );
}

/** As much of a name as there is room for in the smallest letters. */
function shortened(name, r) {
  const room = Math.floor((ROOM * r) / (LETTER * SMALLEST));
  const letters = [...name];
  return letters.length > room ? `${letters.slice(0, Math.max(1, room - 1)).join("")}…` : name;
}

function showTeams(element, list, teams) {
  element.hidden = !teams.length;
  const most = Math.max(1, ...teams.map((team) => team.samples));
  keyed(
    list,
    teams.slice(0, 12),
    (team) => team.team,
    () =>
      build(
        "li",
        {},
        build("bdi", { class: "name" }),
        build("span", { class: "amount" }),
        build("span", { class: "bar" }, build("i")),
        build("span", { class: "note" }),
      ),
    (item, team) => {
      const [name, amount, bar, note] = item.children;
      setText(name, team.team);
      setAttribute(name, "title", team.team);
      setText(amount, brief(team.samples));
      bar.firstChild.style.setProperty("width", `${(100 * team.samples) / most}%`);
      setText(note, `${plural(team.members, "member")}, ${duration(team.seconds)} given`);
    },
  );
}

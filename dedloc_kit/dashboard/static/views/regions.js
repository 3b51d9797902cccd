// From which countries volunteers take part: a map in dots with a circle for each country. It is there only if the
// organizer wants it; the server then tells countries and numbers, and nothing else.

import { build, buildSvg, keyed, section, setAttribute, setText } from "../dom.js";
import { count, plural } from "../format.js";
import { keepAsking } from "../run.js";
import { tableBeside } from "../table.js";
import { COLUMNS, LAND, PLACES, ROW } from "../world.js";

const NAMES = new Intl.DisplayNames("en", { type: "region" });
const LISTED = 6;
const SMALLEST = 1.5; // radius of a circle for one volunteer, in dots, as long as the largest one permits it
const LARGEST = 5.5;

export function regions(signal) {
  let known = [];
  const marks = buildSvg("g");
  const picture = buildSvg(
    "svg",
    { class: "world", role: "img", viewBox: `0 0 ${COLUMNS} ${LAND.length * ROW}` },
    buildSvg("path", { class: "land", d: LAND.map(dots).join("") }),
    marks,
  );
  const list = build("ol", { class: "teams" });
  const more = build("p", { class: "note" });
  const source = build("p", { class: "note" });
  const beside = tableBeside("The countries as a table", ["Country", "Volunteers"], () =>
    known.map(({ name, volunteers }) => [name, count(volunteers)]),
  );
  const part = section(
    "Where they are",
    build("div", { class: "upper where" }, picture, build("div", {}, list, more, source)),
    beside.element,
  );
  part.section.hidden = true;
  setText(part.note, "by country, because the organizer turned it on; addresses are not kept");

  keepAsking(
    () => "api/regions",
    ({ status, values }) => {
      if (status !== 200) return;
      part.section.hidden = !values.on;
      draw(values);
    },
    signal,
  );

  function draw({ regions: countries, elsewhere, title }) {
    const named = countries.map((one) => ({ ...one, name: NAMES.of(one.country) }));
    known = elsewhere ? [...named, { name: "Not known", volunteers: elsewhere }] : named;
    const most = Math.max(1, ...known.map(({ volunteers }) => volunteers));
    const scale = Math.min(SMALLEST, LARGEST / Math.sqrt(most));
    keyed(
      marks,
      named.filter(({ country }) => country in PLACES),
      ({ country }) => country,
      ({ country }) => {
        const [cx, cy] = PLACES[country];
        return buildSvg("circle", { class: "mark", cx, cy }, buildSvg("title"));
      },
      (mark, { name, volunteers }) => {
        setAttribute(mark, "r", scale * Math.sqrt(volunteers));
        setText(mark.firstChild, `${name}: ${plural(volunteers, "volunteer")}`);
      },
    );
    keyed(
      list,
      known.slice(0, LISTED),
      ({ name }) => name,
      () =>
        build(
          "li",
          {},
          build("span", { class: "name" }),
          build("span", { class: "amount" }),
          build("span", { class: "bar" }, build("i")),
        ),
      (item, { country, name, volunteers }) => {
        item.classList.toggle("unknown", !country);
        const [label, amount, bar] = item.children;
        setText(label, name);
        setText(amount, count(volunteers));
        bar.firstChild.style.setProperty("width", `${(100 * volunteers) / most}%`);
      },
    );
    setText(more, known.length > LISTED ? `and ${count(known.length - LISTED)} more in the table` : "");
    setText(source, title && `Countries: ${title}`);
    beside.element.hidden = !known.length;
    const first = known.slice(0, LISTED).map(({ name, volunteers }) => `${name} ${count(volunteers)}`);
    setAttribute(picture, "aria-label", `A map of where volunteers are: ${first.join(", ") || "nobody is here"}.`);
    beside.refresh();
  }

  return part.section;
}

/** A row of land as a path of dots: lines without a length, which have round ends. */
function dots(row, index) {
  const y = ((index + 0.5) * ROW).toFixed(2);
  return [...row].map((cell, column) => (cell === "#" ? `M${column + 0.5 + (index % 2) / 2} ${y}h0` : "")).join("");
}

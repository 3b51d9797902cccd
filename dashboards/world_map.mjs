// Makes the live page's map of the world: dots where there is land, and a place for each country.
//
// The land and the borders are Natural Earth's, which are in the public domain, as the package world-atlas has them.
// To make it anew, in an empty folder:
//   npm install world-atlas@2 topojson-client@3 d3-geo@3 i18n-iso-countries@7
//   cp .../dashboards/world_map.mjs . && node world_map.mjs > .../dedloc_kit/dashboard/static/world.js

import { readFileSync } from "node:fs";
import { geoArea, geoCentroid, geoContains, geoNaturalEarth1 } from "d3-geo";
import iso from "i18n-iso-countries";
import { feature } from "topojson-client";

const COLUMNS = 120; // about 3 degrees at the equator
const NORTH = 84;
const SOUTH = -56; // nobody trains in Antarctica
const ROW = Math.sqrt(3) / 2; // from one row of dots to the next, which stands half a dot aside
// Natural Earth counts these to other countries, or gives them no ISO code.
const MORE = {
  BQ: [-68.3, 12.2],
  GF: [-53, 4],
  GP: [-61.5, 16.2],
  MQ: [-61, 14.7],
  RE: [55.5, -21.1],
  SJ: [18, 78.5],
  TK: [-171.8, -9.2],
  XK: [20.9, 42.6],
  YT: [45.2, -12.8],
};

const read = (name) => JSON.parse(readFileSync(`node_modules/world-atlas/${name}.json`));
const shapes = (atlas, name) => feature(atlas, atlas.objects[name]).features;
const tenth = (value) => Math.round(10 * value) / 10;

// Turned a little, so that the edge is between Asia and America and cuts no country in two.
const projection = geoNaturalEarth1().rotate([-11, 0]).scale(1).translate([0, 0]);
const right = projection([11 + 180 - 1e-6, 0])[0];
projection.scale(COLUMNS / 2 / right).translate([COLUMNS / 2, 0]);
const top = projection([11, NORTH])[1];
projection.translate([COLUMNS / 2, -top]);
const height = projection([11, SOUTH])[1];

const land = shapes(read("land-110m"), "land");
const rows = Array.from({ length: Math.floor(height / ROW) }, (_, row) =>
  Array.from({ length: COLUMNS }, (_, column) => {
    const dot = [column + 0.5 + (row % 2) / 2, (row + 0.5) * ROW];
    const point = projection.invert(dot);
    const there = projection(point); // beyond the map's edge it is another one
    const inside = Math.hypot(there[0] - dot[0], there[1] - dot[1]) < 0.01;
    return inside && land.some((shape) => geoContains(shape, point)) ? "#" : " ";
  })
    .join("")
    .trimEnd(),
);

/** The middle of a country's largest piece. */
function middle({ geometry }) {
  const pieces = geometry.type === "Polygon" ? [geometry.coordinates] : geometry.coordinates;
  const polygons = pieces.map((coordinates) => ({ type: "Polygon", coordinates }));
  return geoCentroid(polygons.reduce((one, other) => (geoArea(other) > geoArea(one) ? other : one)));
}

const places = { ...MORE };
for (const country of shapes(read("countries-10m"), "countries")) {
  const code = country.id && iso.numericToAlpha2(country.id);
  if (code && code !== "AQ") places[code] = middle(country);
}
const listed = Object.keys(places)
  .sort()
  .map((code) => `  ${code}: [${projection(places[code]).map(tenth).join(", ")}],`);

process.stdout.write(`// The world in dots, made by dashboards/world_map.mjs from Natural Earth (public domain); Natural Earth projection.

/** Where there is land: every second row stands half a dot to the right. */
export const LAND = [
${rows.map((row) => `  "${row}",`).join("\n")}
];

/** How wide the map is and how far its rows are apart, in dots. */
export const COLUMNS = ${COLUMNS};
export const ROW = ${ROW};

/** Where to mark a country, by its ISO 3166 code, in dots from the upper left corner. */
export const PLACES = {
${listed.join("\n")}
};
`);

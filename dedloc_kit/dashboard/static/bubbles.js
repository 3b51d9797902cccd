// Circles packed around a middle, the largest first.

/**
 * Places circles of these radii (largest first) so that none overlap and all are near their middle, in a shape that is
 * `stretch` times as wide as high. Returns `[{x, y, r}]` in the order of the radii.
 *
 * Each circle goes to the free place nearest to the middle where it touches two that are there already.
 */
export function pack(radii, stretch) {
  const placed = [];
  const middle = { x: 0, y: 0, weight: 0 }; // of all areas so far
  const far = ({ x, y }) => ((x - middle.x) / stretch) ** 2 + (y - middle.y) ** 2;
  for (const r of radii) {
    let best = placed.length < 2 ? { x: placed.length ? placed[0].r + r : 0, y: 0, r } : null;
    for (let i = 0; placed.length > 1 && i < placed.length; i += 1) {
      for (let j = i + 1; j < placed.length; j += 1) {
        for (const place of touching(placed[i], placed[j], r)) {
          if ((!best || far(place) < far(best)) && !placed.some((other) => overlap(other, place))) best = place;
        }
      }
    }
    placed.push(best);
    middle.weight += r ** 2;
    middle.x += ((best.x - middle.x) * r ** 2) / middle.weight;
    middle.y += ((best.y - middle.y) * r ** 2) / middle.weight;
  }
  return placed;
}

/** The places where a circle of radius `r` touches both others: two, or none if they are too far apart. */
function touching(a, b, r) {
  const [dx, dy] = [b.x - a.x, b.y - a.y];
  const distance = Math.hypot(dx, dy);
  const [ra, rb] = [a.r + r, b.r + r];
  if (distance > ra + rb || distance === 0) return [];
  const along = (ra ** 2 - rb ** 2 + distance ** 2) / (2 * distance);
  const aside = Math.sqrt(Math.max(0, ra ** 2 - along ** 2));
  const [ux, uy] = [dx / distance, dy / distance];
  const [x, y] = [a.x + ux * along, a.y + uy * along];
  return [
    { x: x - uy * aside, y: y + ux * aside, r },
    { x: x + uy * aside, y: y - ux * aside, r },
  ];
}

const overlap = (a, b) => Math.hypot(a.x - b.x, a.y - b.y) < a.r + b.r - 1e-6;

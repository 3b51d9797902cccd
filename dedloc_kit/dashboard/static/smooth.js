/**
 * An exponential moving average that does not lean to its start: each value weighs `weight` times as much as the next.
 * With weight 0 the values themselves.
 */
export function smooth(values, weight) {
  let sum = 0;
  let weights = 0;
  return values.map((value) => {
    sum = weight * sum + value;
    weights = weight * weights + 1;
    return sum / weights;
  });
}

/** Figures over time: bars upon each other, or lines if they are shares. What is pointed at is said below. */

import { count, element, rough, shape } from "./elements.js";

const HEIGHT = 200;
const LEFT = 52;
const BOTTOM = 22;
const TOP = 10;
const LABEL_PX = 64;
const DAY_S = 86_400;

/**
 * @param {{name: string, values: number[]}[]} series
 * @param {number[]} times when each bar begins, in Unix seconds
 * @param {string} label the same in a sentence, for who cannot see it
 */
export function chart({ series, times, label, width, isShare }) {
  const plot = HEIGHT - BOTTOM - TOP;
  const step = (width - LEFT) / times.length;
  const sums = times.map((_, at) => series.reduce((sum, { values }) => sum + values[at], 0));
  // Even, so that the line at half of it stands for whole numbers.
  const most = isShare ? 100 : 2 * Math.max(1, ...sums.map((sum) => Math.ceil(sum / 2)));
  const svg = shape("svg", { class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const part of [0, 0.5, 1]) {
    const y = TOP + plot * (1 - part);
    svg.append(
      shape("line", { class: "ground", x1: LEFT, x2: width, y1: y, y2: y }),
      shape("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, rough(most * part)),
    );
  }
  const height = (value) => (Math.min(value, most) / most) * plot;
  const isHourly = times.length > 1 && times[1] - times[0] < DAY_S;
  const said = element("p", { class: "legend" }, legend(series));
  const every = Math.max(1, Math.ceil(LABEL_PX / step));
  times.forEach((time, at) => {
    const x = LEFT + at * step;
    let ground = TOP + plot;
    const bars = isShare ? [] : series.map(({ values }, index) => {
      const tall = height(values[at]);
      ground -= tall;
      return shape("rect", { class: `series-${index}`, x: x + step * 0.15, width: step * 0.7, y: ground, height: tall });
    });
    const hit = shape("rect", { class: "hit", x, y: TOP, width: step, height: plot });
    const group = shape("g", { class: "day" }, hit, bars);
    group.onpointerenter = () => said.replaceChildren(element("strong", {}, when(time, isHourly)), ...legend(series, at));
    svg.append(group);
    if ((times.length - 1 - at) % every === 0) {
      svg.append(shape("text", { x: x + step / 2, y: HEIGHT - 5, "text-anchor": "middle" }, when(time, isHourly).slice(isHourly ? -5 : 5)));
    }
  });
  if (isShare) {
    series.forEach(({ values }, index) => {
      const points = values.map((value, at) => `${LEFT + (at + 0.5) * step},${TOP + plot - height(value)}`).join(" ");
      svg.append(shape("polyline", { class: `line series-${index}`, points }));
    });
  }
  svg.onpointerleave = () => said.replaceChildren(...legend(series));
  return element("figure", { class: "usage" }, svg, said);
}

function legend(series, at) {
  return series.map(({ name, values }, index) => element("span", { class: `of-${index}` }, at === undefined ? name : `${name}: ${count(values[at])}`));
}

function when(time, isHourly) {
  return new Date(time * 1000).toISOString().slice(0, isHourly ? 16 : 10).replace("T", " ");
}

/** How full something is: a level between nothing and `most`. */
export function level(value, most) {
  const part = most > 0 ? Math.min(1, value / most) : 0;
  return shape(
    "svg",
    { class: "level", viewBox: "0 0 100 4", preserveAspectRatio: "none", role: "img", "aria-label": `${Math.round(part * 100)} %` },
    shape("rect", { width: 100 * part, height: 4 }),
  );
}

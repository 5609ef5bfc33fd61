/** Tokens by the day as stacked bars, and the same figures for who cannot see them. */

import { count, element, rough, shape } from "./elements.js";

const DAY_S = 86_400;
const WIDTH = 640;
const HEIGHT = 180;
const LEFT = 44;
const BOTTOM = 20;
const TOP = 10;

/**
 * @param {{start_time: number, prompt_tokens: number, completion_tokens: number, requests: number}[]} rows
 * @param {number} num_days the last ones, today included
 */
export function usageChart(rows, num_days) {
  const today = Math.floor(Date.now() / 1000 / DAY_S) * DAY_S;
  const byDay = new Map(rows.map((row) => [row.start_time, row]));
  const days = Array.from({ length: num_days }, (_, index) => {
    const start_time = today - (num_days - 1 - index) * DAY_S;
    return byDay.get(start_time) ?? { start_time, prompt_tokens: 0, completion_tokens: 0, requests: 0 };
  });
  // Even, so that the line at half of it stands for whole tokens.
  const most = 2 * Math.max(1, ...days.map((day) => Math.ceil((day.prompt_tokens + day.completion_tokens) / 2)));
  const plot = HEIGHT - BOTTOM - TOP;
  const step = (WIDTH - LEFT) / num_days;
  const svg = shape("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": summary(days) });
  for (const part of [0, 0.5, 1]) {
    const y = TOP + plot * (1 - part);
    svg.append(
      shape("line", { class: "ground", x1: LEFT, x2: WIDTH, y1: y, y2: y }),
      shape("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, rough(most * part)),
    );
  }
  days.forEach((day, index) => {
    const x = LEFT + index * step;
    const prompt = (day.prompt_tokens / most) * plot;
    const completion = (day.completion_tokens / most) * plot;
    const ground = TOP + plot;
    const bar = { x: x + step * 0.15, width: step * 0.7 };
    svg.append(
      shape(
        "g",
        { class: "day" },
        shape("title", {}, `${date(day)}: ${count(day.requests)} requests, ${count(day.prompt_tokens)} prompt and ${count(day.completion_tokens)} generated tokens`),
        shape("rect", { class: "hit", x, y: TOP, width: step, height: plot }),
        shape("rect", { class: "prompt", ...bar, y: ground - prompt, height: prompt }),
        shape("rect", { class: "completion", ...bar, y: ground - prompt - completion, height: completion, rx: 1.5 }),
      ),
    );
    if ((num_days - 1 - index) % 7 === 0) {
      svg.append(shape("text", { x: x + step / 2, y: HEIGHT - 4, "text-anchor": "middle" }, date(day)));
    }
  });
  const legend = element(
    "p",
    { class: "legend" },
    element("span", { class: "of-prompt" }, "Prompt tokens"),
    element("span", { class: "of-completion" }, "Generated tokens"),
  );
  return element("figure", { class: "usage" }, svg, legend);
}

function summary(days) {
  const sum = (name) => days.reduce((total, day) => total + day[name], 0);
  return `Usage of ${days.length} days: ${count(sum("requests"))} requests, ${count(sum("prompt_tokens"))} prompt tokens, ${count(sum("completion_tokens"))} generated tokens`;
}

function date(day) {
  return new Date(day.start_time * 1000).toISOString().slice(5, 10);
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

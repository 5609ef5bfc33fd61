/** An answer's tokens in colours of how likely each was, with what else could have stood there. */

const STEPS = [0.9, 0.6, 0.3, 0.1]; // The less likely, the darker.

/** @param {{token: string, logprob: number, top_logprobs: object[]}[]} tokens */
export function heatMap(tokens) {
  const root = document.createElement("p");
  root.className = "heat";
  root.dir = "auto";
  root.append(
    ...tokens.map(({ token, logprob, top_logprobs: others = [] }) => {
      const span = document.createElement("span");
      const probability = Math.exp(logprob);
      span.className = `heat-${STEPS.filter((step) => probability < step).length}`;
      span.textContent = token;
      const rest = others.filter((other) => other.token !== token).map((other) => `${JSON.stringify(other.token)} ${percent(other.logprob)}`);
      span.title = [`${JSON.stringify(token)} ${percent(logprob)}`, ...rest].join("\n");
      return span;
    }),
  );
  return root;
}

const percent = (logprob) => `${(Math.exp(logprob) * 100).toFixed(1)} %`;

// What a client's program tries and says, in JavaScript: each feature once, then one line of JSON.
import { readFileSync } from "node:fs";
import { join } from "node:path";

export const url = process.env.SLUICE_URL;
export const key = process.env.SLUICE_KEY;
export const model = "demo";
export const hello = "Hello!";
export const weather = "What is the weather in Oslo?";
export const person = "Extract as JSON: Anna is 31 years old.";
export const personSchema = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" } },
  required: ["name", "age"],
  additionalProperties: false,
};
export const citySchema = {
  type: "object",
  properties: { city: { type: "string", description: "The city" } },
  required: ["city"],
  additionalProperties: false,
};
const paths = (await (await fetch(`${url}/openapi.json`)).json()).paths;

export async function embeddingModel() {
  const answer = await fetch(`${url}/v1/models`, { headers: { authorization: `Bearer ${key}` } });
  return (await answer.json()).data.map((one) => one.id).find((name) => name !== model);
}

export async function run(packages, features) {
  const went = {};
  for (const [name, attempt] of Object.entries(features)) {
    if (name === "embeddings" && !(await embeddingModel())) continue;
    if (name === "batch" && !paths["/v1/batches"]) continue;
    try {
      await attempt();
      went[name] = "";
    } catch (error) {
      went[name] = String(error?.stack ?? error).slice(0, 3000) || "failed";
    }
  }
  const versions = {};
  for (const name of packages) {
    const file = join("node_modules", name, "package.json");
    versions[name] = JSON.parse(readFileSync(file, "utf8")).version;
  }
  console.log(JSON.stringify({ versions, features: went }));
  process.exit(0);
}

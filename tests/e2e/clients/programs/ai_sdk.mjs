// Vercel's AI SDK with one of its three providers, which the argument names.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, embedMany, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { embeddingModel, hello, key, model, person, run, url, weather } from "./report.mjs";

const provider = process.argv[2];
const at = { baseURL: `${url}/v1`, apiKey: key };
const made = {
  "@ai-sdk/openai": () => createOpenAI(at),
  "@ai-sdk/openai-compatible": () =>
    createOpenAICompatible({ ...at, name: "sluice", supportsStructuredOutputs: true }),
  "@ai-sdk/anthropic": () => createAnthropic(at),
}[provider]();
const asked = { model: made(model), temperature: 0, maxRetries: 0, maxOutputTokens: 200 };
const onError = ({ error }) => { throw error; };

const features = {
  async chat() {
    assert.ok((await generateText({ ...asked, prompt: hello })).text);
  },
  async stream() {
    let text = "";
    for await (const piece of streamText({ ...asked, prompt: hello, onError }).textStream) {
      text += piece;
    }
    assert.ok(text);
  },
  async tools() {
    for (const ask of [generateText, streamText]) {
      const called = [];
      const get_weather = tool({
        description: "Get the weather in a city.",
        // Of itself this provider says that tools are not strict, and then the demo's small model
        // may name an argument as it likes.
        ...(provider === "@ai-sdk/openai" ? { strict: true } : {}),
        inputSchema: z.object({ city: z.string().describe("The city") }),
        execute: async ({ city }) => (called.push(city), { temperature_c: 7 }),
      });
      const result = await ask({
        ...asked, prompt: weather, tools: { get_weather }, stopWhen: stepCountIs(4),
      });
      assert.ok(await result.text);
      assert.deepEqual(called, ["Oslo"]);
    }
  },
  async structured() {
    const schema = z.object({ name: z.string(), age: z.number().int() });
    const result = await generateText({
      ...asked, prompt: person, output: Output.object({ schema }),
    });
    assert.equal(typeof result.output.age, "number");
  },
  async embeddings() {
    const named = await embeddingModel();
    const values = ["a fox", "a cat"];
    const { embeddings } = await embedMany({ model: made.textEmbeddingModel(named), values });
    assert.equal(embeddings.length, 2);
  },
  async errors() {
    const wrong = { ...asked, model: made("gpt-9") };
    await assert.rejects(generateText({ ...wrong, prompt: hello }), (error) => {
      assert.ok(APICallError.isInstance(error));
      assert.equal(error.statusCode, 404);
      return true;
    });
  },
};
if (provider === "@ai-sdk/anthropic") delete features.embeddings;
await run([provider, "ai"], features);

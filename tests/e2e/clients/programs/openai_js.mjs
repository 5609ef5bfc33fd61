// The openai package: Chat Completions and Responses.
import assert from "node:assert/strict";
import OpenAI, { toFile } from "openai";
import {
  citySchema, embeddingModel, hello, key, model, person, personSchema, run, url, weather,
} from "./report.mjs";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const user = (content) => ({ role: "user", content });

await run(["openai"], {
  async chat() {
    const answer = await client.chat.completions.create({ model, messages: [user(hello)] });
    assert.ok(answer.choices[0].message.content);
    assert.ok((await client.responses.create({ model, input: hello })).output_text);
  },
  async stream() {
    let text = "";
    const chunks = await client.chat.completions.create({
      model, messages: [user(hello)], stream: true,
    });
    for await (const chunk of chunks) text += chunk.choices[0]?.delta.content ?? "";
    assert.ok(text);
    const response = await client.responses.stream({ model, input: hello }).finalResponse();
    assert.equal(response.status, "completed");
  },
  async tools() {
    const called = [];
    const tool = {
      type: "function",
      function: {
        name: "get_weather",
        description: "The weather in a city.",
        parameters: citySchema,
        parse: JSON.parse,
        function: ({ city }) => (called.push(city), { temperature_c: 7 }),
      },
    };
    for (const stream of [false, true]) {
      const runner = client.chat.completions.runTools({
        model, messages: [user(weather)], tools: [tool], temperature: 0, stream,
      });
      assert.ok(await runner.finalContent());
    }
    assert.deepEqual(called, ["Oslo", "Oslo"]);
  },
  async structured() {
    const json_schema = { name: "person", schema: personSchema, strict: true };
    const completion = await client.chat.completions.parse({
      model, messages: [user(person)], temperature: 0,
      response_format: { type: "json_schema", json_schema },
    });
    assert.equal(typeof completion.choices[0].message.parsed.age, "number");
    const response = await client.responses.parse({
      model, input: person, temperature: 0,
      text: { format: { type: "json_schema", ...json_schema } },
    });
    assert.equal(typeof JSON.parse(response.output_text).age, "number");
  },
  async embeddings() {
    const answer = await client.embeddings.create({
      model: await embeddingModel(), input: ["a fox", "a cat"],
    });
    assert.equal(answer.data.length, 2);
    assert.ok(answer.data[0].embedding.length > 0);
  },
  async batch() {
    const body = { model, messages: [user(hello)], max_tokens: 8 };
    const line = { custom_id: "a", method: "POST", url: "/v1/chat/completions", body };
    const file = await toFile(Buffer.from(`${JSON.stringify(line)}\n`), "lines.jsonl");
    const made = await client.files.create({ file, purpose: "batch" });
    let ran = await client.batches.create({
      input_file_id: made.id, endpoint: "/v1/chat/completions", completion_window: "24h",
    });
    const deadline = Date.now() + 100_000;
    while (!["completed", "failed", "expired", "cancelled"].includes(ran.status)) {
      assert.ok(Date.now() < deadline, JSON.stringify(ran));
      await new Promise((resolve) => setTimeout(resolve, 500));
      ran = await client.batches.retrieve(ran.id);
    }
    assert.equal(ran.status, "completed");
    const output = await (await client.files.content(ran.output_file_id)).text();
    assert.ok(JSON.parse(output.trim()).response.body.choices[0].message.content);
  },
  async errors() {
    const asked = { model: "gpt-9", messages: [user(hello)] };
    await assert.rejects(client.chat.completions.create(asked), OpenAI.NotFoundError);
    await assert.rejects(
      client.chat.completions.create({ ...asked, model, temperature: 9 }),
      OpenAI.BadRequestError,
    );
    const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: "sk-wrong", maxRetries: 0 });
    await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
  },
});

// The @anthropic-ai/sdk package.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { citySchema, hello, key, model, person, personSchema, run, url, weather } from "./report.mjs";

const client = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
const user = (content) => ({ role: "user", content });
const asked = { model, max_tokens: 200, temperature: 0 };

await run(["@anthropic-ai/sdk"], {
  async chat() {
    const messages = [user(hello)];
    const answer = await client.messages.create({ ...asked, messages });
    assert.ok(answer.content[0].text);
    const counted = await client.messages.countTokens({ model, messages });
    const { input_tokens, cache_read_input_tokens } = answer.usage;
    assert.equal(counted.input_tokens, input_tokens + (cache_read_input_tokens ?? 0));
  },
  async stream() {
    const stream = client.messages.stream({ ...asked, messages: [user(hello)] });
    assert.ok(await stream.finalText());
  },
  async tools() {
    const tools = [{ name: "get_weather", input_schema: citySchema }];
    const messages = [user(weather)];
    const answer = await client.messages.stream({ ...asked, tools, messages }).finalMessage();
    assert.equal(answer.stop_reason, "tool_use");
    const call = answer.content.find((block) => block.type === "tool_use");
    assert.deepEqual(call.input, { city: "Oslo" });
    const result = {
      type: "tool_result", tool_use_id: call.id, content: '{"temperature_c": 7}',
    };
    messages.push({ role: "assistant", content: answer.content }, user([result]));
    assert.ok((await client.messages.create({ ...asked, tools, messages })).content[0].text);
  },
  async structured() {
    const answer = await client.messages.create({
      ...asked,
      messages: [user(person)],
      output_config: { format: { type: "json_schema", schema: personSchema } },
    });
    assert.equal(typeof JSON.parse(answer.content[0].text).age, "number");
  },
  async errors() {
    const messages = [user(hello)];
    await assert.rejects(
      client.messages.create({ ...asked, model: "claude-9", messages }),
      Anthropic.NotFoundError,
    );
    await assert.rejects(
      client.messages.create({ ...asked, temperature: 9, messages }),
      Anthropic.BadRequestError,
    );
  },
});

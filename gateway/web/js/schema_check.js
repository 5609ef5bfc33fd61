/** What is wrong with the text of a JSON schema, in words for who writes it; the server checks the rest. */

const TYPES = ["array", "boolean", "integer", "null", "number", "object", "string"];
const SCHEMAS = ["items", "additionalProperties", "not", "contains", "if", "then", "else", "propertyNames"];
const LISTS = ["anyOf", "allOf", "oneOf", "prefixItems"];
const MAPS = ["properties", "$defs", "definitions", "patternProperties"];

/** @returns {string} empty: nothing was found */
export function schemaFault(text) {
  let schema = null;
  try {
    schema = JSON.parse(text);
  } catch (error) {
    return `This is no JSON: ${error.message}`;
  }
  if (!isObject(schema)) return "A schema is an object: {\"type\": \"object\", …}";
  return faultIn(schema, "", schema);
}

/** What is wrong with the text of tools: a function or a list of them, as in a request or without its wrapping. */
export function toolsFault(text) {
  let tools = [];
  try {
    tools = toolsOf(text);
  } catch (error) {
    return `This is no JSON: ${error.message}`;
  }
  for (const [place, tool] of tools.entries()) {
    const at = tools.length > 1 ? `Tool ${place + 1}` : "The tool";
    const { name, parameters = {} } = tool?.function ?? {};
    if (!/^[\w-]{1,64}$/.test(name ?? "")) return `${at} needs a "name" of letters, digits, _ and -: {"name": "get_weather", "parameters": {…}}`;
    const fault = isObject(parameters) ? faultIn(parameters, "", parameters) : "its parameters must be a schema.";
    if (fault) return `${at}, ${name}: ${fault}`;
  }
  return tools.length ? "" : "The list has no tool.";
}

/** The tools in a text that has no fault, as requests have them. */
export function toolsOf(text) {
  return [JSON.parse(text)].flat().map((tool) => (tool?.type === "function" && tool.function ? tool : { type: "function", function: tool }));
}

function faultIn(schema, path, root) {
  const at = path || "The schema";
  if (typeof schema === "boolean") return "";
  if (!isObject(schema)) return `${at} must be a schema: an object, true or false.`;
  const types = [schema.type ?? []].flat();
  const unknown = types.find((type) => !TYPES.includes(type));
  if (unknown !== undefined) return `${at}: "type" is ${JSON.stringify(unknown)}; it is one of ${TYPES.join(", ")}.`;
  if ("required" in schema && !(Array.isArray(schema.required) && schema.required.every((name) => typeof name === "string"))) {
    return `${at}: "required" must be a list of names.`;
  }
  const missing = Array.isArray(schema.required) && isObject(schema.properties) && schema.additionalProperties === false
    ? schema.required.find((name) => !Object.hasOwn(schema.properties, name)) : undefined;
  if (missing !== undefined) return `${at}: ${JSON.stringify(missing)} is required but not among the properties.`;
  if ("enum" in schema && !(Array.isArray(schema.enum) && schema.enum.length)) return `${at}: "enum" must be a list of at least one value.`;
  if ("pattern" in schema && !isPattern(schema.pattern)) return `${at}: "pattern" is no regular expression.`;
  if ("$ref" in schema && !resolves(schema.$ref, root)) return `${at}: "$ref" names nothing in this schema.`;
  return partsOf(schema, path).reduce((fault, [part, where]) => fault || faultIn(part, where, root), "")
    || shapeFault(schema, at);
}

function shapeFault(schema, at) {
  const list = LISTS.find((name) => name in schema && !(Array.isArray(schema[name]) && schema[name].length));
  if (list) return `${at}: "${list}" must be a list of at least one schema.`;
  const map = MAPS.find((name) => name in schema && !isObject(schema[name]));
  return map ? `${at}: "${map}" must be an object.` : "";
}

function partsOf(schema, path) {
  const parts = SCHEMAS.filter((name) => name in schema).map((name) => [schema[name], `${path}/${name}`]);
  for (const name of LISTS) if (Array.isArray(schema[name])) schema[name].forEach((part, place) => parts.push([part, `${path}/${name}/${place}`]));
  for (const name of MAPS) if (isObject(schema[name])) for (const [key, part] of Object.entries(schema[name])) parts.push([part, `${path}/${name}/${key}`]);
  return parts;
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function isPattern(text) {
  try {
    return typeof text === "string" && Boolean(new RegExp(text, "u"));
  } catch {
    return false;
  }
}

function resolves(reference, root) {
  if (typeof reference !== "string" || !reference.startsWith("#")) return false;
  const names = reference.slice(1).split("/").slice(1).map((name) => name.replaceAll("~1", "/").replaceAll("~0", "~"));
  return names.reduce((found, name) => (found !== undefined && found !== null && Object.hasOwn(Object(found), name) ? found[name] : undefined), root) !== undefined;
}

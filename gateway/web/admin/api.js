/** `/admin/v1` as functions. Every failure is an `ApiError` with the server's own words. */

const ANSWER_WITHIN_MS = 30_000;

export class ApiError extends Error {
  /** @param {number} status 0 when the server did not answer */
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export class Api {
  get = (path, query = {}) => this.#ask("GET", path + search(query));
  post = (path, body = {}, withinMs = ANSWER_WITHIN_MS) => this.#ask("POST", path, body, withinMs);
  put = (path, body) => this.#ask("PUT", path, body);
  patch = (path, body) => this.#ask("PATCH", path, body);
  delete = (path) => this.#ask("DELETE", path);

  async #ask(method, path, body, withinMs = ANSWER_WITHIN_MS) {
    const headers = { "x-sluice-csrf": "1" }; // The cookie of the sign-in says who asks.
    if (body !== undefined) headers["content-type"] = "application/json";
    let response;
    try {
      response = await fetch(`/admin/v1${path}`, {
        method,
        headers,
        body: body === undefined ? undefined : JSON.stringify(body),
        cache: "no-store",
        signal: AbortSignal.timeout(withinMs),
      });
    } catch {
      throw new ApiError("The server does not answer.");
    }
    if (response.status === 204) return null;
    const answer = await response.json().catch(() => null);
    if (response.ok && answer) return answer;
    throw new ApiError(answer?.error?.message ?? `The server answered ${response.status}.`, response.status);
  }
}

function search(query) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

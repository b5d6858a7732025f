// Speaks to the server that this page came from: keys, requests, streams of server-sent events.

const KEYS = ["api", "admin"];
const slot = (name) => `sluice.key.${name}`;

/** "api" or "admin": the key that was given for it, or "". */
export function keyOf(name) {
  return sessionStorage.getItem(slot(name)) ?? localStorage.getItem(slot(name)) ?? "";
}

export function keysAreKept() {
  return KEYS.some((name) => localStorage.getItem(slot(name)) !== null);
}

/** Keeps keys for this tab, or also after it is closed; "" forgets one. */
export function setKeys(keys, keep) {
  for (const name of KEYS) {
    sessionStorage.removeItem(slot(name));
    localStorage.removeItem(slot(name));
    if (keys[name]) (keep ? localStorage : sessionStorage).setItem(slot(name), keys[name]);
  }
}

/** What the server refused, in its own words; `status` 0: it was not reached. */
export class ApiError extends Error {
  constructor(message, status, { code = null, param = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.param = param; // the field at fault
  }
}

function errorOf(body, status) {
  const e = body?.error ?? {};
  return new ApiError(e.message ?? `The server answered ${status}.`, status, { code: e.code ?? null, param: e.param ?? null });
}

async function open(path, { body = null, key = "api", method = body ? "POST" : "GET", signal = null } = {}) {
  const headers = {};
  if (keyOf(key)) headers.Authorization = `Bearer ${keyOf(key)}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), { method, headers, body: body && JSON.stringify(body), signal, cache: "no-store" });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new ApiError("The server cannot be reached.", 0);
  }
  return response;
}

async function bodyOf(response) {
  try {
    return await response.json();
  } catch {
    return null;
  }
}

/** The JSON that a path answers. Throws ApiError. */
export async function ask(path, options = {}) {
  const response = await open(path, options);
  const body = await bodyOf(response);
  if (!response.ok) throw errorOf(body, response.status);
  return body;
}

/** The same for a path whose 503 says something, too: /health. */
export async function askAnyway(path) {
  return bodyOf(await open(path));
}

/** Lines of a stream of bytes, without their ends. */
async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    yield* parts;
  }
}

/** Events of a path that streams: {data} with what they carry, {comment} with what the server says beside them.
 *  Ends at [DONE]; throws ApiError when the stream breaks off, or holds an error. */
export async function* events(path, options = {}) {
  const response = await open(path, options);
  if (!response.ok) throw errorOf(await bodyOf(response), response.status);
  try {
    for await (const line of lines(response.body)) {
      if (line.startsWith(":")) yield { comment: line.slice(1).trim() };
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") return;
      const data = JSON.parse(line.slice(6));
      if (data.error) throw errorOf(data, 500);
      yield { data };
    }
  } catch (e) {
    if (e.name === "AbortError" || e instanceof ApiError) throw e;
    throw new ApiError("The connection broke off.", 0);
  }
  throw new ApiError("The stream ended before its time.", 0);
}

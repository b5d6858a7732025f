// One answer of the model: asks for it, reads its stream, and says what it costs and how likely its tokens were.
import { ask, events } from "./api.js";

const OF_PROMPTS = ["tools", "chat_template_kwargs"]; // settings that change what the model is shown

/** Whether an answer ended for the results of what it called. One that was stopped or cut has calls that may be
 *  broken: they are shown, and never go back to the model. */
export function endsInCalls(message) {
  return message.finish === "tool_calls" && message.calls?.length > 0;
}

/** A message as the API takes it; the results of what it called follow it. */
function said(message) {
  const { role, content, reasoning, calls } = message;
  if (!endsInCalls(message)) return [{ role, content }];
  const tool_calls = calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
  const answer = { role, content: content || null, tool_calls };
  if (reasoning) answer.reasoning_content = reasoning; // some templates show it until the tools have answered
  return [answer, ...calls.map(({ id, result }) => ({ role: "tool", tool_call_id: id, content: result }))];
}

/** What a conversation shows the model. */
function promptOf(model, system, messages) {
  const all = messages.flatMap(said);
  if (system.trim()) all.unshift({ role: "system", content: system });
  return { model, messages: all };
}

/** A piece of a call: the first one has its id and name, its arguments follow. */
function takeCall(calls, { id, function: { name, arguments: text } }) {
  if (id) calls.push({ id, name, arguments: "", result: "" });
  calls.at(-1).arguments += text ?? "";
}

/** Notes what an event brings. */
function take(message, data, clock) {
  const choice = data.choices[0];
  if (data.usage) message.stats.tokens = data.usage.completion_tokens;
  if (data.usage) message.stats.prompt = data.usage.prompt_tokens;
  if (!choice) return;
  const { content, reasoning_content: reasoning, tool_calls: pieces } = choice.delta;
  if (choice.token_ids?.length) {
    clock.last = performance.now();
    clock.first ??= clock.last;
    clock.nFirst ??= choice.token_ids.length;
    message.ids.push(...choice.token_ids);
  }
  message.content += content ?? "";
  message.reasoning += reasoning ?? "";
  for (const piece of pieces ?? []) takeCall(message.calls, piece);
  if (choice.finish_reason) message.finish = choice.finish_reason;
}

// Tokens that come all at once say nothing about a rate.
const LEAST_RATE_S = 0.05;

function reckon(message, clock) {
  if (clock.first === undefined) return;
  const later = message.ids.length - clock.nFirst, seconds = (clock.last - clock.first) / 1000;
  message.stats.firstMs = clock.first - clock.asked;
  message.stats.rate = later > 0 && seconds >= LEAST_RATE_S ? later / seconds : null;
}

/** An answer of which there is nothing yet. calls: [{id, name, arguments, result}], the last two as texts. */
export function newAnswer() {
  return { role: "assistant", content: "", reasoning: "", calls: [], ids: [], stats: {} };
}

/** Streams an answer into `message`; `changed` is called whenever there is more of it. settings: fields of the
 *  request. A stop by `signal` keeps what there is. Throws ApiError. */
export async function stream(model, conversation, before, message, settings, signal, changed) {
  const clock = { asked: performance.now() };
  const body = {
    ...promptOf(model, conversation.system, before), stream: true, return_token_ids: true,
    stream_options: { include_usage: true, continuous_usage_stats: true }, ...settings,
  };
  try {
    for await (const event of events("v1/chat/completions", { body, signal })) {
      message.note = event.comment === "recovering" ? "recovering" : null;
      if (event.data) take(message, event.data, clock);
      reckon(message, clock);
      changed();
    }
  } catch (e) {
    if (e.name !== "AbortError") throw e;
    message.finish ??= "stopped";
  } finally {
    message.note = null;
    reckon(message, clock);
  }
}

/** How likely each token of an answer was, and what else was likely: the model is shown the conversation and the
 *  answer once more, and makes nothing. [{text, chance, others: [{text, chance}]}] */
export async function chancesOf(model, conversation, before, message, settings) {
  const shown = Object.fromEntries(OF_PROMPTS.filter((name) => settings[name]).map((name) => [name, settings[name]]));
  const prompt = await ask("tokenize", { body: { ...promptOf(model, conversation.system, before), ...shown } });
  const scored = await ask("v1/completions", {
    body: { model, prompt: [...prompt.tokens, ...message.ids], echo: true, max_tokens: 0, logprobs: 5, skip_special_tokens: false },
  });
  const { tokens, token_logprobs: chosen, top_logprobs: top } = scored.choices[0].logprobs;
  const first = tokens.length - message.ids.length;
  return tokens.slice(first).map((text, i) => ({
    text,
    chance: Math.exp(chosen[first + i]),
    others: Object.entries(top[first + i] ?? {}).map(([t, p]) => ({ text: t, chance: Math.exp(p) })).sort((a, b) => b.chance - a.chance),
  }));
}

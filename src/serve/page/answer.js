// One answer of the model: asks for it, reads its stream, and says what it costs and how likely its tokens were.
import { ask, events } from "./api.js";

/** The body of a request for the answer to a conversation's messages. */
function requestOf(model, system, messages, sampling) {
  const said = messages.map(({ role, content }) => ({ role, content }));
  if (system.trim()) said.unshift({ role: "system", content: system });
  return {
    model, messages: said, stream: true, return_token_ids: true,
    stream_options: { include_usage: true, continuous_usage_stats: true }, ...sampling,
  };
}

/** Notes what an event brings; true if there is something to see. */
function take(message, data, clock) {
  const choice = data.choices[0];
  if (data.usage) message.stats.tokens = data.usage.completion_tokens;
  if (data.usage) message.stats.prompt = data.usage.prompt_tokens;
  if (!choice) return false;
  const { content = "", reasoning_content: reasoning = "" } = choice.delta;
  if (choice.token_ids?.length) {
    clock.last = performance.now();
    clock.first ??= clock.last;
    clock.nFirst ??= choice.token_ids.length;
    message.ids.push(...choice.token_ids);
  }
  message.content += content;
  message.reasoning += reasoning;
  if (choice.finish_reason) message.finish = choice.finish_reason;
  return Boolean(content || reasoning || choice.finish_reason);
}

// Tokens that come all at once say nothing about a rate.
const LEAST_RATE_S = 0.05;

function reckon(message, clock) {
  if (clock.first === undefined) return;
  const later = message.ids.length - clock.nFirst, seconds = (clock.last - clock.first) / 1000;
  message.stats.firstMs = clock.first - clock.asked;
  message.stats.rate = later > 0 && seconds >= LEAST_RATE_S ? later / seconds : null;
}

/** Streams an answer into `message` (role, content, reasoning, ids, stats); `changed` is called whenever there is
 *  more of it. A stop by `signal` keeps what there is. Throws ApiError. */
export async function stream(model, conversation, before, message, sampling, signal, changed) {
  const clock = { asked: performance.now() };
  const body = requestOf(model, conversation.system, before, sampling);
  try {
    for await (const event of events("v1/chat/completions", { body, signal })) {
      message.note = event.comment === "recovering" ? "recovering" : null;
      if (event.data) take(message, event.data, clock);
      reckon(message, clock);
      changed();
    }
  } catch (e) {
    if (e.name !== "AbortError") throw e;
    message.finish = "stopped";
  } finally {
    message.note = null;
    reckon(message, clock);
  }
}

/** How likely each token of an answer was, and what else was likely: the model is shown the conversation and the
 *  answer once more, and makes nothing. [{text, chance, others: [{text, chance}]}] */
export async function chancesOf(model, conversation, before, message) {
  const { messages } = requestOf(model, conversation.system, before, {});
  const prompt = await ask("tokenize", { body: { model, messages } });
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

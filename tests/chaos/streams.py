"""Requests as clients send them, and what of their answers must not depend on faults."""

import http.client
import itertools
import json
import threading
import time

STUCK_S = 60  # nothing came for so long: the stream is lost
WHOLE_STUCK_S = 300  # nor did an answer that comes as a whole


class Answer:
    """What came of one request: of each choice token ids, text, log-probabilities as printed, finish reason; usage;
    when tokens came. Ids of answers, times, comments, where events are cut and what was cached are left out."""

    def __init__(self):
        self.choices, self.usage, self.error, self.left, self.key = {}, None, None, False, None
        self.tokens, self.times = 0, []

    def add(self, event):
        """An event of a stream, or a whole answer."""
        self.usage = event.get("usage") or self.usage
        if self.usage:  # how much of the prompt others had computed is no part of the answer
            self.usage = {name: n for name, n in self.usage.items() if name != "prompt_tokens_details"}
        came = 0
        for part in event["choices"]:
            choice = self.choices.setdefault(part["index"], {"ids": [], "text": "", "logprobs": {}, "finish": None})
            said = part.get("delta") or part.get("message") or part
            choice["text"] += said.get("text") or said.get("content") or ""
            choice["finish"] = part.get("finish_reason") or choice["finish"]
            choice["ids"] += part.get("token_ids") or []
            for name, values in (part.get("logprobs") or {}).items():
                choice["logprobs"].setdefault(name, []).extend(values or [])
            came += len(part.get("token_ids") or [])
        if came:
            self.times.append(time.monotonic())
            self.tokens += came
        return came

    def lists(self, index):
        """{name: list} of all that grows with a choice's tokens; what shows a difference most clearly is first."""
        c = self.choices.get(index, {"ids": [], "text": "", "logprobs": {}})
        return {"token id": c["ids"], "byte": list(c["text"].encode()), **{f"logprobs.{k}": v for k, v in sorted(c["logprobs"].items())}}

    def finish(self, index):
        return self.choices.get(index, {}).get("finish")


def first_difference(ours, theirs, part):
    """Index at which two lists part; None: they are equal, or as far as ours goes if that is a part."""
    same = min(len(ours), len(theirs))
    first = next((i for i in range(same) if ours[i] != theirs[i]), same)
    return first if first < len(ours) or (first < len(theirs) and not part) else None


def differences(got, want):
    """What is wrong with an answer beside that of a run without faults: nothing, if the client left, beyond where it left."""
    wrong = [f"ended with an error after {got.tokens} tokens: {got.error}"] if got.error else []
    part = got.left or got.error is not None
    for index in sorted({*got.choices, *([] if part else want.choices)}):
        ours, theirs = got.lists(index), want.lists(index)
        for name in dict.fromkeys([*ours, *([] if part else theirs)]):
            a, b = ours.get(name, []), theirs.get(name, [])
            if (i := first_difference(a, b, part)) is not None:
                wrong.append(f"choice {index}: {name} {i} of {len(a)} is {a[i:i + 3]}, not {b[i:i + 3]} of {len(b)}")
                break
        if not part and got.finish(index) != want.finish(index):
            wrong.append(f"choice {index}: finish reason {got.finish(index)}, not {want.finish(index)}")
    if not part and got.usage != want.usage:
        wrong.append(f"usage {got.usage}, not {want.usage}")
    return wrong


def miscounts(got, request):
    """Without --exact last bits may differ, and with them tokens; none may be lost or repeated."""
    if got.error:
        return [f"ended with an error after {got.tokens} tokens: {got.error}"]
    if got.left:
        return []
    asked = request.body["max_tokens"]
    wrong = [f"choice {i}: {len(c['ids'])} tokens of {asked}, finish reason {c['finish']}"
             for i, c in sorted(got.choices.items()) if len(c["ids"]) != asked or c["finish"] != "length"]
    if not got.usage or got.usage["completion_tokens"] != got.tokens:
        wrong.append(f"{got.tokens} tokens came, usage {got.usage}")
    return wrong


def contradictions(got, kept):
    """What was sent is what is kept, whatever happened meanwhile: each token, its text and its log-probabilities."""
    if kept.error:
        return [f"asked again: {kept.error}"]
    wrong = [] if got.error else [f"asked again: {w}" for w in differences(got, kept)]
    for index, choice in got.choices.items():
        wrong += [f"choice {index}: {len(values)} of {name} for {len(choice['ids'])} tokens"
                  for name, values in choice["logprobs"].items() if name != "refusal" and len(values) != len(choice["ids"])]
    return wrong


def ask(port, request, model, on_tokens=lambda n: None, key=None):
    """Sends a request and reads the answer to its end, or to where the client leaves. With a key the answer is kept."""
    answer = Answer()
    answer.key = key
    headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=STUCK_S if request.body["stream"] else WHOLE_STUCK_S)
    try:
        connection.request("POST", request.path, json.dumps({"model": model, **request.body}), headers)
        response = connection.getresponse()
        if response.status != 200:
            answer.error = f"{response.status} {response.read().decode()}"
        elif request.body["stream"]:
            read_stream(response, request, answer, on_tokens)
        else:
            on_tokens(answer.add(json.loads(response.read(), parse_float=str)))
    except (OSError, http.client.HTTPException, ValueError) as e:
        answer.error = f"{type(e).__name__} {e}"
    finally:
        connection.close()
    return answer


def read_stream(response, request, answer, on_tokens):
    for line in response:
        if line == b"data: [DONE]\n":
            return
        if not line.startswith(b"data: "):
            continue
        event = json.loads(line[6:], parse_float=str)
        if "error" in event:
            answer.error = event["error"]["message"]
            return
        on_tokens(answer.add(event))
        if request.cancel_after and answer.tokens >= request.cancel_after:
            answer.left = True
            response.close()
            return
    answer.error = "the stream ended without [DONE]"


def ask_all(port, requests, model, at_once, on_tokens=lambda n: None, more=lambda: False, keyed=False):
    """(number of the request, its answer) of each request, so many of which are open at a time; then from the first one
    again for as long as there is to be more, and no answer was an error. keyed: each has a key of its own."""
    answers, numbers, lock = [], itertools.count(), threading.Lock()

    def client():
        while True:
            with lock:
                n = next(numbers)
                if n >= len(requests) and (any(a.error for _, a in answers) or not more()):
                    return
            answer = ask(port, requests[n % len(requests)], model, on_tokens, f"key-{n}" if keyed else None)
            with lock:
                answers.append((n % len(requests), answer))

    clients = [threading.Thread(target=client, daemon=True) for _ in range(at_once)]
    for c in clients:
        c.start()
    for c in clients:
        c.join()
    return sorted(answers, key=lambda a: a[0])

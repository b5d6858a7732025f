"""What ended an answer: `stop_reason` of completions and chats, whole and streamed."""
import re

import pytest

from test_breadth import ids_of
from test_openai import QUESTION, case, complete


def end_of(answer, stream):
    """finish_reason and stop_reason of an answer's only choice; of a stream, which says it once."""
    if not stream:
        choice = answer.choices[0]
        return choice.finish_reason, choice.model_extra["stop_reason"]
    said = [c for chunk in answer for c in chunk.choices if "stop_reason" in c.model_extra]
    assert len(said) == 1 and said[0].finish_reason
    return said[0].finish_reason, said[0].model_extra["stop_reason"]


@pytest.mark.parametrize("stream", [False, True])
def test_completions_say_what_ended_them(server, client, stream):
    golden = case(server, "line")
    ids, text = golden["greedy_ids"], golden["greedy_text"]
    ask = lambda **o: end_of(complete(client, server, prompt=golden["prompt_ids"], max_tokens=20, stream=stream, **o), stream)
    assert ask(stop=["\u2603", text[9:12]]) == ("stop", text[9:12])
    assert ask(extra_body={"stop_token_ids": [ids[5], server.config["vocab_size"] - 1]}) == ("stop", ids[5])
    assert ask(extra_body={"ignore_eos": True}) == ("length", None)
    # a string that is complete counts before the id behind it
    assert ask(stop=[text[:2]], extra_body={"stop_token_ids": [ids[12]]}) == ("stop", text[:2])


@pytest.mark.parametrize("stream", [False, True])
def test_chats_say_what_ended_them(server, client, stream):
    request = dict(model=server.model, messages=QUESTION, max_completion_tokens=12, temperature=0)
    whole = client.chat.completions.create(**request, extra_body={"return_token_ids": True}).choices[0]
    ask = lambda **o: end_of(client.chat.completions.create(**request, stream=stream, **o), stream)
    stop = whole.message.content[3:7]
    assert ask(stop=stop) == ("stop", stop)
    found = ids_of(whole)[3]
    assert ask(extra_body={"stop_token_ids": [found]}) == ("stop", found)


@pytest.mark.parametrize("stream", [False, True])
def test_the_models_own_end_is_null(server, client, stream):
    """An end of sequence, unless the request takes it for an id of its own."""
    golden = server.golden["stop_case"]
    content = re.search(r"user\n(.*)<\|im_end\|>\n<\|im_start\|>assistant", golden["prompt_text"], re.S).group(1)
    end = golden["greedy_ids"][-1]
    ask = lambda **o: end_of(client.chat.completions.create(
        model=server.model, temperature=0, messages=[{"role": "user", "content": content}], stream=stream,
        extra_body={"stop_token_ids": [end], **o}), stream)
    assert ask() == ("stop", None)
    assert ask(ignore_eos=True) == ("stop", end)

"""/metrics against Prometheus' own parser, vLLM's names, and the two ledgers: rows and time."""
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from test_openai import complete

# What vLLM calls them, without its prefix; types as it declares them.
VLLM = {
    "num_requests_running": "gauge", "num_requests_waiting": "gauge", "kv_cache_usage_perc": "gauge",
    "prompt_tokens": "counter", "generation_tokens": "counter", "num_preemptions": "counter",
    "request_success": "counter", "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram", "request_time_per_output_token_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram", "request_queue_time_seconds": "histogram",
    "request_prefill_time_seconds": "histogram", "request_decode_time_seconds": "histogram",
    "request_inference_time_seconds": "histogram", "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram", "request_params_n": "histogram",
    "request_params_max_tokens": "histogram",
}


def scrape(server):
    families = text_string_to_metric_families(server.get("/metrics").text)
    return {f.name.removeprefix("sluice:"): f for f in families}


def value(families, family, suffix="", **labels):
    return sum(s.value for s in families[family].samples
               if s.name == f"sluice:{family}{suffix}" and labels.items() <= s.labels.items())


def workers(families):
    """worker id -> (wall seconds, seconds by state, rows by state)"""
    found = {}
    for sample in families["worker_wall_seconds"].samples:
        found[sample.labels["worker"]] = (sample.value, {}, {})
    for family, at in (("worker_time_seconds", 1), ("worker_ledger_rows", 2)):
        for sample in families[family].samples:
            found[sample.labels["worker"]][at][sample.labels["state"]] = sample.value
    return found


def test_names_and_types_are_those_of_vllm(server):
    families = scrape(server)
    assert {name: families[name].type for name in VLLM if name in families} == VLLM
    assert all(f.documentation for f in families.values())


def test_prompts_under_way(server):
    assert server.wait_idle()
    for _ in range(100):
        rows = scrape(server)["worker_prompt_rows"].samples
        if all(s.value == 0 for s in rows):  # workers report now and then
            break
        time.sleep(0.1)
    assert {s.labels["state"] for s in rows} == {"done", "left"} and all(s.value == 0 for s in rows)


def test_histograms_are_whole(server, client):
    complete(client, server, prompt="And", max_tokens=4, extra_body={"ignore_eos": True})
    for name, family in scrape(server).items():
        if family.type != "histogram":
            continue
        series = {}
        for s in family.samples:
            labels = tuple(sorted((k, v) for k, v in s.labels.items() if k != "le"))
            series.setdefault(labels, []).append(s)
        for samples in series.values():
            buckets = [s for s in samples if s.name.endswith("_bucket")]
            counts = [s.value for s in buckets]
            assert counts == sorted(counts) and buckets[-1].labels["le"] == "+Inf", name
            bounds = [float(s.labels["le"]) for s in buckets]
            assert bounds == sorted(set(bounds)), name
            (total,) = [s.value for s in samples if s.name.endswith("_count")]
            reported_later = "worker" in buckets[0].labels
            assert total == counts[-1] and (total > 0 or reported_later), name


def test_layers_and_experts_account_for_every_row(server, client):
    """By worker, by block, by expert and by batch size it is the same number of rows."""
    complete(client, server, prompt="And", max_tokens=24, extra_body={"ignore_eos": True})
    assert server.wait_idle()
    for _ in range(100):
        families = scrape(server)
        rows = {value(families, "worker_rows", "_total", kind="expert"),
                value(families, "layer_expert_rows", "_total"),
                value(families, "expert_rows", "_total"),
                value(families, "expert_call_rows", "_sum")}
        trips, calls = value(families, "layer_trips", "_total"), value(families, "layer_expert_calls", "_total")
        if len(rows) == 1 and 0 not in rows and trips and calls:  # workers report now and then
            break
        time.sleep(0.1)
    assert len(rows) == 1 and rows.pop() > 0
    assert value(families, "expert_call_rows", "_count") == value(families, "expert_calls", "_total")
    assert calls > 0 and trips > 0
    for family in ("layer_time_seconds", "layer_trip_seconds"):
        assert value(families, family, "_total") > 0
    used = [s.value for s in families["layer_imbalance_ratio"].samples if s.value]
    assert used and all(1 <= v <= 2 for v in used)


def test_a_request_is_measured_once(server, client):
    before = scrape(server)
    made = complete(client, server, prompt=[5, 6, 7, 8], n=2, max_tokens=9, temperature=1,
                    extra_body={"ignore_eos": True})
    assert made.usage.completion_tokens == 18
    after = scrape(server)

    def delta(family, suffix):
        return value(after, family, suffix) - value(before, family, suffix)

    for family in ("request_queue_time_seconds", "request_prefill_time_seconds",
                   "request_decode_time_seconds", "request_inference_time_seconds",
                   "request_time_per_output_token_seconds", "time_to_first_token_seconds"):
        assert delta(family, "_count") == 2, family
    assert delta("e2e_request_latency_seconds", "_count") == 1
    assert delta("inter_token_latency_seconds", "_count") == 16
    assert delta("request_prompt_tokens", "_sum") == 8
    assert delta("request_generation_tokens", "_sum") == 18
    assert delta("request_params_n", "_sum") == 2
    assert delta("request_params_max_tokens", "_sum") == 18
    parts = delta("request_prefill_time_seconds", "_sum") + delta("request_decode_time_seconds", "_sum")
    whole = delta("request_inference_time_seconds", "_sum")
    assert whole == pytest.approx(parts) and whole <= 2 * delta("e2e_request_latency_seconds", "_sum")


def test_time_of_every_worker_is_accounted_for(server, client):
    """Its states add up to its wall time within 1 %, over its life and over a second of work."""
    first = workers(scrape(server))
    end = time.monotonic() + 3
    while time.monotonic() < end:
        complete(client, server, prompt="Then", max_tokens=32, extra_body={"ignore_eos": True})
    last = workers(scrape(server))
    assert set(first) == set(last)
    for worker, (wall, states, _) in last.items():
        assert {"execute", "pack", "poll", "sleep"} <= set(states)
        assert sum(states.values()) == pytest.approx(wall, rel=0.01), worker
        passed = wall - first[worker][0]
        spent = sum(states.values()) - sum(first[worker][1].values())
        assert passed > 1 and spent == pytest.approx(passed, rel=0.01), worker
        assert states["execute"] > first[worker][1]["execute"], worker


def test_rows_are_accounted_for(server, client):
    complete(client, server, prompt="Then", max_tokens=16, extra_body={"ignore_eos": True})
    assert server.wait_idle()
    for _ in range(100):
        rows = {k: sum(w[2][k] for w in workers(scrape(server)).values())
                for k in ("created", "merged", "cancelled", "lost")}
        if rows["created"] == rows["merged"] + rows["cancelled"] + rows["lost"] > 0:
            break
        time.sleep(0.1)
    assert rows["created"] == rows["merged"] + rows["cancelled"] + rows["lost"] > 0, rows
    assert rows["lost"] == 0

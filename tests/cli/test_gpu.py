"""GPUs of workers: what the options and plan.json say, what cannot be together with them, and what there is to see without a GPU.

Nothing here needs a GPU: SLUICE_CUDA_DRIVER names a library that is not there, or the tests' own."""

import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import pytest

from test_cli import ROOT, SLUICE

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import sample  # noqa: E402
import served  # noqa: E402

FIXTURE = ROOT / "tests" / "golden" / "qwen3moe-tiny"
RUN = ["run", FIXTURE, "--ids", "3,17,41", "-n", "2", "--ignore-eos"]
LOGITS = ["logits", FIXTURE, "--ids", "3,17,41", "--npy", os.devnull]
APART = ["--attention", 1, "--experts", 2]


FAKE = SLUICE.parent / "tests" / "libsluice-fake-cuda.so"  # the tests' driver: two GPUs, emulated


def sluice(*args, driver="/nowhere/libcuda.so.1", **variables):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    done = subprocess.run([SLUICE, *map(str, args)], capture_output=True, text=True, timeout=60,
                          env={**clean, "SLUICE_CUDA_DRIVER": str(driver), **variables})
    assert "Sanitizer" not in done.stderr and "was lost" not in done.stderr  # an answer that recovery gave would hide what went wrong
    return done


def refusal(*args):
    done = sluice(*args)
    assert done.returncode in (1, 2, 3) and done.stdout == "", done
    return done.stderr


def test_devices_say_why_there_is_none():
    text = sluice("devices", "--kernel-cache", "off").stdout
    assert "gpus     none: no CUDA driver: /nowhere/libcuda.so.1" in text
    said = json.loads(sluice("devices", "--kernel-cache", "off", "--json").stdout)
    assert said["gpus"] == [] and "/nowhere/libcuda.so.1" in said["no_gpus"]


@pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")
def test_devices_list_gpus():
    said = json.loads(sluice("devices", "--kernel-cache", "off", "--json", driver=FAKE).stdout)
    assert [gpu["device"] for gpu in said["gpus"]] == ["cuda:0", "cuda:1"] and said["no_gpus"] == ""
    for gpu in said["gpus"]:
        assert gpu["usable"] and gpu["why"] == "" and 0 < gpu["free"] <= gpu["memory"] and gpu["compute_capability"] == "9.0"
    text = sluice("devices", "--kernel-cache", "off", driver=FAKE).stdout
    assert "cuda:0   Emulated GPU 0, compute capability 9.0" in text and "cuda:1 " in text and "not used" not in text


@pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")
@pytest.mark.parametrize("extra", [["--attention", 1, "--experts", 1, "--attention-device", "cuda:0"], ["--attention", 2, "--device", "cuda:0,cuda:1"]])
def test_auto_measures_where_workers_compute(extra):
    quick = ["--max-num-seqs", 2, "--max-num-batched-tokens", 8, "--ctx", 64]  # the emulator is slow
    done = sluice(*RUN, *extra, *quick, "--log", "info", driver=FAKE)
    assert done.returncode == 0, done.stderr
    said = re.search(r"auto: measured in .*attention (\d+) / \d+, .*experts (\d+) / \d+", done.stderr)
    assert said, done.stderr
    if "--experts" in extra:  # an emulated GPU takes long, a processor does not
        assert int(said[1]) > 10 * int(said[2])


@pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")
def test_a_profile_of_a_gpu(tmp_path):
    done = sluice("profile", FIXTURE, "--device", "cuda:1", "--json", driver=FAKE)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["machine"] == "Emulated GPU 1" and said["isa"] == "cuda" and not said["random_weights"]
    assert set(said["stages"]) == {"attention", "router", "dense", "expert", "head"}
    copies = {link["transport"]: link for link in said["links"] if link["transport"].startswith("gpu-")}
    assert set(copies) == {"gpu-out", "gpu-in"} and all(len(link["points"]) > 4 for link in copies.values())


def test_attention_by_one_profile_experts_by_another(tmp_path):
    """Known costs: a GPU with attention beside processors with experts, and what rows take on their way."""
    gpu, cpu, load = (tmp_path / name for name in ("gpu.json", "cpu.json", "load.yaml"))
    times = {"attention": {"fixed": 100}, "router": {"fixed": 10}, "expert": {"fixed": 50}, "head": {"fixed": 100}}
    links = [{"transport": "shm", "peers": 1, "alpha": 10, "byte": 0}]
    ways = [{"transport": f"gpu-{way}", "peers": 1, "alpha": alpha, "byte": 0} for way, alpha in (("out", 30), ("in", 50))]
    about = {"version": 1, "model": "m", "machine": "n", "isa": "i", "cores": 1, "threads": 1}
    gpu.write_text(json.dumps({**about, "stages": times, "links": ways}))
    cpu.write_text(json.dumps({**about, "stages": {"expert": {"fixed": 400}}, "links": links}))
    load.write_text("input: 1\noutput: 50\narrival: {closed: 1}\nrequests: 4\n")
    run = ["simulate", FIXTURE, "--workload", load, "--json", "--control-us", 0, "--message-us", 0, "--profile", gpu]

    def itl(*more):
        done = sluice(*run, *more)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["itl_ms"]["p50"]
    both, apart = itl("--attention", 1, "--experts", 1, "--link", "10:100"), itl("--attention", 1, "--experts", 1, "--expert-profile", cpu)
    assert apart > both + 0.3  # slow experts in each block
    gpu.write_text(json.dumps({**about, "stages": times, "links": []}))
    assert itl("--attention", 1, "--experts", 1, "--expert-profile", cpu) < apart - 0.03  # nothing is copied
    assert "workers that have experts alone" in sluice(*run, "--attention", 2, "--expert-profile", cpu).stderr
    gpu.write_text(json.dumps({**about, "stages": times, "links": ways}))
    assert "no links between workers" in sluice(*run, "--attention", 2).stderr


CLUSTER = """name: one-gpu
nodes:
  - {device: H200, devices_per_node: 1, count: 1, intra: {bandwidth: 900GB/s, latency: 1us}, inter: {bandwidth: 50GB/s, latency: 10us}}
  - {device: EPYC, devices_per_node: 1, count: 2, intra: {bandwidth: 50GB/s, latency: 1us}, inter: {bandwidth: 50GB/s, latency: 10us}}
"""


def profiles_of_both(folder, copy_us):
    """Attention takes long on processors."""
    about = {"version": 1, "model": FIXTURE.name, "isa": "i", "cores": 1, "threads": 1}
    for name, attention in (("gpu", 10), ("cpu", 300)):
        times = {"attention": attention, "router": 5, "dense": 10, "expert": 5, "head": 10}
        links = [{"transport": way, "peers": 1, "alpha": copy_us, "byte": 0} for way in ("gpu-out", "gpu-in") if name == "gpu"]
        (folder / f"{name}.json").write_text(json.dumps({**about, "machine": f"the {name}", "links": links, "stages": {
            k: {"fixed": v, "floor": 0, "row": 0 if k == "router" else 1} for k, v in times.items()}}))
    return f"H200={folder}/gpu.json,EPYC={folder}/cpu.json"


def test_plans_have_attention_on_a_gpu_and_experts_on_processors(tmp_path):
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    plan, words = tmp_path / "plan.json", ["plan", FIXTURE, "--cluster", tmp_path / "cluster.yaml", "--slo-tpot", "none"]
    done = sluice(*words, "--profile", profiles_of_both(tmp_path, 20), "--on-gpus", "-o", plan)
    assert done.returncode == 0 and "Estimates" not in done.stdout, done
    said = json.loads(plan.read_text())
    assert said["workers"] == [{"roles": ["attention"], "device": "cuda:0"}, {"roles": ["expert"]}, {"roles": ["expert"]}]
    assert said["deployment"]["costs"] == {"attention": "the gpu", "expert": "the cpu"}
    fast = said["deployment"]["predicted"]["tokens_per_s"]
    done = sluice(*words, "--profile", profiles_of_both(tmp_path, 20000), "-o", plan)  # copies count, and nothing is said of GPUs unasked
    assert done.returncode == 0 and json.loads(plan.read_text())["deployment"]["predicted"]["tokens_per_s"] < fast and "cuda" not in plan.read_text()
    assert "cluster one-gpu has no type of device 'H100'" in refusal(*words, "--profile", "H200=x,H100=y".replace("x", str(tmp_path / "gpu.json")))
    assert "'EPYC' is not TYPE=FILE" in refusal(*words, "--profile", f"H200={tmp_path}/gpu.json,EPYC")
    assert "type H200 is named twice" in refusal(*words, "--profile", f"H200={tmp_path}/gpu.json,H200={tmp_path}/gpu.json")
    if FAKE.exists():
        done = sluice(*words, "--profile", profiles_of_both(tmp_path, 20), "--on-gpus", "-o", plan)
        told = [sluice(*RUN, *more, "--numerics", "cpu", "--kv-type", "f32", driver=FAKE) for more in (["--plan", plan], ["--device", "cuda:0"])]
        assert told[0].returncode == told[1].returncode == 0 and told[0].stdout == told[1].stdout, told


def test_profiles_are_of_processors_or_of_one_gpu():
    assert "neither cpu nor a GPU" in refusal("profile", FIXTURE, "--device", "emulated:H100")
    assert "no CUDA driver" in refusal("profile", FIXTURE, "--device", "cuda:0")
    assert "MODEL" in refusal("profile", "--device", "cuda:0")


@pytest.mark.parametrize("extra, why", [
    (["--device", "cuda"], "--device: device 'cuda' is unknown: cpu, cuda:N"),
    (["--device", "cuda:0,cuda:1"], "--device: 2 devices for 1 workers"),
    ([*APART, "--device", "cuda:0,cuda:1,cuda:2,cuda:3"], "--device: 4 devices for 3 workers: one for all, or one for each"),
    ([*APART, "--expert-device", "cuda:0,cuda:1,cuda:2"], "--expert-device: 3 devices for 2 workers that have experts alone"),
    (["--expert-device", "cuda:0"], "--expert-device: the plan has no workers that have experts alone"),
    (["--attention-device", "emulated:x"], "--attention-device: emulated devices are of all workers"),
    (["--device", "cuda:0", "--tp", 2], "--tp"),
    (["--device", "cuda:0", "--activations", "bf16"], "--activations"),
    (["--device", "cuda:0", "--activations", "bf16-parts"], "bf16-parts"),
    (["--device", "cuda:0", "--exact", "--segments"], "--segments"),
    (["--device", "cuda:0", "--exact", "--numerics", "fast"], "exact wants numerics exact or cpu"),
    ([*APART, "--attention-device", "cuda:0", "--numerics", "exact"], "worker 1 is on the CPU"),
    (["--device", "cuda:0", "--numerics", "quick"], "numerics 'quick' is unknown: cpu, fast, exact"),
    (["--numerics", "cpu"], "--numerics is for workers on GPUs"),
    (["--gpu-memory", "1GB"], "--gpu-memory is for workers on GPUs"),
    (["--device", "cuda:0", "--gpu-memory", "40GG"], "40GG"),
])
@pytest.mark.parametrize("verb", [RUN, LOGITS])
def test_what_cannot_be_is_refused_by_name(verb, extra, why):
    assert why in refusal(*verb, *extra)


@pytest.mark.parametrize("extra", [["--device", "cuda:0"], ["--device", "cuda:0", "--exact"], [*APART, "--attention-device", "cuda:0", "--schedule", "dep"],
                                   [*APART, "--expert-device", "cuda:0,cpu", "--transport", "shm", "--schedule", "dep"]])
def test_without_a_gpu_the_worker_says_so(extra):
    assert "cuda:0" in refusal(*RUN, *extra)


def test_a_plan_says_which_worker_is_on_which_gpu(tmp_path):
    plan = tmp_path / "plan.json"
    said = {"version": 1, "schedule": "dep", "workers": [{"roles": ["attention"], "device": "cuda:5"}, {"roles": ["expert"]}], "gpu": {"memory": 1000000000}}
    plan.write_text(json.dumps(said))
    assert "cuda:5" in refusal(*RUN, "--plan", plan)
    assert sluice(*RUN, "--plan", plan, "--device", "cpu").returncode == 0
    assert sluice(*RUN, "--plan", plan, "--attention-device", "cpu").returncode == 0
    said["gpu"]["numerics"] = "fast"
    plan.write_text(json.dumps(said))
    assert "cuda:5" in refusal(*RUN, "--plan", plan, "--exact")  # which takes the numerics that hold for every batch
    said["exact"] = True
    plan.write_text(json.dumps(said))
    assert "exact wants numerics exact or cpu" in refusal(*RUN, "--plan", plan)
    del said["exact"]
    said["workers"][0]["device"] = "gpu0"
    plan.write_text(json.dumps(said))
    assert "\"gpu0\" is neither \"cpu\" nor \"cuda:N\"" in refusal(*RUN, "--plan", plan)


def test_emulated_devices_compute_no_logits():
    assert "computes no logits" in refusal(*LOGITS, "--device", f"emulated:{ROOT / 'bench' / 'lab' / 'amoe-low.json'}")


@pytest.mark.parametrize("extra", [[], ["--attention", 1, "--experts", 2, "--transport", "shm"], ["--attention", 2, "--exact"]])
def test_a_shape_without_weights_can_be_measured(tmp_path, extra):
    config = FIXTURE / "config.json"
    (tmp_path / "config.json").write_text(config.read_text())
    small = ["bench", tmp_path, "--reps", 1, "--n-prompt", 8, "--n-gen", 4, "--json", *extra]
    done = sluice(*small, "--random-weights")
    assert done.returncode == 0 and [row["n_gen"] for row in json.loads(done.stdout)] == [0, 4]
    assert "--random-weights" in refusal(*small)
    if not extra:
        assert "not cut" in refusal(*small, "--random-weights", "--tp", 2)


@pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")
@pytest.mark.parametrize("extra, kv_type", sample.pairs([["--device", "cuda:1"], [*APART, "--attention-device", "cuda:0", "--transport", "shm"],
                                                         [*APART, "--device", "cpu,cuda:0,cuda:1", "--schedule", "pingpong"]], ["f32", "f16", "q8_0"]))
def test_a_gpu_has_the_bits_of_the_cpu(extra, kv_type):
    """The kernels themselves, on the tests' driver; more of this: multi.law.cuda."""
    def ids(*how):
        done = sluice(*RUN, "--exact", "--json", "--kv-type", kv_type, *how, driver=FAKE)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["ids"]
    assert ids(*extra) == ids()


@pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")
def test_forms_of_kernels_that_are_tried_give_the_same_ids():
    def said(forms):
        return sluice(*RUN, "--json", "--device", "cuda:0", "--log", "info", driver=FAKE, SLUICE_CUDA_FORMS=forms)
    plain, tried = said(""), said("try")
    assert "one row: weights" in tried.stderr and "one row: weights" not in plain.stderr
    assert json.loads(tried.stdout)["ids"] == json.loads(plain.stdout)["ids"]
    wrong = said("best")
    assert wrong.returncode != 0 and "SLUICE_CUDA_FORMS 'best' is unknown: try" in wrong.stderr


@pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")
@pytest.mark.parametrize("type_, extra", sample.of([("q8_0", []), ("q4_0", ["--exact"]), ("q8_0", ["--exact", *APART, "--schedule", "dep"])], 0, 1))
def test_experts_in_blocks_stay_on_the_gpu(wide, tmp_path, type_, extra):
    """Their lists are made there, and no bit of a pair's result changes: with --exact the ids are the CPU's."""
    model = tmp_path / "m.gguf"
    assert sluice("convert", wide, model, "--type", type_).returncode == 0

    def said(*how, **forms):
        done = sluice("run", model, "--ids", "3,17,41,90,5,7,700", "-n", 12, "--ignore-eos", "--temp", 0, "--kv-type", "f32", "--json", "--log", "info", *how, driver=FAKE, **forms)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["ids"], done.stderr
    (plain, quiet), (tried, told) = said("--device", "cuda:0", *extra), said("--device", "cuda:0", *extra, SLUICE_CUDA_FORMS="try", SLUICE_CUDA_GRAPHS="try")
    assert tried == plain and "experts by groups" not in quiet and "experts by groups: their lists are made on the GPU" in told
    assert (steps_as_graphs(told) > 5) == (not extra) and ("rows stay there" in told) == (APART[0] not in extra), told
    if extra:
        assert tried == said(*extra)[0]
    else:
        assert "experts by groups" not in said("--device", "cuda:0", "--activations", "f32", SLUICE_CUDA_FORMS="try")[1]


@pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")
@pytest.mark.parametrize("model, extra", sample.of([
    ("gptoss-tiny", []),  # MXFP4, biases, a clamped SwiGLU
    ("gptoss-tiny", ["--exact"]),
    ("gptoss-tiny", ["--exact", *APART, "--schedule", "dep"]),
    ("deepseekv3-tiny", []),  # F8_E4M3 with scales of blocks
    ("deepseekv3-tiny", ["--exact", "--activations", "f32"]),
    ("deepseekv3-tiny", ["--exact", *APART, "--schedule", "dep"]),
    ("qwen3moe-tiny", ["--exact"]),  # BF16 with the CPU's bits
    ("qwen3moe-tiny", ["--exact", *APART, "--schedule", "dep"]),
], 1, 5, 6))
def test_experts_with_scales_or_biases_stay_on_the_gpu(model, extra):
    def said(*how, **forms):
        done = sluice("run", FIXTURE.parent / model, "--ids", "3,17,41,90,5,7,300", "-n", 12, "--ignore-eos", "--temp", 0, "--kv-type", "f32", "--json", "--log", "info", *extra, *how,
                      driver=FAKE, **forms)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["ids"], done.stderr
    (plain, quiet), (tried, told) = said("--device", "cuda:0"), said("--device", "cuda:0", SLUICE_CUDA_FORMS="try")
    assert tried == plain and "experts by groups" not in quiet and "experts by groups: their lists are made on the GPU" in told
    assert ("rows stay there" in told) == (APART[0] not in extra), told
    if extra:
        assert tried == said()[0]


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """The fixture with heads of 64 values, which numerics fast has kernels of its own for, experts of as many, which are whole blocks, and weights
    drawn anew."""
    numpy = pytest.importorskip("numpy")
    folder, draw = tmp_path_factory.mktemp("wide"), numpy.random.default_rng(5)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        (folder / name).write_bytes((FIXTURE / name).read_bytes())
    config = json.loads((FIXTURE / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "head_dim": 64, "moe_intermediate_size": 64}))
    weights = (FIXTURE / "model.safetensors").read_bytes()
    known = json.loads(weights[8:8 + int.from_bytes(weights[:8], "little")])
    header, data = {}, b""
    for name, was in known.items():
        if name == "__metadata__":
            continue
        shape = list(was["shape"])
        if re.search(r"\.[qkv]_proj\.weight|\.[qk]_norm\.weight", name):
            shape[0] *= 2
        if name.endswith(".o_proj.weight"):
            shape[1] *= 2
        if ".experts." in name:
            shape["down_proj" in name] = 64
        values = 1 + 0.1 * draw.standard_normal(shape) if len(shape) == 1 else draw.standard_normal(shape) * 1.5 / shape[-1] ** 0.5
        rounded = (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(rounded)]}
        data += rounded
    said = json.dumps(header).encode()
    said += b" " * (-len(said) % 8)
    (folder / "model.safetensors").write_bytes(len(said).to_bytes(8, "little") + said + data)
    return folder


def steps_as_graphs(log):
    """How many steps of all workers were graphs, by what they say when they end."""
    return sum(int(n) for n in re.findall(r"(\d+) steps ran as \d+ graphs", log))


@pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")
@pytest.mark.parametrize("extra, prompt, n", sample.of([
    ([], 3, 40),  # into a second page
    (["--kv-type", "f16"], 60, 72),  # into more parts of attention than a graph has blocks for
    (["--kv-type", "q8_0", "--max-num-batched-tokens", 16], 70, 12),
    (["--attention", 1, "--experts", 0, "--schedule", "pingpong"], 5, 12),
], 0, 2))
def test_steps_as_graphs_give_the_same_ids(wide, extra, prompt, n):
    ids = ",".join(str((7 * i * i + 3 * i) % 900 + 3) for i in range(prompt))

    def said(graphs):
        done = sluice("run", wide, "--ids", ids, "-n", n, "--ignore-eos", "--temp", 0, "--json", "--ctx", 256, "--device", "cuda:0", "--log", "info", *extra,
                      driver=FAKE, SLUICE_CUDA_GRAPHS=graphs)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["ids"], steps_as_graphs(done.stderr)
    (plain, none), (ids_of_graphs, some) = said(""), said("try")
    assert none == 0 and some > n / 2 and len(set(plain)) > n / 4, (none, some, plain)
    assert ids_of_graphs == plain


ROWS = ["--exact", "--attention", "1", "--experts", "2", "--device", "cuda:0,cuda:1,cuda:0", "--schedule", "dep", "--ctx", "256", "--log", "info"]


@pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")
@pytest.mark.parametrize("transport", sample.of(["loop", "shm", "tcp"], 1))
def test_rows_that_stay_on_gpus_leave_headers_to_the_fabric(transport):
    """The same tokens and as many messages; what they had of rows goes from GPU to GPU, but for a note each and what fills lines up."""
    asked = {"model": "m", "prompt": [(7 * i + 3) % 900 for i in range(200)], "max_tokens": 4, "temperature": 0, "ignore_eos": True, "return_token_ids": True}

    def said(rows):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
        server = served.Server(FIXTURE, *ROWS, "--transport", transport,
                               environment={**environment, "SLUICE_CUDA_DRIVER": str(FAKE), "SLUICE_CUDA_ROWS": rows})
        try:
            ids = json.loads(server.request("POST", "/v1/completions", asked, timeout=60).read())["choices"][0]["token_ids"]
            time.sleep(1.5)  # workers tell what they count now and then
            counts = [sum(server.metrics(name)) for name in ("worker_device_bytes_total", r'worker_bytes_total\{.*"sent".*\}', r'worker_messages_total\{.*"sent".*\}')]
        finally:
            server.stop()
        server.reader.join(10)
        return ids, counts, "".join(server.log)
    (plain, (none, all_bytes, messages), _), (ids, (far, by_host, as_many), log) = said(""), said("try")
    print(f"{transport}: {all_bytes:.0f} bytes in {messages:.0f} messages by the host; {far:.0f} from GPU to GPU, {by_host:.0f} in {as_many:.0f} messages by the host")
    assert ids == plain and none == 0 and far > 100000, (ids, plain, none, far)
    assert max(messages, as_many) < 1.5 * min(messages, as_many), (messages, as_many)  # a slow machine's workers tell more often what they count
    told = 1000 * abs(messages - as_many)  # what they count takes about 600 bytes to tell
    assert by_host < all_bytes / 2 and abs(all_bytes - far - by_host) < 100 * max(messages, as_many) + told, (all_bytes, far, by_host, messages, as_many)
    assert "go by the host" not in log and (transport != "loop" or log.count("stay on GPUs") == 4), log


@pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")
@pytest.mark.parametrize("options, variables, why", [
    (["--transport", "loop"], {"SLUICE_FAKE_CUDA_PEERS": "0"}, "rows for worker 1 go by the host: GPU 0 does not reach memory of GPU 1"),
    (["--transport", "shm"], {"SLUICE_FAKE_CUDA_IPC": "0"}, "go by the host: the CUDA driver shares no memory between processes"),
    (["--transport", "tcp", "--checksums", "on"], {}, "rows go by the host: messages have checksums"),
    (["--transport", "tcp", "--encrypt", "on"], {}, "rows go by the host: messages are encrypted"),
    (["--transport", "loop", "--schedule", "aep"], {}, "rows go by the host: the schedule stores them"),
])
def test_rows_that_cannot_stay_on_gpus_go_by_the_host(options, variables, why):
    asked = ["run", FIXTURE, *ROWS, *options, "--ids", "3,17,41", "-n", 4, "--ignore-eos", "--json"]
    plain, tried = sluice(*asked, driver=FAKE), sluice(*asked, driver=FAKE, SLUICE_CUDA_ROWS="try", **variables)
    assert tried.returncode == 0 and why in tried.stderr, tried.stderr
    assert json.loads(tried.stdout)["ids"] == json.loads(plain.stdout)["ids"]
    assert "by the host" not in plain.stderr, plain.stderr
    wrong = sluice(*asked, driver=FAKE, SLUICE_CUDA_ROWS="yes")
    assert wrong.returncode != 0 and "SLUICE_CUDA_ROWS 'yes' is unknown: try" in wrong.stderr


@pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")
def test_batches_that_change_are_graphs(wide):
    """When choices begin is a matter of time, and of numerics fast bits depend on the batch: but not for up to four rows that see two pages."""
    asked = {"prompt": [3], "max_tokens": 16, "n": 4, "temperature": 1.2, "seed": 7}

    def said(graphs):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
        server = served.Server(str(wide), "--device", "cuda:0", "--ctx", "128", "--max-num-seqs", "8", "--log", "info",
                               environment={**environment, "SLUICE_CUDA_DRIVER": str(FAKE), "SLUICE_CUDA_GRAPHS": graphs})
        try:
            answer = json.loads(server.request("POST", "/v1/completions", {"model": "m", **asked}, timeout=60).read())
            alone = json.loads(server.request("POST", "/v1/completions", {"model": "m", **asked, "n": 1}, timeout=60).read())
        finally:
            server.stop()
        server.reader.join(10)
        return [choice["text"] for choice in answer["choices"] + alone["choices"]], steps_as_graphs("".join(server.log))
    (plain, none), (texts, some) = said(""), said("try")
    assert none == 0 and some > 10 and len(set(plain)) > 3, (none, some, plain)
    assert texts == plain


@pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")
@pytest.mark.parametrize("extra, why", [
    (["--numerics", "exact", "--wire", "f32"], "a list of the host is read (sl_k_exact_attn"),
    (["--numerics", "cpu"], "steps are no graphs here"),
])
def test_steps_that_cannot_be_graphs_say_why_once(wide, extra, why):
    done = sluice("run", wide, "--ids", "3,17,41", "-n", 8, "--ignore-eos", "--device", "cuda:0", "--log", "info", *extra, driver=FAKE, SLUICE_CUDA_GRAPHS="try")
    assert done.returncode == 0 and done.stderr.count(why) == 1 and steps_as_graphs(done.stderr) == 0, done.stderr
    wrong = sluice(*RUN, "--device", "cuda:0", driver=FAKE, SLUICE_CUDA_GRAPHS="yes")
    assert wrong.returncode != 0 and "SLUICE_CUDA_GRAPHS 'yes' is unknown: try" in wrong.stderr


def logits_of(path, *how):
    done = sluice("logits", FIXTURE, "--ids", "3,17,41,5,90,11", "--kv-type", "f32", "--npy", path, *how, driver=FAKE)
    assert done.returncode == 0, done.stderr
    return path.read_bytes()


@functools.cache
def logits_of_one_worker(folder):
    """With numerics exact, on a GPU, and with the CPU's bits."""
    return logits_of(folder / "exact", "--device", "cuda:1", "--numerics", "exact"), logits_of(folder / "cpu", "--exact")


@pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")
@pytest.mark.parametrize("extra, numerics", [
    (["--device", "cuda:0"], "fast"),
    (["--device", "cuda:0", "--exact"], "cpu"),  # until a GPU has run numerics exact: SL_NUMERICS_EXACT_BY_ITSELF
    ([*APART, "--device", "cuda:0", "--exact", "--numerics", "exact", "--schedule", "dep"], "exact"),
    ([*APART, "--device", "cuda:0,cuda:1,cuda:0", "--exact", "--schedule", "dep"], "cpu"),  # the tests' GPUs have two names
    ([*APART, "--device", "cuda:0,cpu,cuda:0", "--exact", "--schedule", "dep"], "cpu"),
    (["--device", "cuda:0", "--exact", "--numerics", "cpu"], "cpu"),
    (["--device", "cuda:0", "--numerics", "exact"], "exact"),
])
def test_exact_takes_what_all_workers_can(tmp_path, extra, numerics):
    """Whose bits they are is seen by what they are equal to: logits of one worker with these numerics."""
    got, (exact, cpu) = logits_of(tmp_path / "got", *extra), logits_of_one_worker(tmp_path.parent)
    assert exact != cpu
    assert (got == exact, got == cpu) == (numerics == "exact", numerics == "cpu")


@pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")
@pytest.mark.parametrize("fixture", sample.of(["glm4moe-tiny", "qwen3moe-tiny"], 1))
def test_exact_is_near_what_transformers_says(tmp_path, fixture):
    """Rows rounded to BF16 move logits by a few thousandths of the largest, and no id that transformers in f32 chose; a prompt has the same bits in chunks."""
    numpy = pytest.importorskip("numpy")
    folder = ROOT / "tests" / "golden" / fixture
    case = json.loads((folder / "golden.json").read_text())["cases"][1]
    want = numpy.load(folder / case["logits"], allow_pickle=False)

    def logits(*how):
        done = sluice("logits", folder, "--ids", ",".join(map(str, case["prompt_ids"] + case["greedy_ids"])), "--kv-type", "f32", "--npy", tmp_path / "got.npy",
                      "--device", "cuda:0", "--numerics", "exact", "--exact", *how, driver=FAKE)
        assert done.returncode == 0, done.stderr
        return numpy.load(tmp_path / "got.npy", allow_pickle=False)
    got = logits()
    off = numpy.max(abs(got - want), axis=1) / numpy.max(abs(want), axis=1)
    assert numpy.quantile(off, 0.9) < 1e-2 and numpy.sqrt(numpy.mean((got - want) ** 2) / numpy.mean(want**2)) < 6e-3
    first = len(case["prompt_ids"]) - 1
    assert numpy.argmax(got[first:-1], axis=1).tolist() == case["greedy_ids"]
    assert logits("--max-num-batched-tokens", 11).tobytes() == got.tobytes()


@pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")
def test_exact_is_of_the_kind_of_gpu_that_the_plan_names(tmp_path):
    plan = tmp_path / "plan.json"
    said = {"version": 1, "schedule": "ep", "workers": [{"roles": ["attention", "expert"], "device": "cuda:0"}],
            "gpu": {"numerics": "exact", "kind": "NVIDIA H200, compute capability 9.0"}}
    plan.write_text(json.dumps(said))
    done = sluice(*RUN, "--plan", plan, driver=FAKE)
    assert done.returncode != 0 and "cuda:0 is \"Emulated GPU 0, compute capability 9.0\"" in done.stderr, done.stderr
    del said["gpu"]["kind"]
    plan.write_text(json.dumps(said))
    assert sluice(*RUN, "--plan", plan, driver=FAKE).returncode == 0
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    secret.chmod(0o600)
    done = sluice("serve", FIXTURE, "--plan", plan, "--remote", "--port", 0, "--secret-file", secret, driver=FAKE)
    assert done.returncode != 0 and "gpu.kind" in done.stderr, done.stderr
    done = sluice(*RUN, *APART, "--device", "cuda:0,cuda:1,cuda:1", "--numerics", "exact", driver=FAKE)
    assert done.returncode != 0 and 'cuda:0 is "Emulated GPU 0' in done.stderr and 'cuda:1 is "Emulated GPU 1' in done.stderr, done.stderr


@pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")
@pytest.mark.parametrize("kv_type", sample.of(["f32", "bf16", "fp8"], 1))
def test_kv_of_a_gpu_outlives_the_program(tmp_path, kv_type):
    """--kv-disk: pages leave one GPU's memory and come to another's, and to a CPU's."""
    prompt = ",".join(str((7 * i * i + 3 * i) % 900 + 3) for i in range(70))

    def said(*how):
        done = sluice("run", FIXTURE, "--ids", prompt, "-n", 3, "--ignore-eos", "--temp", 0, "--json", "--kv-type", kv_type, *how, driver=FAKE)
        assert done.returncode == 0, done.stderr
        got = json.loads(done.stdout)
        return got["ids"], got["timings"]["cached_n"]
    want, _ = said("--device", "cuda:0", "--exact")
    kept = ["--exact", "--kv-disk", tmp_path / "kv"]
    assert [said("--device", device, *kept) for device in ("cuda:0", "cuda:1", "cpu")] == [(want, 0), (want, 64), (want, 64)]


@pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")
def test_what_does_not_fit_is_said():
    done = sluice(*RUN, "--device", "cuda:0", "--gpu-memory", "100KB", driver=FAKE)
    assert done.returncode != 0 and "--gpu-memory" in done.stderr, done.stderr
    done = sluice(*RUN, "--device", "cuda:7", driver=FAKE)
    assert done.returncode != 0 and "7" in done.stderr, done.stderr

"""--device auto: which devices it takes, that what it takes is what its options say, what it says of the others, and what cannot be together with it.

The tests' emulated GPU is slower than any processor. It wins where a profile says that it is fast, as --device-profile lets everybody say it."""

import json
import os
import re
import shlex

import pytest

from test_gpu import FAKE, FIXTURE, RUN, served, sluice

emulated = pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")
QUICK = ["--max-num-seqs", 2, "--max-num-batched-tokens", 8, "--ctx", 64]  # the emulator is slow
SPLIT = "--attention 1 --experts 1 --attention-device cuda:0 --expert-device cpu"
SIDES = f"{SPLIT.replace('cuda:0', 'cuda:0,cuda:1')} --prefill 1 --offload-experts"


def profiles(folder, gpu, cpu=(500, 100), copy_us=5):
    """Of a GPU and of processors: microseconds of attention and of an expert, whatever the rows."""
    about = {"version": 1, "model": FIXTURE.name, "isa": "i", "cores": 1, "threads": 1}
    for name, (attention, expert) in (("gpu", gpu), ("cpu", cpu)):
        links = ([{"transport": f"gpu-{way}", "peers": 1, "alpha": copy_us, "byte": 0} for way in ("out", "in")] if name == "gpu" else
                 [{"transport": transport, "peers": 1, "alpha": 5, "byte": 0} for transport in ("loop", "shm")])
        times = {"attention": attention, "router": 1, "dense": 10, "expert": expert, "head": 10}
        (folder / f"{name}.json").write_text(json.dumps({**about, "machine": f"the {name}", "links": links, "stages": {
            stage: {"fixed": us, "floor": 0, "row": 0} for stage, us in times.items()}}))
    return f"{folder}/cpu.json,{folder}/gpu.json"


def log_of(done):
    assert done.returncode == 0, done
    return [line.split(" devices: ", 1)[1] for line in done.stderr.splitlines() if " devices: " in line]


def taken(said):
    """What was taken, and what each that could be was predicted to do."""
    took = [line.removeprefix("taken: ") for line in said if line.startswith("taken: ")]
    assert len(took) == 1, said
    rates = {found[1]: float(found[2]) for line in said if (found := re.match(r"(--.*?): (\S+) tokens/s predicted", line))}
    return took[0], rates


def auto(*args, **how):
    done = sluice(*RUN, "--device", "auto", "--json", "--log", "info", *args, driver=FAKE, **how)
    return json.loads(done.stdout)["ids"], log_of(done)


APART = ["--attention", 1, "--experts", 2]


@emulated
@pytest.mark.parametrize("asked, gpu, cpu, expected", [
    ([], (10, 10), (500, 100), "--device cuda:0"),
    (["--exact"], (10, 10), (500, 100), "--device cuda:0"),
    ([], (10, 4000), (500, 100), SPLIT),
    (["--exact"], (10, 4000), (500, 100), SPLIT),
    ([], (9000, 4000), (500, 100), "--device cpu"),
    (APART, (10, 10), (500, 100), "--device cuda:0,cuda:1,cuda:0"),
    (APART, (10, 4000), (500, 100), "--attention-device cuda:0 --expert-device cpu"),
    ([*APART, "--schedule", "pingpong"], (9000, 10), (1000, 2000), "--attention-device cpu --expert-device cuda:0,cuda:1"),
    ([*APART, "--exact"], (9000, 10), (1000, 2000), "--attention-device cpu --expert-device cuda:0,cuda:1"),
    (["--attention", 2], (10, 4000), (500, 100), "--device cpu"),  # who has both roles keeps both
    (["--attention", 2, "--schedule", "ep"], (10, 10), (500, 100), "--device cuda:0,cuda:1"),
])
def test_the_fastest_is_taken_and_is_what_its_options_say(tmp_path, asked, gpu, cpu, expected):
    known = profiles(tmp_path, gpu, cpu)
    ids, said = auto(*asked, "--device-profile", known)
    took, rates = taken(said)
    assert took == expected, said
    everything = next(name for name in rates if re.fullmatch(r"--device cuda\S+", name))
    assert rates[took] == max(rates.values()) >= max(rates["--device cpu"], rates[everything])
    same = sluice(*RUN, "--json", *asked, *shlex.split(took), driver=FAKE)
    assert same.returncode == 0 and json.loads(same.stdout)["ids"] == ids, same
    if "--exact" in asked:  # the bits of the CPU, wherever it runs
        alone = sluice(*RUN, "--json", "--exact", "--kv-type", "f32", driver=FAKE)
        assert auto(*asked, "--kv-type", "f32", "--device-profile", known)[0] == json.loads(alone.stdout)["ids"]


@emulated
@pytest.mark.parametrize("asked", [[], ["--attention", 1, "--experts", 1]])
def test_what_no_profile_says_is_measured(tmp_path, asked):
    _, said = auto(*asked, *QUICK)
    took, rates = taken(said)
    assert took == "--device cpu" and len(rates) == (4 if asked else 3), said
    assert rates[took] > 10 * rates["--device cuda:0" if not asked else "--device cuda:0,cuda:1"]  # the emulator
    profiles(tmp_path, (1, 1))
    _, said = auto(*asked, *QUICK, "--device-profile", tmp_path / "gpu.json")  # processors alone are measured
    assert said[0] == f"a GPU as {tmp_path}/gpu.json says: the gpu, 1 threads"
    profiles(tmp_path, (1, 1), cpu=(1e6, 1e6))
    _, said = auto(*QUICK, "--device-profile", tmp_path / "cpu.json")
    assert taken(said)[0].startswith("--device cuda:0"), said


@emulated
def test_copies_of_rows_count(tmp_path):
    both = [taken(auto("--device-profile", profiles(tmp_path, (10, 4000), copy_us=us))[1]) for us in (5, 5000)]
    assert both[0][0] == SPLIT and both[1][0] == "--device cpu"


@emulated
@pytest.mark.parametrize("prompt_us, byte_us, expected, more", [
    (100, 0.03, SIDES, []),  # a row of a prompt takes processors long, a copy little
    (100, 0.03, SIDES, ["--route-skew", "exp:0.6:permuted:1"]),
    (0.01, 0.03, SPLIT, []),
    (100, 1e-7, "--device cuda:0 --offload-experts", []),  # copies cost nothing
])
def test_prompts_may_have_a_gpu_that_copies_experts(tmp_path, prompt_us, byte_us, expected, more):
    """Which only who says --offload-experts gets; all experts do not fit there."""
    known = profiles(tmp_path, (10, 10), cpu=(500, 60))
    for name, what in (("cpu", prompt_us), ("gpu", 0.001)):
        said = json.loads((tmp_path / f"{name}.json").read_text())
        said["stages"]["expert"]["row"] = what
        for link in said["links"]:
            link["byte"] = byte_us if link["transport"].startswith("gpu-") else 0
        (tmp_path / f"{name}.json").write_text(json.dumps(said))
    asked = ["--device-profile", known, "--kv-pages", 8, "--ctx", 128, "--max-num-batched-tokens", 64, "--max-num-seqs", 1, "--exact", *more]
    whole = re.search(r"worker 0 wants (\S+) MB for weights, (\S+) MB for KV and (\S+) MB", "\n".join(auto(*asked, "--gpu-memory", "100KB")[1]))
    most = int(1e6 * sum(map(float, whole.groups()))) - 30000
    ids, said = auto(*asked, "--offload-experts", "--gpu-memory", most)
    took, rates = taken(said)
    assert took == expected and "--device cuda:0: cannot be" in "\n".join(said), said
    assert {SIDES, "--device cuda:0 --offload-experts", "--device cpu"} <= set(rates)
    same = sluice(*RUN, "--json", "--exact", *more, *shlex.split(took), driver=FAKE)
    assert same.returncode == 0 and json.loads(same.stdout)["ids"] == ids, same
    assert "offload" not in " ".join(auto(*asked, "--gpu-memory", most)[1])


@emulated
def test_what_does_not_fit_says_by_how_much(tmp_path):
    known = ["--device-profile", profiles(tmp_path, (10, 10)), "--kv-pages", 4, "--ctx", 64]
    _, said = auto(*known, "--gpu-memory", "100KB")
    assert taken(said)[0] == "--device cpu: nothing else can be"
    wants = re.compile(r"(--.*): cannot be: worker 0 wants (\S+) MB for weights, (\S+) MB for KV and (\S+) MB for its calls, --gpu-memory is 0\.1 MB")
    most = {found[1]: sum(map(float, found.groups()[1:])) for line in said if (found := wants.fullmatch(line))}
    assert set(most) == {"--device cuda:0", SPLIT} and most[SPLIT] + 1 < most["--device cuda:0"], said
    _, said = auto(*known, "--gpu-memory", f"{int(1e6 * most['--device cuda:0']) - 300000}")  # attention fits
    assert taken(said)[0] == SPLIT and "--device cuda:0: cannot be: worker 0" in "\n".join(said), said


@emulated
def test_a_plan_of_workers_gets_devices(tmp_path):
    plan = tmp_path / "plan.json"
    roles = {"version": 1, "schedule": "dep", "workers": [{"roles": ["attention"]}, {"roles": ["expert"]}]}
    plan.write_text(json.dumps(roles))
    ids, said = auto("--plan", plan, "--device-profile", profiles(tmp_path, (10, 4000)))
    took, _ = taken(said)
    assert took == "--attention-device cuda:0 --expert-device cpu"
    same = sluice(*RUN, "--json", "--plan", plan, *shlex.split(took), driver=FAKE)
    assert json.loads(same.stdout)["ids"] == ids
    for more in ({"workers": [{"roles": ["attention"], "device": "cuda:0"}, {"roles": ["expert"]}]},
                 {"schedule": "aep", "workers": [{"roles": ["attention"], "prefill": True}, *roles["workers"]]},
                 {"workers": [*roles["workers"], {"roles": ["expert"], "spare": True}]}):
        plan.write_text(json.dumps({**roles, **more}))
        done = sluice(*RUN, "--plan", plan, "--device", "auto", driver=FAKE)
        assert done.returncode != 0 and str(plan) in done.stderr and "--device auto" in done.stderr, done


@pytest.mark.parametrize("verb", [RUN, ["bench", FIXTURE, "--reps", 1, "--n-prompt", 8, "--n-gen", 4, "--json"]])
def test_without_a_gpu_it_means_the_cpu_and_says_why(verb):
    done, plain = (sluice(*verb, *more) for more in (["--device", "auto"], []))
    assert "--device auto: cpu, as there is no GPU: no CUDA driver: /nowhere/libcuda.so.1" in done.stderr, done
    assert done.returncode == plain.returncode == 0
    if verb is RUN:
        assert done.stdout == plain.stdout
    assert sluice(*verb).stderr.count("devices: ") == 0  # nobody asked


@emulated
def test_serve_takes_it(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    asked = {"model": "m", "prompt": [3, 17, 41], "max_tokens": 6, "temperature": 0}

    def answer(*how):
        server = served.Server(str(FIXTURE), "--log", "info", "--ctx", "64", "--max-num-seqs", "2", *how,
                               environment={**environment, "SLUICE_CUDA_DRIVER": str(FAKE)})
        try:
            said = json.loads(server.request("POST", "/v1/completions", asked, timeout=60).read())
        finally:
            server.stop()
        return said["choices"][0]["text"], "".join(server.log)
    text, log = answer("--device", "auto", "--device-profile", profiles(tmp_path, (10, 4000)))
    assert f"taken: {SPLIT}" in log and "a step of 2 rows" in log and re.search(r"auto: \w+.*: decode \d+, prompt \d+ us a block", log), log
    assert log.count("measured in") == 0  # what was known of devices is known of the schedule
    assert answer(*SPLIT.split())[0] == text


@pytest.mark.parametrize("extra, why", [
    (["--attention-device", "cuda:0"], "--device auto: not with --attention-device"),
    (["--attention", 1, "--experts", 1, "--expert-device", "cpu"], "--device auto: not with --expert-device"),
    (["--attention", 2, "--prefill", 1], "--device auto: not with --prefill"),
    (["--numerics", "exact"], "--device auto: not with --numerics exact"),
    (["--numerics", "quick"], "numerics 'quick' is unknown"),
    (["--gpu-memory", "40GG"], "40GG"),
    (["--tp", 2], "--device auto: no GPU can be taken: plan: worker 0 is 2 ranks (--tp, --pp)"),
    (["--pp", 2], "--device auto: no GPU can be taken: plan: worker 0 is 2 ranks (--tp, --pp)"),
    (["--segments", "--exact"], "--device auto: no GPU can be taken: plan: sums in segments (--segments)"),
    (["--activations", "bf16"], "--device auto: no GPU can be taken: plan: activations bf16 (--activations)"),
    (["--time-scale", 2], "--time-scale is for an emulated device"),
    (["--attention", 2, "--device", "cuda:0,auto"], "--device: auto is no device"),
    (["--device", "cpu", "--attention-device", "auto"], "--attention-device: auto is no device"),
])
def test_what_cannot_be_together_is_refused_by_name(extra, why):
    done = sluice(*RUN, *([] if "--device" in extra else ["--device", "auto"]), *extra)
    assert done.returncode in (1, 2, 3) and done.stdout == "" and why in done.stderr, done
    if FAKE.exists() and "--device" not in extra:  # whether or not there is a GPU
        assert why in sluice(*RUN, "--device", "auto", *extra, driver=FAKE).stderr


def test_other_refusals_are_by_name(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    secret.chmod(0o600)
    serve = ["serve", FIXTURE, "--port", 0, "--device", "auto"]
    assert "--device auto: not with --remote" in sluice(*serve, "--attention", 2, "--remote", "--secret-file", secret).stderr
    assert "--device auto: not with --max-experts" in sluice(*serve, "--attention", 1, "--experts", 1, "--max-experts", 2).stderr
    (tmp_path / "config.json").write_text((FIXTURE / "config.json").read_text())
    assert "has no weights" in sluice("bench", tmp_path, "--device", "auto").stderr
    assert "--device auto: not with --random-weights" in sluice("bench", tmp_path, "--device", "auto", "--random-weights").stderr
    assert "auto is no device, but a choice of all workers' devices, which serve, run, bench and logits make" in sluice("simulate", FIXTURE, "--device", "auto").stderr
    assert "'auto' is neither cpu nor a GPU" in sluice("profile", FIXTURE, "--device", "auto").stderr
    known = profiles(tmp_path, (10, 10))
    assert "--device-profile: nothing is compared but by --device auto" in sluice(*RUN, "--device-profile", known).stderr


@pytest.mark.parametrize("files, why", [
    ("gpu.json,gpu.json", "gpu.json is the second one of a GPU"),
    ("cpu.json,cpu.json", "cpu.json is the second one of processors"),
    ("cpu.json,,gpu.json", "names no file"),
    ("none.json", "none.json"),
    ("none.json,", "none.json"),
])
def test_profiles_that_cannot_be_are_refused(tmp_path, files, why):
    profiles(tmp_path, (10, 10))
    named = ",".join(f"{tmp_path}/{name}" if name else "" for name in files.split(","))
    done = sluice(*RUN, "--device", "auto", "--device-profile", named)
    assert done.returncode != 0 and done.stdout == "" and why in done.stderr, done


def test_a_profile_of_another_model_is_taken_with_a_warning(tmp_path):
    known = profiles(tmp_path, (10, 10))
    (tmp_path / "gpu.json").write_text((tmp_path / "gpu.json").read_text().replace(FIXTURE.name, "another"))
    done = sluice(*RUN, "--device", "auto", "--device-profile", known)
    assert done.returncode == 0 and f"{tmp_path}/gpu.json is of model another, not {FIXTURE.name}" in done.stderr and "cpu.json" not in done.stderr, done

"""`sluice k8s`: the manifests by Kubernetes' own schemas, offline, and the command lines of their pods as processes of this machine."""

import os
import pathlib
import ssl
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import ended  # noqa: E402
from certificates import certificate  # noqa: E402
import launched  # noqa: E402
import served  # noqa: E402

yaml = pytest.importorskip("yaml")

SLUICE = served.SLUICE
MODEL = served.ROOT / "tests" / "golden" / "mixtral-tiny"
SHAPE = ["--attention", "1", "--experts", "2"]
PLAN = """{"version": 1, "schedule": "dep", "threads": 3,\r
\t"workers": [{"roles": ["expert"]}, {"roles": ["attention"]}, {"roles": ["expert"]}, {"roles": ["expert"], "spare": true}]}
"""
SLOW_S = 120  # a machine that does other things, too
VERSIONS = ["1.29", "1.33", "1.37"]  # pod-index is of 1.28 and later


def manifests(*options):
    text = subprocess.run([SLUICE, "k8s", MODEL, *options], check=True, capture_output=True, text=True).stdout
    found = list(yaml.safe_load_all(text))
    assert all(found)
    return found


def of(found, kind, name=None):
    [one] = [m for m in found if m["kind"] == kind and name in (None, m["metadata"]["name"])]
    return one


def planned(folder):
    (folder / "plan: a #1.json").write_text(PLAN, newline="")
    return ["--plan", folder / "plan: a #1.json"]


def pods(found):
    """Templates of pods, each as a pod."""
    for m in found:
        spec = m["spec"].get("leaderWorkerTemplate", m["spec"]) if "spec" in m else {}
        for key in ("template", "leaderTemplate", "workerTemplate"):
            if key in spec:
                yield {"apiVersion": "v1", "kind": "Pod", **spec[key], "metadata": {"name": "x", **spec[key]["metadata"]}}


def validate(found):
    validator = pytest.importorskip("kubernetes_validate")
    checked = 0
    for version in VERSIONS:
        for m in [*found, *pods(found)]:
            if m["kind"] != "LeaderWorkerSet":  # no kind of Kubernetes' own: its pods are
                validator.validate(m, version, strict=True)
                checked += 1
    return checked // len(VERSIONS)


@pytest.mark.parametrize("options", [[], ["--max-experts", "4", "--namespace", "models"], ["--lws", "--max-groups", "3"],
                                     ["--tls-secret", "moe-tls"], ["--tls-secret", "moe-tls", "--lws", "--max-groups", "2"]])
def test_manifests_are_what_kubernetes_takes(options, tmp_path):
    assert validate(manifests(*SHAPE, *options)) >= 5
    if not options:
        assert validate(manifests(*planned(tmp_path))) >= 10


def test_what_is_wrong_is_refused_by_the_schemas():
    """So the test above says something."""
    validator = pytest.importorskip("kubernetes_validate")
    broken = of(manifests(*SHAPE), "StatefulSet", "sluice-coordinator")
    broken["spec"]["replica"] = broken["spec"].pop("replicas")
    with pytest.raises(validator.ValidationError):
        validator.validate(broken, VERSIONS[-1], strict=True)


def test_a_plan_becomes_sets_whose_ordinals_are_its_workers(tmp_path):
    found = manifests(*planned(tmp_path), "--name", "moe")
    assert of(found, "ConfigMap")["data"]["plan.json"] == PLAN  # byte by byte
    sets = [m for m in found if m["kind"] == "StatefulSet"]
    shape = [(m["metadata"]["name"], m["spec"].get("ordinals", {}).get("start"), m["spec"]["replicas"]) for m in sets]
    assert shape == [("moe-coordinator", None, 1), ("moe-expert-0", 0, 1), ("moe-attention-1", 1, 1), ("moe-expert-2", 2, 1)]
    scaler = of(found, "HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == "moe-expert-2" and scaler["spec"]["maxReplicas"] == 2
    assert all(m["metadata"]["labels"]["app.kubernetes.io/instance"] == "moe" for m in found)
    for m in sets:  # a set has its own pods, and no others
        labels, chosen = m["spec"]["template"]["metadata"]["labels"], m["spec"]["selector"]["matchLabels"]
        assert chosen.items() <= labels.items()
    assert len({tuple(sorted(m["spec"]["selector"]["matchLabels"].items())) for m in sets}) == 4
    asked = [m["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] for m in sets]
    assert asked == ["1", "3", "3", "3"]


def test_memory_is_that_of_the_role():
    sets = {m["metadata"]["name"]: m for m in manifests(*SHAPE, "--threads", "2") if m["kind"] == "StatefulSet"}
    asked = {name: m["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"] for name, m in sets.items()}
    assert set(asked) == {"sluice-coordinator", "sluice-attention-0", "sluice-expert-1"}
    said = subprocess.run([SLUICE, "slurm", MODEL, *SHAPE], check=True, capture_output=True, text=True).stdout
    assert f"--mem-per-cpu={asked['sluice-attention-0']['memory']}" in said  # the largest
    assert int(asked["sluice-expert-1"]["memory"][:-1]) < int(asked["sluice-attention-0"]["memory"][:-1])


def test_names_that_are_none_are_refused():
    for options, why in ((["--name", "A"], "--name: 'A'"), (["--name", "a: b"], "--name"), (["--namespace", "x\ny"], "--namespace"),
                         (["--image", "a b"], "--image"), (["--claim", "-"], "--claim"), (["--secret-name", "a_b"], "--secret-name"),
                         (["--tls-secret", "a/b"], "--tls-secret"),
                         (["--max-groups", "2"], "--lws")):
        r = subprocess.run([SLUICE, "k8s", MODEL, *SHAPE, *options], capture_output=True, text=True)
        assert r.returncode == 2 and why in r.stderr and not r.stdout, (options, r.stderr)


def containers(found):
    return {p["metadata"]["labels"]["app.kubernetes.io/component"]: p["spec"]["containers"][0] for p in pods(found)}


def certs(found):
    """What each kind of pod sees of the certificate's secret."""
    seen = {p["metadata"]["labels"]["app.kubernetes.io/component"]: [v for v in p["spec"]["volumes"] if v["name"] == "certs"] for p in pods(found)}
    assert all(v["secret"]["secretName"] == "moe-tls" for volumes in seen.values() for v in volumes)
    return {part: [i["key"] for v in volumes for i in v["secret"]["items"]] for part, volumes in seen.items()}


def test_who_asks_asks_over_https():
    found = manifests(*SHAPE, "--tls-secret", "moe-tls", "--max-experts", "3")
    [port] = of(found, "Service", "sluice")["spec"]["ports"]
    assert (port["name"], port["appProtocol"], port["port"], port["targetPort"]) == ("https", "https", 443, "https")
    coordinator, worker = containers(found)["coordinator"], containers(found)["worker"]
    probes = [coordinator[key]["httpGet"] for key in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert all((p["scheme"], p["port"]) == ("HTTPS", "https") for p in probes)
    assert coordinator["command"][coordinator["command"].index("--tls-cert"):][:4] == ["--tls-cert", "/certs/tls.crt", "--tls-key", "/certs/tls.key"]
    for script in (worker["command"][2], worker["lifecycle"]["preStop"]["exec"]["command"][2]):
        assert "--url https://sluice " in script and "--cacert /certs/ca.crt " in script
    assert certs(found) == {"coordinator": ["tls.crt", "tls.key"], "worker": ["ca.crt"]}  # the key is the coordinator's alone
    mounted = [m for m in coordinator["volumeMounts"] if m["name"] == "certs"]
    assert mounted == [{"name": "certs", "mountPath": "/certs", "readOnly": True}]  # whole: a subPath is never renewed
    assert certs(manifests(*SHAPE, "--tls-secret", "moe-tls", "--lws")) == {"coordinator": ["tls.crt", "tls.key"], "worker": []}
    plain = manifests(*SHAPE, "--max-experts", "3")
    assert "https" not in str(plain).lower() and "certs" not in str(plain) and of(plain, "Service", "sluice")["spec"]["ports"][0]["port"] == 80


class Mounted:
    """A secret with a certificate as kubelet mounts it: names lead through one link to the files, and a renewal replaces that link."""

    def __init__(self, folder):
        self.folder, self.renewals = folder, 0
        folder.mkdir()
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (folder / name).symlink_to(f"..data/{name}")
        self.renew()

    def renew(self):
        self.renewals += 1
        made = self.folder / f"..{self.renewals}"
        cert, key = certificate(made, name=f"moe-{self.renewals}")
        cert.rename(made / "tls.crt")
        key.rename(made / "tls.key")
        (made / "ca.crt").write_text((made / "tls.crt").read_text())
        for file in made.iterdir():
            file.chmod(0o440 if os.getuid() == 0 else 0o400)  # root's, and the group's of the pod
        (self.folder / "..next").symlink_to(made.name)
        (self.folder / "..next").rename(self.folder / "..data")

    def text(self):
        return (self.folder / "tls.crt").read_text()


class Pods:
    """The pods' commands as processes: what Kubernetes gives, folders, names and variables, is put in their place."""

    def __init__(self, folder, found):
        self.folder, self.found = folder, found
        self.http, self.fabric = launched.free_port(), launched.free_port()
        given = folder / "secrets"
        given.mkdir()
        for key in ("secret", "admin-key", "api-key"):
            subprocess.run([SLUICE, "secret", "--out", given / key], check=True, capture_output=True)
            (given / key).chmod(0o440)
        (folder / "run").mkdir()
        (folder / "plan").mkdir()
        (folder / "plan" / "plan.json").write_text(of(found, "ConfigMap")["data"]["plan.json"])
        for _ in range(2):  # a pod's first container may run again
            self.run(self.spec("-coordinator")["initContainers"][0])
        self.key = (given / "api-key").read_text().strip()
        self.certs = Mounted(folder / "certs") if certs(found)["coordinator"] else None

    def asked(self):
        return launched.Asked(self.http, self.key, self.certs and self.certs.folder / "ca.crt")

    def spec(self, suffix):
        return of(self.found, "StatefulSet", "sluice" + suffix)["spec"]["template"]["spec"]

    def here(self, word):
        for there, here in (("/secrets", self.folder / "secrets"), ("/run/sluice", self.folder / "run"), ("/etc/sluice", self.folder / "plan"),
                            ("/srv/model", MODEL), ("/certs/", f"{self.folder}/certs/"), ("://sluice ", f"://127.0.0.1:{self.http} "), ("sluice-fabric:7000", f"127.0.0.1:{self.fabric}"),
                            ("0.0.0.0", "127.0.0.1")):
            word = word.replace(there, str(here))
        return {"8000": str(self.http), "7000": str(self.fabric), "sluice": str(SLUICE)}.get(word, word)

    def environment(self, container, index):
        fields = {"metadata.labels['apps.kubernetes.io/pod-index']": str(index), "status.podIP": "127.0.0.1"}
        given = {e["name"]: e.get("value") or fields[e["valueFrom"]["fieldRef"]["fieldPath"]] for e in container.get("env", [])}
        return {**os.environ, **{k: self.here(v) for k, v in given.items()}, "PATH": f"{SLUICE.parent}:{os.environ['PATH']}"}

    def run(self, container, command=None, index=0):
        words = [self.here(w) for w in command or container["command"]]
        subprocess.run(words, env=self.environment(container, index), check=True, timeout=SLOW_S)

    def start(self, suffix, index=0):
        container = self.spec(suffix)["containers"][0]
        with open(self.folder / f"log{suffix}-{index}", "a") as log:
            return ended.start([self.here(w) for w in container["command"]], env=self.environment(container, index), stdout=log, stderr=log)

    def leave(self, suffix, index):
        """What Kubernetes does before it stops a pod."""
        container = self.spec(suffix)["containers"][0]
        self.run(container, container["lifecycle"]["preStop"]["exec"]["command"], index)

    def logs(self):
        return "\n".join(f"{p.name}:\n{p.read_text()}" for p in self.folder.glob("log*"))


@pytest.fixture(params=[[], ["--tls-secret", "moe-tls"]], ids=["http", "https"])
def running(request, tmp_path):
    with ended.scope():
        yield Pods(tmp_path, manifests(*planned(tmp_path), "--drain-timeout", "5", *request.param))


def renew(running):
    """Nobody signals the server: it sees that its files are others."""
    running.certs.renew()
    launched.wait("the new certificate", SLOW_S, lambda: ssl.get_server_certificate(("127.0.0.1", running.http)) == running.certs.text())


def test_the_pods_commands_serve_scale_and_leave(running):
    asked = running.asked()
    running.start("-expert-0", 0)  # before the coordinator is there
    running.start("-attention-1", 1)
    server = running.start("-coordinator")
    last = running.start("-expert-2", 2)
    launched.wait("readiness", SLOW_S, asked.is_ready)
    said = asked.answer()
    # An autoscaler makes one more pod: it asks for the free place, and gets it.
    more = running.start("-expert-2", 3)
    launched.wait("worker 3", SLOW_S, lambda: asked.workers_that_serve() == 4)
    assert asked.answer()[:1] == said[:1]
    if running.certs:
        renew(running)
        asked = running.asked()
    # One pod goes, and comes again: with the place that it left.
    running.leave("-expert-2", 2)
    assert last.wait(SLOW_S) == 0
    assert len(asked.answer()) == 24
    running.start("-expert-2", 2)
    launched.wait("worker 2", SLOW_S, lambda: asked.workers_that_serve() == 4)
    server.terminate()
    assert server.wait(SLOW_S) == 0 and more.wait(SLOW_S) == 0, running.logs()


def test_a_leader_and_its_workers_take_their_ranks_from_the_set(tmp_path):
    found = of(manifests(*SHAPE, "--lws", "--threads", "1"), "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    assert found["size"] == 4
    command = found["workerTemplate"]["spec"]["containers"][0]["command"]
    secret = tmp_path / "secret"
    subprocess.run([SLUICE, "secret", "--out", secret], check=True, capture_output=True)
    http, fabric = launched.free_port(), launched.free_port()
    words = [{"sluice": str(SLUICE), "/srv/model": str(MODEL), "/run/sluice/secret": str(secret), "7000": str(fabric)}.get(w, w) for w in command]
    with ended.scope():
        for i in (3, 1, 2):
            env = {"LWS_WORKER_INDEX": str(i), "LWS_GROUP_SIZE": "4", "LWS_LEADER_ADDRESS": "localhost"}
            ended.start(words, env={**os.environ, **env}, stderr=subprocess.DEVNULL)
        leader = ended.start([SLUICE, "serve", MODEL, *SHAPE, "--remote", "--secret-file", secret, "--fabric-port", str(fabric), "--port", str(http)],
                             stderr=subprocess.DEVNULL)
        launched.wait("readiness", SLOW_S, launched.Asked(http).is_ready)
        assert len(launched.Asked(http).answer()) == 24
        leader.terminate()
        assert leader.wait(SLOW_S) == 0
        launched.wait("tasks that end", SLOW_S, lambda: not launched.processes(str(secret)))

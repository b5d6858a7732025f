"""A headless Chromium for tests of the page, driven over the pipe of its DevTools protocol: no port, no driver program."""
import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ANSWERS_WITHIN_S = 60
WAITS_S = 30  # for a condition: a busy machine is slow


class Browser:
    """One tab. `problems` has what the console called an error, exceptions, and violations of the content policy."""

    def __init__(self, width=1280, height=800, scale=1):
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-page-", ignore_cleanup_errors=True)
        its_input, self.to = os.pipe()
        self.of, its_output = os.pipe()
        command = [CHROMIUM, "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
                   "--disable-background-networking", "--no-default-browser-check", f"--user-data-dir={self.folder.name}"]
        if os.geteuid() == 0:
            command.append("--no-sandbox")
        # it reads from 3 and writes to 4
        shell = f'exec 3<&{its_input} 4>&{its_output}; exec "$@"'
        self.process = subprocess.Popen(["bash", "-c", shell, "chromium", *command, "about:blank"], pass_fds=(its_input, its_output),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(its_input)
        os.close(its_output)
        self.number, self.unread, self.problems, self.session = 0, b"", [], None
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(t["targetId"] for t in targets if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.size(width, height, scale)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.of)
        self.folder.cleanup()

    # -- the protocol

    def _message(self, end):
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.of], [], [], max(0, end - time.monotonic()))
            got = os.read(self.of, 1 << 20) if ready else b""
            if not got:
                raise TimeoutError("the browser does not answer")
            self.unread += got
        raw, self.unread = self.unread.split(b"\0", 1)
        return json.loads(raw)

    def _note(self, event):
        method, p = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(p["exceptionDetails"].get("exception", {}).get("description") or p["exceptionDetails"]["text"])
        elif method == "Log.entryAdded" and p["entry"]["level"] == "error":
            self.problems.append(f"{p['entry']['text']} {p['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and p["type"] in ("error", "assert"):
            self.problems.append(" ".join(str(a.get("value", a.get("description"))) for a in p["args"]))

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + ANSWERS_WITHIN_S
        while True:
            answer = self._message(end)
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer)

    # -- what a person does

    def size(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=width < 600)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def network(self, bytes_a_second):
        """How fast what comes arrives; None: as fast as it can. However fast a server is, its answer takes a while then."""
        self.call("Network.enable")
        self.call("Network.emulateNetworkConditions", offline=False, latency=0, uploadThroughput=-1, downloadThroughput=bytes_a_second or -1)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def reload(self):
        self.js("window.isOld = true")
        self.call("Page.reload")
        self.wait("!window.isOld && document.readyState === 'complete'")

    def js(self, expression):
        """The value of an expression in the page; promises are awaited."""
        done = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, f"{expression}: {done['exceptionDetails']}"
        return done["result"].get("value")

    def wait(self, expression, seconds=WAITS_S):
        """Until an expression holds."""
        end = time.monotonic() + seconds
        while not self.js(f"Boolean({expression})"):
            assert time.monotonic() < end, f"never held: {expression}\n{self.problems}\n{self.js('document.body.innerText')}"
            time.sleep(0.03)

    def click(self, selector):
        self.wait(f"document.querySelector({json.dumps(selector)})")
        self.js(f"document.querySelector({json.dumps(selector)}).click()")

    def type(self, selector, text):
        self.wait(f"document.querySelector({json.dumps(selector)})")
        self.js(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def key(self, key, code=None, text=None, number=0):
        common = {"key": key, "code": code or key, "windowsVirtualKeyCode": number}
        self.call("Input.dispatchKeyEvent", type="keyDown", **({"text": text} if text else {}), **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def enter(self):
        self.key("Enter", text="\r", number=13)

    def picture(self, path):
        pathlib.Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

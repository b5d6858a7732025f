#!/usr/bin/env python3
"""Makes the pictures of the page in docs/img: a real server, a real question, a real answer.

  tests/page/pictures.py [MODEL] [--out docs/img]      MODEL: default models/smollm2-moe, the demo model"""
import argparse
import os
import pathlib
import signal
import sys
import threading
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1])]
from browser import Browser  # noqa: E402
from served import ROOT, Server  # noqa: E402

QUESTION = "Write three tips for rowing a boat as a list."


def ready(browser):
    browser.wait("document.querySelector('#served')?.textContent")


def answered(browser):
    browser.wait("document.querySelector('.answer:not(.running) .stats')?.textContent.includes('token')", 180)


def chat(browser, server, out):
    browser.open(server.url + "/")
    ready(browser)
    browser.js("""localStorage.setItem('sluice.sampling', '{"temperature": 0, "max_tokens": 160}')""")
    browser.reload()
    ready(browser)
    browser.type("#prompt", QUESTION)
    browser.enter()
    answered(browser)
    browser.picture(out / "page-chat.png")
    browser.size(390, 760)
    browser.scheme("dark")
    time.sleep(0.3)
    browser.click(".answer [aria-label='Token probabilities']")
    browser.wait("document.querySelector('.tokens')")
    browser.click(".tokens .token:nth-child(2)")
    time.sleep(0.3)
    browser.picture(out / "page-chances-phone.png")


def live(browser, server, out):
    body = {"model": "smollm2-moe", "prompt": ["The river", "A boat", "The lock", "Water"], "max_tokens": 400, "ignore_eos": True}
    load = threading.Thread(target=server.request, args=("POST", "/v1/completions", body), kwargs={"timeout": 600})
    browser.size(1280, 1640)
    browser.scheme("dark")
    browser.open(server.url + "/#live")
    browser.reload()
    browser.wait("document.querySelectorAll('.room').length === 4")
    load.start()
    browser.wait("document.querySelector('.strip-legend')?.children.length > 4")
    os.kill(server.worker_pid(2), signal.SIGKILL)  # a recovery is in the picture
    browser.wait("document.querySelector('.news').textContent.includes('Requests waited')", 120)
    browser.wait("document.querySelectorAll('.room[data-state=serving]').length === 3 && document.querySelector('.room.works')", 120)
    time.sleep(2.5)
    browser.wait("parseFloat(getComputedStyle(document.querySelector('.strip-cursor')).getPropertyValue('--share')) > 0.4")
    browser.picture(out / "page-live.png")
    load.join()


def plan(browser, server, out):
    browser.size(1280, 1130)
    browser.scheme("light")
    browser.open(server.url + "/#plan")
    browser.reload()
    browser.wait("document.querySelector('#p-cluster')")
    for field, value in (("model", "deepseek-v3"), ("cluster", "megascale-hetero")):
        browser.js(f"{{ const e = document.querySelector('#p-{field}'); e.value = '{value}'; for (const t of ['input', 'change']) e.dispatchEvent(new Event(t, {{bubbles: true}})); }}")
    browser.js("document.querySelector('.plan-runnable input').checked = true")
    browser.click(".plan-run button")
    browser.wait("document.querySelectorAll('.point').length > 5", 60)
    browser.wait("document.querySelector('.plan-run button').textContent === 'Plan'")
    browser.js("document.querySelector('#plan').scrollTop = 0; document.activeElement.blur()")
    time.sleep(0.6)
    browser.picture(out / "page-plan.png")


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("model", nargs="?", default=str(ROOT / "models" / "smollm2-moe"))
    args.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "img")
    args = args.parse_args()
    server = Server(args.model, "--attention", "1", "--experts", "2", "--exact", "--served-model-name", "smollm2-moe")
    browser = Browser(1280, 760)
    try:
        chat(browser, server, args.out)
        live(browser, server, args.out)
        plan(browser, server, args.out)
    finally:
        browser.close()
        server.stop()


if __name__ == "__main__":
    main()

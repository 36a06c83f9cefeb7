#!/usr/bin/env python3
"""The page of kvrun serve in a browser without a screen: asking, stopping, answering again, forking, policies, the bar
of KV bytes. Usage: test_page.py KVRUN. Exit code 77: there is no chromium."""
import json, os, shutil, subprocess, sys, tempfile, time
from serving import Server, check, equal, finish

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """Chromium, spoken to over a pair of pipes: JSON texts that end with a zero byte."""

    def __init__(self, folder):
        to_browser, from_browser = os.pipe(), os.pipe()

        def pipes():  # it reads from 3 and writes to 4
            ends = [os.dup(to_browser[0]), os.dup(from_browser[1])]
            os.dup2(ends[0], 3), os.dup2(ends[1], 4)

        self.process = subprocess.Popen(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--user-data-dir=" + folder, "--remote-debugging-pipe"],
            preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser[0]), os.close(from_browser[1])
        self.out, self.input, self.rest, self.n, self.session = to_browser[1], from_browser[0], b"", 0, None
        self.errors = []

    def message(self):
        while b"\0" not in self.rest:
            piece = os.read(self.input, 1 << 16)
            if not piece:
                raise RuntimeError("the browser has ended")
            self.rest += piece
        one, _, self.rest = self.rest.partition(b"\0")
        return json.loads(one)

    def call(self, method, **params):
        self.n += 1
        m = {"id": self.n, "method": method, "params": params, **({"sessionId": self.session} if self.session else {})}
        os.write(self.out, json.dumps(m).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(answer["params"]["exceptionDetails"])
            if answer.get("id") == self.n:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, url):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Runtime.enable"), self.call("Page.enable")
        self.call("Page.navigate", url=url)

    def value(self, script):
        r = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            raise RuntimeError(f"{script}: {r['exceptionDetails']}")
        return r["result"].get("value")

    def wait(self, script, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if self.value(script):
                    return True
            except RuntimeError:  # the page is being loaded
                pass
            time.sleep(0.1)
        return False

    def end(self):
        self.process.kill(), self.process.wait()


def use(b, s):
    b.open(f"http://127.0.0.1:{s.port}/")
    check("the model's name", b.wait("document.getElementById('model').textContent === 'recall-4m-f16'"))
    ask = "(t => { $('text').value = t; $('send').click(); })"
    texts = "[...document.querySelectorAll('.message:not(.note)')].map(m => m.textContent)"
    idle = "$('stop').disabled && chat.messages.length === %d"

    b.value(ask + "('The code of Anna is 4711. What is the code of Anna?')")
    check("stop can be pressed while it answers", b.wait("!$('stop').disabled", 10))
    check("an answer", b.wait("document.querySelectorAll('.message.assistant').length === 1 && "
                              "document.querySelector('.message.assistant').textContent.length > 3"))
    b.value("$('stop').click()")
    check("it stops", b.wait(idle % 2, 20))
    check("and is kept as far as it came", b.value("document.querySelector('.note').textContent").startswith("stopped"))
    check("the bar has parts", b.wait("document.querySelectorAll('#bar i').length === 4"))
    check("and says how much", b.wait("/^KV .* of .*/.test($('legend').textContent)"), b.value("$('legend').textContent"))

    # a policy of its own, and an answer that ends by itself: what it says depends on the model, that it ends does not
    b.value("(() => { const f = window.fetch; window.fetch = (u, o) => { if (o && o.body) { const j = JSON.parse(o.body); "
            "j.max_tokens = 12; j.ignore_eos = true; window.sent = j; o = {...o, body: JSON.stringify(j)}; } return f(u, o); }; })()")
    b.value("$('kv').value = 'kivi2,recent=32', $('temperature').value = 0")
    b.value("$('retry').click()")
    check("answered again", b.wait(idle % 2))
    equal("under the policy chosen", b.value("window.sent.kv"), "kivi2,recent=32")
    check("and says so", "kivi2,recent=32" in (b.value("document.querySelector('.note').textContent") or ""))
    first = b.value(texts)
    b.value("$('fork').click()")
    equal("a fork has what was said", b.value(texts), first)
    equal("and is the chat that goes on", b.value("$('chats').value"), "1.1")
    b.value(ask + "('And once more?')")
    check("the fork goes on", b.wait(idle % 4))
    b.value("$('chats').value = '1', $('chats').onchange()")
    equal("the other stays as it was", b.value(texts), first)
    b.value("$('kv').value = 'nonsense'")
    b.value("$('retry').click()")
    check("an error is shown", b.wait("document.querySelector('.error') && /nonsense/.test(document.querySelector('.error').textContent)"))
    equal("no script failed", b.errors, [])


def main():
    if not CHROMIUM:
        print("skipped: no chromium")
        sys.exit(77)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Server("--chat-template", "chatml", "--ctx-size", "4096") as s:
        browser = Browser(folder)
        try:
            use(browser, s)
        finally:
            browser.end()
    finish()


main()

"""Chromium without a screen, for tests and pictures of the page."""
import base64, json, os, shutil, subprocess, time

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """Chromium, controlled over a pair of pipes with JSON texts that end with a zero byte."""

    def __init__(self, folder):
        to_browser, from_browser = os.pipe(), os.pipe()

        def pipes():  # it reads from 3 and writes to 4
            ends = [os.dup(to_browser[0]), os.dup(from_browser[1])]
            os.dup2(ends[0], 3), os.dup2(ends[1], 4)

        self.process = subprocess.Popen(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--user-data-dir=" + folder,
             "--remote-debugging-pipe"],
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
            if answer.get("method") == "Log.entryAdded" and answer["params"]["entry"]["source"] == "security":
                self.errors.append(answer["params"]["entry"]["text"])
            if answer.get("id") == self.n:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, url):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Runtime.enable"), self.call("Page.enable"), self.call("Log.enable")
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

    def type(self, text):
        self.call("Input.insertText", text=text)

    def key(self, name, *with_, text=""):
        """A key by its name in the DOM: Enter, Tab, Escape, a; with Control, Shift."""
        codes = {"Enter": 13, "Tab": 9, "Escape": 27, " ": 32}
        code = codes.get(name) or ord(name.upper()[0])
        bits = sum({"Alt": 1, "Control": 2, "Shift": 8}[m] for m in with_)
        text = text or {"Enter": "\r", " ": " "}.get(name, "")
        more = {"text": text} if text else {}
        if name == "a" and "Control" in with_:
            more["commands"] = ["selectAll"]
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code,
                      modifiers=bits, **(more if kind != "keyUp" else {}))

    def tab_to(self, what, back=False):
        """Presses Tab until the keyboard is on what this expression of `e`, the element, is true for."""
        seen = []
        for _ in range(120):
            self.key("Tab", *(["Shift"] if back else []))
            if self.value(f"(e => !!({what}))(document.activeElement)"):
                return
            seen.append(self.value("document.activeElement.outerHTML.slice(0, 80)"))
        raise AssertionError(f"the keyboard does not reach {what}; it was on {seen[:40]}")

    def size(self, width, height, scale, mobile, colours):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                  mobile=mobile)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])

    def picture(self, path):
        time.sleep(0.2)  # it is drawn
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def end(self):
        self.process.kill(), self.process.wait()

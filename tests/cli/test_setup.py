#!/usr/bin/env python3
"""T30: the settings file, kvrun config and kvrun doctor; messages of run, chat, inspect, plan on templates and memory.

Usage: test_setup.py KVRUN
"""
import json, pathlib, shutil, subprocess, sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from checks import Home, check, finish

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = str(ROOT / "models" / "bundled" / "recall-4m-f16.gguf")


class Setup(Home):
    """A home folder with a settings file."""

    def __init__(self, settings=None):
        super().__init__()
        self.file = self.home / ".config" / "kvrun" / "config.toml"
        if settings is not None:
            self.file.parent.mkdir(parents=True)
            self.file.write_text(settings)

    def answer(self, *words, **env):
        r = self.run("run", "-p", "Once upon a time", "-n", "4", "--json", *words, **env)
        check(f"run {words} ends well", r.returncode == 0, r)
        return json.loads(r.stdout) if r.returncode == 0 else {}

    def origins(self, *words, **env):
        r = self.run("config", "show", "--json", *words, **env)
        check(f"config show {words} ends well", r.returncode == 0, r)
        return {x["option"]: (x["value"], x["origin"]) for x in json.loads(r.stdout or "[]")}


SETTINGS = """
[defaults]
device = "cpu"
kv = "kivi4"
temp = 0

[run]
ctx-size = "1k"

[model.recall]
kv = "kivi2"

[model."recall-4m"]
ctx-size = 512
"""


def test_settings():
    with Setup(SETTINGS) as h:
        a = h.answer(MODEL)
        check("the model's section counts more than the defaults", a["kv"]["policy"] == "kivi2", a["kv"])
        check("and the longer name more than the command's", a["model"]["ctx"] == 512, a["model"])
        check("device and temp are the file's", a["device"]["driver"] != "" and a["device"]["cpu"], a["device"])
        check("the command line counts most", h.answer(MODEL, "--kv", "fp16")["kv"]["policy"] == "fp16")
        check("also in other words", h.answer(MODEL, "-ctk", "f16", "-ctv", "f16")["kv"]["policy"] != "kivi2")
        r = h.run("run", MODEL, "-p", "x", "-n", "1", KVRUN_DEVICE="no such device")
        check("the environment counts more than the file", r.returncode == 4 and "no such device" in r.stderr, r)
        o = h.origins("run", "-m", MODEL)
        check("config show names the lines",
              o["kv"][0] == "kivi2" and o["kv"][1].endswith("config.toml:11, [model.recall]"), o)
        check("and the defaults", o["top-k"] == ("40", "default"), o)
        check("and the environment", h.origins("run", KVRUN_DEVICE="cpu")["device"] == ("cpu", "KVRUN_DEVICE"))
        check("without a model its sections do not count", h.origins("run")["kv"][0] == "kivi4")
        check("config path", h.run("config", "path").stdout.strip() == str(h.file))
    with Setup(f'[defaults]\nmodel = "{MODEL}"\ndevice = "cpu"\n[run]\nno-bos = true\n') as h:
        check("the model may come from the file", "model" in h.answer("--temp", "0"))


def test_wrong_settings():
    for text, parts in (("[defaults", ["config.toml:1"]), ("[defaults]\ntempp = 1", ["config.toml:2", "'temp'"]),
                        ("[defaults]\ntemp = \"x\"", ["config.toml:2", "'x'", "number"]),
                        ("[runn]\n", ["'runn'", "'run'"]),
                        ("[defaults]\nkv = turbo4", ["config.toml:2", 'in quotes: kv = "turbo4"']),
                        ("[run]\nctx-size = 32k", ["config.toml:2", 'in quotes: ctx-size = "32k"']),
                        ('kv = "turbo4"', ["config.toml:1", "'kv' stands outside a section", "[defaults]"]),
                        ("[run]\njson = yes", ["config.toml:2", "write true or false: json = true"]),
                        ("[run]\n\n  quiet = Off", ["config.toml:3", "write true or false: quiet = false"]),
                        ("[run]\nsystem = on", ["config.toml:2", 'in quotes: system = "on"']),
                        ('[defaults]\nkv = "kivvi2"', ["config.toml:2, [defaults]", "'kivvi2'", "kivi2"]),
                        ('[run]\n\nkv = "kivi2,groop=4"', ["config.toml:3, [run]", "'groop'"]),
                        ("[run]\nport = 1", ["'port'"]), ("[run]\njson = 3", ["true or false"]),
                        ("[run]\nkv = {a = 1}", ["config.toml:2", "text"]), ("defaults = 3", ["section"])):
        with Setup(text) as h:
            r = h.run("run", MODEL, "-p", "x")
            lines = r.stderr.splitlines()
            check(f"{text!r} is refused", r.returncode == 2 and len(lines) == 1 and lines[0].startswith("error: "), r)
            for p in parts:
                check(f"{text!r}: says {p}", p in r.stderr, r.stderr)
            d = h.run("doctor", "--json", KVRUN_DEVICE="cpu")
            bad = [f for f in json.loads(d.stdout)["findings"] if f["about"] == "settings"]
            check(f"{text!r}: doctor says so and goes on", [f["state"] for f in bad][:1] == ["bad"] or "port" in text or
                  "json = 3" in text or '"x"' in text or 'kv = "ki' in text, bad)


def test_one_name_for_two_options():
    with Setup('[defaults]\nchat = true\nchat-template = "chatml"\ndevice = "cpu"\n') as h:
        r = h.run("run", MODEL, "-p", "Hello", "-n", "2", "--temp", "0", "--json")
        check("chat = true is the flag of run", r.returncode == 0 and
              json.loads(r.stdout)["prompt_tokens"] > 20, r)
        r = h.run("chat", MODEL, "-n", "2", stdin="Hello\n")
        check("and no name of a chat", r.returncode == 0 and "'true'" not in r.stderr, r)
        check("kvrun config lists what may follow", "origin" in h.run("config").stdout)
        check("--fit is on", h.origins("run")["fit"] == ("true", "default"))


def test_one_of_two():
    """What the command line says overrides what the file says of its opposite."""
    settings = f'[defaults]\nverbose = true\ndevice = "cpu"\nmodel = "{MODEL}"\n[run]\ngrammar = "root ::= [a]"\n'
    with Setup(settings) as h:
        r = h.run("run", "-p", "Hello", "-n", "2", "-q")
        check("-q counts more than verbose = true", r.returncode == 0 and not r.stderr, r)
        check("which counts else", "# loaded in " in h.run("run", "-p", "Hello", "-n", "2").stderr)
        r = h.run("run", "-p", "Hello", "-n", "8", "--json-schema", '{"type": "integer"}', "-q")
        check("--json-schema counts more than grammar", r.returncode == 0 and r.stdout.strip("-\n").isdigit(), r)
        check("which counts else", h.run("run", "-p", "Hello", "-n", "8", "-q").stdout == "a")
        r = h.run("plan", "--shape", "2x2x64", "--memory", "1G")
        check("--shape counts more than model", r.returncode == 0, r)


def test_place_of_a_device():
    with Setup('[defaults]\n\ndevice = "foo"\n') as h:
        for words in (("run", "-p", "x"), ("chat", "--chat-template", "chatml"), ("serve", "--port", "0"),
                      ("embed", "-p", "x")):
            r = h.run(*words, MODEL)
            check(f"{words[0]}: the device's line is named", r.returncode == 4 and
                  f"error: {h.file}:3, [defaults]: no device is called 'foo'" in r.stderr, r)
            r = h.run(*words, MODEL, KVRUN_DEVICE="bar")
            check(f"{words[0]}: or its variable", "error: KVRUN_DEVICE: no device is called 'bar'" in r.stderr, r)
            r = h.run(*words, MODEL, "--device", "baz", KVRUN_DEVICE="bar")
            check(f"{words[0]}: not of the command line", "error: no device is called 'baz'" in r.stderr, r)
    with Setup() as h:
        r = h.run("run", MODEL, "-p", "x", "-n", "1", KVRUN_BACKEND="cuda")
        check("a backend without a device has its own name", r.returncode in (0, 2) or
              r.returncode == 4 and "no usable CUDA device" in r.stderr, r)


def test_settings_of_a_conversation():
    with Setup('[defaults]\nsystem = "Be brief."\nno-think = true\ndevice = "cpu"\n') as h:
        r = h.run("run", MODEL, "-p", "Hello", "-n", "2", "-q")
        check("settings of a conversation do not hinder run", r.returncode == 0, r)
        r = h.run("run", MODEL, "-p", "Hello", "-n", "2", "-sys", "Be brief.")
        check("those of its command line do", r.returncode == 2 and "--system needs --chat" in r.stderr, r)


def test_folders_without_permission():
    with Setup() as h:
        # where no folder can be made, whoever asks
        r = h.run("chat", MODEL, "--device", "cpu", "--chat-template", "chatml", "--chat", "x", HOME="/proc")
        check("a chat without a folder ends at once and says what helps",
              r.returncode == 5 and "XDG_STATE_HOME" in r.stderr and "running on" not in r.stderr, r)
        r = h.run("doctor", "--json", HOME="/proc", KVRUN_DEVICE="cpu")
        states = {f["about"]: f["state"] for f in json.loads(r.stdout)["findings"]}
        check("doctor finds that", (states["chats"], states["models"]) == ("bad", "note"), states)


def test_doctor():
    with Setup() as h:
        r = h.run("doctor", KVRUN_DEVICE="cpu")
        check("doctor ends well where a device runs", r.returncode == 0, r)
        last = r.stdout.splitlines()[-1]
        check("its last line is the verdict", last.startswith("runs models, on the processor alone"), r)
        for about in ("kvrun", "Vulkan loader", "device", "cache", "chats", "settings", "models", "limits", "watchdog",
                      "driver probe"):
            check(f"doctor looks at {about}", any(about in l for l in r.stdout.splitlines()), r.stdout)
        check("without a model it says where one comes from", "kvrun pull" in r.stdout.splitlines()[-1], r.stdout)
        r = h.run("doctor", KVRUN_DEVICE="no such device")
        check("and with 4 where none does", r.returncode == 4 and "cannot run models" in r.stdout.splitlines()[-1], r)
        alone = shutil.copy(sys.argv[1], h.home / "kvrun")
        r = subprocess.run([alone, "doctor", "--json"], env=h.env | {"KVRUN_DEVICE": "cpu"}, text=True,
                           stdout=subprocess.PIPE)
        probe = next(f for f in json.loads(r.stdout)["findings"] if f["about"] == "driver probe")
        check("without kvrun-probe doctor says so", probe["state"] == "note", probe)


def test_no_home():
    with Setup() as h:
        r = h.run("doctor", "--json", HOME="", KVRUN_DEVICE="cpu")
        found = {f["about"]: f["text"] for f in json.loads(r.stdout)["findings"]}
        check("without HOME doctor says so of the settings", "HOME is set" in found["settings"], found)
        check("and of models", "none can be fetched" in found["models"], found)


def test_run():
    with Setup() as h:
        words = ["run", "-m", MODEL, "--device", "cpu", "--temp", "0", "-n", "3"]
        r = h.run(*words, "-p", "x", "-q", "-no-cnv", "--jinja")
        check("-q prints the text alone; flags of llama.cpp are taken",
              r.returncode == 0 and r.stdout and not r.stderr, r)
        r = h.run(*words, "-p", "x", "-v")
        check("-v is taken", r.returncode == 0 and "running on a CPU device" in r.stderr, r)
        r = h.run(*words, "-p", "Hello", "--chat")
        check("--chat needs a template", r.returncode == 3 and "chatml" in r.stderr, r)
        chat = json.loads(h.run(*words, "-p", "Hello", "--chat", "--chat-template", "chatml", "--json").stdout)
        raw = json.loads(h.run(*words, "-p", "Hello", "--json").stdout)
        check("--chat adds the template's text", chat["prompt_tokens"] > raw["prompt_tokens"] + 5, (chat, raw))
        r = h.run(*words, "-p", "Hello", "--system", "x")
        check("--system needs --chat", r.returncode == 2 and "--chat" in r.stderr, r)
        jinja = h.home / "t.jinja"
        jinja.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}answer:")
        for chosen in ("--chat-template", "--chat-template-file"):
            r = h.run(*words, "-p", "Hello", "-st", chosen, str(jinja), "-sys", "Be brief.", "--json")
            check("a template may be a file", r.returncode == 0 and json.loads(r.stdout)["prompt_tokens"] > 8, r)
        r = h.run(*words, "-p", "Hello", "--chat", "--chat-template", str(jinja) + "x")
        check("a missing template is found before the model is read", r.returncode == 3 and
              len(r.stderr.splitlines()) == 1, r)
        r = h.run(*words, "-p", "Hello", "--chat", "--chat-template", "chatml", "--truncate")
        check("--truncate and --chat conflict", r.returncode == 2 and "--truncate" in r.stderr, r)
        r = h.run(*words, "-p", "x", "-v")
        check("-v says what is loaded, where, and the cache", all(x in r.stderr for x in (
            "# loaded in ", "# memory: weights ", "# device: ", "# cache: fp16, up to 2048 tokens", "# prompt: ")), r)
        r = h.run(*words, "-p", "x", KVRUN_LOG="2")
        check("KVRUN_LOG=2 has a line for each token", "# token 3: " in r.stderr and "# read " in r.stderr, r)
        r = h.run(*words, "-p", "a " * 3000)
        check("a prompt beyond the trained context is not told to raise -c", r.returncode == 6 and "trained for 2048" in
              r.stderr and "raise" not in r.stderr, r)
        r = h.run("inspect", MODEL, "--template")
        check("inspect --template: there is none", r.returncode == 3 and "no chat template" in r.stderr, r)
        r = h.run("plan", MODEL, "--memory", "5M", "-c", "100")
        check("plan says what does not fit", r.returncode == 6 and "the cache is not the problem" in r.stdout, r)
        r = h.run("plan", MODEL, "--memory", "8G", "-c", "32k", "--kv", "all")
        check("plan says where the trained context ends",
              r.returncode == 0 and "trained for 2048 tokens" in r.stdout, r)
        r = h.run("chat", MODEL, "--device", "cpu", "--chat-template", "chatml", stdin="/set temp -1\n")
        check("/set temp -1 is refused", r.returncode == 2 and "temp is '-1'" in r.stderr, r)


for name, test in list(globals().items()):
    if name.startswith("test_") and (len(sys.argv) < 3 or name in sys.argv[2:]):
        test()
finish()

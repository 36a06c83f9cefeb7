#!/usr/bin/env python3
"""kvrun-desktop as a user has it: keys and text in, the app's state and pictures of the window out; on Xvfb and
lavapipe, with the bundled model. Usage: test_desktop.py KVRUN_DESKTOP. Exit code 77: there is no Xvfb."""
import json, os, shutil, signal, subprocess, sys, time
from xvfb import ROOT, Desktop, Display, colours

CHATML = ("--chat-template", "chatml", "--temp", "0")


def shown(dump, title=None):
    """Texts of the current conversation, or of the one with this title."""
    for c in dump["conversations"]:
        if c["title"] == title or (title is None and c["id"] == dump["current"]):
            return [m["text"] for m in c["shown"]]
    raise AssertionError(f"no conversation {title!r} in {[c['title'] for c in dump['conversations']]}")


def question_and_answer(app):
    app.run(["wait loaded", "key ctrl+shift+M", "type Once upon a time there was a dog.", "wait 0.2",
             "screenshot typed.ppm", "key Return", "wait idle", "wait 0.2", "screenshot answered.ppm", "dump dump",
             "quit"], *CHATML, "-n", "24", "--kv", "rtn4,recent=32,sinks=0")
    dump = app.dump()
    texts = shown(dump)
    assert texts[0] == "Once upon a time there was a dog." and texts[1].strip(), texts
    assert dump["problem"] == "" and dump["phase"] == "ready" and "llvmpipe" in dump["device"], dump
    tiers = dump["conversations"][0]["tiers"]
    assert tiers[0] and tiers[2], tiers  # f16 and packed
    assert dump["conversations"][0]["tokens_per_second"] > 0, dump
    regions = dump["regions"]
    for name in ("list", "messages", "question", "cache", "strip"):
        n, most = colours(app.picture("answered.ppm"), regions[name])
        assert n > (2 if name == "strip" else 3) and most < 0.9999, (name, n, most)
    before, after = app.picture("typed.ppm"), app.picture("answered.ppm")
    assert colours(before, regions["strip"])[0] < colours(after, regions["strip"])[0], "the strip did not change"
    # what was said is there when the program starts again
    app.run(["wait loaded", "dump dump", "quit"], *CHATML)
    assert shown(app.dump()) == texts


def two_at_once_and_branches(app):
    app.run(["wait loaded", "key ctrl+N", "type first", "key Return", "key ctrl+N", "type second", "key Return",
             "wait 0.1", "dump together", "wait idle",
             "key ctrl+R", "wait idle", "dump retried", "key alt+Left", "dump before",
             "key ctrl+E", "key ctrl+A", "type another", "key Return", "wait idle", "dump edited",
             "key ctrl+K", "type ANOTHER", "dump searched", "key Escape", "dump left",
             "key ctrl+shift+K", "dump forked", "key F2", "key ctrl+A", "type renamed", "key Return", "dump renamed",
             "key ctrl+shift+Delete", "dump asked", "key Return", "dump kept",
             "key ctrl+shift+Delete", "press Delete", "dump deleted", "quit"],
            *CHATML, "-n", "160")
    assert sum(c["answering"] for c in app.dump("together")["conversations"]) == 2
    retried = app.dump("retried")
    last = next(c for c in retried["conversations"] if c["id"] == retried["current"])["shown"][-1]
    assert last["siblings"] == 2 and last["number"] == 2, last
    before = app.dump("before")
    assert next(c for c in before["conversations"] if c["id"] == before["current"])["shown"][-1]["number"] == 1
    assert shown(app.dump("edited"))[0] == "another", shown(app.dump("edited"))
    n = len(app.dump("edited")["conversations"])
    assert app.dump("searched")["listed"] == ["second"], app.dump("searched")["listed"]  # by its text: "another"
    assert app.dump("searched")["focus"] == "Search conversations"
    assert len(app.dump("left")["listed"]) == n and app.dump("left")["focus"] == "Your question"
    assert len(app.dump("forked")["conversations"]) == n + 1
    assert shown(app.dump("forked")) == shown(app.dump("edited"))
    assert "renamed" in [c["title"] for c in app.dump("renamed")["conversations"]]
    asked = app.dump("asked")  # what cannot be undone never has the keyboard
    assert "renamed" in asked["dialog"] and asked["focus"] == "Keep", (asked.get("dialog"), asked["focus"])
    assert len(app.dump("kept")["conversations"]) == n + 1 and "dialog" not in app.dump("kept")
    assert "renamed" not in [c["title"] for c in app.dump("deleted")["conversations"]]
    assert len(app.dump("deleted")["conversations"]) == n


def first_user(app):
    """Starts without arguments: models that other programs have left here, the keyboard on the first; dropped files."""
    model, app.model = app.model, None
    hub = app.path("hub/hub/models--kvrun--recall/snapshots/1")
    os.makedirs(hub)
    os.symlink(model, os.path.join(hub, "recall.gguf"))
    blobs = app.path("ollama/blobs")
    manifest = app.path("ollama/manifests/registry.ollama.ai/library/tiny/4m")
    os.makedirs(blobs)
    os.makedirs(os.path.dirname(manifest))
    shutil.copy(model, os.path.join(blobs, "sha256-77"))
    with open(manifest, "w") as f:
        json.dump({"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:77"}]}, f)
    app.env = {"HF_HOME": app.path("hub"), "OLLAMA_MODELS": app.path("ollama")}
    with open(app.path("note.txt"), "w") as f:
        f.write("no model")
    app.run(["wait models", "dump start", "screenshot start.ppm", "key ctrl+,", "wait planned", "dump settings",
             "key Escape", f"drop {app.path('note.txt')}", "dump dropped", "key ctrl+O", "wait models",
             "key Return", "wait loaded", "dump loaded", "type Hello", "key Return", "wait idle", "dump answered",
             "quit"],
            *CHATML, "-n", "4")
    start = app.dump("start")
    assert start["page"] == "start" and start["phase"] == "off" and start["unnamed"] == [], start
    names = [b for b in start["buttons"] if b.startswith(("recall", "tiny"))]
    assert [n.split(",")[0] for n in names] == ["recall", "tiny:4m"], start["buttons"]
    assert start["focus"] == names[0], (start["focus"], names)
    settings = app.dump("settings")
    assert settings["page"] == "settings" and settings["unnamed"] == [], settings["unnamed"]
    assert "note.txt is neither" in app.dump("dropped")["problem"], app.dump("dropped")["problem"]
    loaded = app.dump("loaded")
    assert loaded["page"] == "chat" and loaded["focus"] == "Your question" and loaded["problem"] == "", loaded
    answered = app.dump("answered")
    assert shown(answered)[1].strip() and answered["unnamed"] == [], answered["unnamed"]
    # again: the model is among those used before; a question loads it
    app.run(["wait models", "dump start", "key ctrl+N", "type Again", "key Return", "wait idle", "dump answered",
             f"drop {os.path.join(hub, 'recall.gguf')}", "wait loaded", "dump dropped", "quit"], *CHATML, "-n", "4")
    assert app.dump("start")["focus"].startswith("recall, "), app.dump("start")["focus"]
    assert app.dump("answered")["phase"] == "ready" and len(shown(app.dump("answered"))) == 2, app.dump("answered")
    assert app.dump("answered")["problem"] == "", app.dump("answered")
    assert app.dump("dropped")["model"].endswith("recall.gguf"), app.dump("dropped")


def long_question(app):
    """The end of a question of 40 KB is seen while it is read."""
    with open(app.path("long"), "w") as f:
        f.write("".join(f"line {i} of a long question\n" for i in range(1400)))
    app.run(["wait loaded", "paste long", "key Return", "wait reading", "wait 0.3", "screenshot reading.ppm",
             "dump dump", "key Escape", "wait idle", "quit"], *CHATML, "-n", "1", "-c", "100000")
    x, y, width, height = app.dump()["regions"]["messages"]
    n, most = colours(app.picture("reading.ppm"), (x, y, width * 0.9, height * 0.7))  # above buttons and progress
    assert n > 50 and most < 0.99, (n, most)


def stop_and_kill(app):
    app.run(["wait loaded", "key ctrl+N", "type stopped", "key Return", "wait answering", "key Escape",
             "wait idle 10", "dump dump", "quit"], *CHATML, "--temp", "1.5", "-c", "2000")
    assert shown(app.dump())[0] == "stopped"
    process = app.start(["wait loaded", "key ctrl+N", "type killed", "key Return", "wait answering",
                         "dump answering", "wait 100"], *CHATML, "--temp", "1.5", "-c", "4000")
    end = time.monotonic() + 120
    while not (os.path.exists(app.path("answering")) and app.is_saved("killed")) and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    app.run(["wait loaded", "dump dump", "key ctrl+R", "wait idle", "dump again", "quit"], *CHATML, "-n", "4")
    assert shown(app.dump())[0] == "killed", shown(app.dump())
    assert shown(app.dump("again"), "killed")[1].strip()


def settings_and_errors(app):
    app.run(["wait loaded", "key ctrl+,", "wait planned", "wait 0.3", "screenshot plan.ppm", "dump dump", "key Escape",
             "wait 0.2", "dump closed", "quit"], *CHATML, "-c", "50000000")
    dump = app.dump()
    n, most = colours(app.picture("plan.ppm"), dump["regions"]["settings"])
    assert n > 8, n
    red = bytes((179, 38, 30))
    assert red in app.picture("plan.ppm")[2], "nothing is red where 50 million tokens do not fit"
    assert "settings" not in app.dump("closed")["regions"]
    # no chat template: the app says what to do
    app.run(["wait loaded", "dump dump", "quit"], "--chat-template", "")
    assert "chatml" in app.dump()["problem"], app.dump()["problem"]
    # twice the size
    app.run(["wait loaded", "wait 0.2", "dump large", "key ctrl+-", "wait 0.2", "dump smaller",
             "key ctrl+,", "wait 0.2", "key Escape", "wait 0.2", "key F1", "wait 0.2", "key Escape", "wait 0.2",
             "type heard", "key Return", "wait idle", "dump heard", "quit"], *CHATML, "--scale", "2", "-n", "2",
            "--width", "1600")
    assert shown(app.dump("heard"))[0] == "heard"  # the keyboard is back in the field after each dialog
    width = lambda name: app.dump(name)["regions"]["list"][2]
    assert width("large") > 1.8 * dump["regions"]["list"][2] and width("smaller") < width("large")


def right_to_left(app):
    """The table of an Arabic answer stands at the right and has its first column there, an English one at the left."""
    folder = app.path("state/kvrun/desktop")
    os.makedirs(folder, mode=0o700)
    words = {"arabic": "\u0645\u062f\u064a\u0646\u0629", "english": "town"}
    for i, (title, word) in enumerate(words.items()):
        answer = f"{word}\n\n| {word} {word} {word} {word} | {word} |\n|---|---|\n| 1 | 2 |\n"
        with open(os.path.join(folder, f"c{i}.json"), "w") as f:
            json.dump({"kvrun_desktop": 1, "title": title, "kv": "fp16", "ctx": 2048, "changed": 1000 + i,
                       "answers": 1, "last": 1, "messages": [{"parent": -1, "role": "user", "content": "?"},
                                                             {"parent": 0, "role": "assistant", "content": answer}]}, f)
    app.run(["wait loaded"] + [line for name in words for line in
                               ("key ctrl+K", f"type {name}", "wait 0.1", "key Return", "key Escape", "wait 0.3",
                                f"screenshot {name}.ppm")] + ["dump dump", "quit"], *CHATML)
    x, _, width, height = (int(v) for v in app.dump()["regions"]["messages"])
    head, line = bytes((0xec, 0xec, 0xf1)), bytes((0xd9, 0xda, 0xe0))  # behind the names of columns; borders
    for name, first_is_right in (("arabic", True), ("english", False)):
        w, _, data = app.picture(name + ".ppm")
        at = lambda c, r: data[(r * w + c) * 3:(r * w + c) * 3 + 3]
        top = next(r for r in range(height) if any(at(c, r) == head for c in range(x, x + width)))
        names = [c for c in range(x, x + width) if at(c, top + 2) == head]
        borders = [c for c in range(names[0], names[-1]) if at(c, top + 2) == line]
        left, right = borders[0] - names[0], names[-1] - borders[0]  # widths of the two columns
        middle = (names[0] + names[-1]) / 2 - x
        assert len(borders) == 1 and (right > 2 * left if first_is_right else left > 2 * right), (name, left, right)
        assert middle > width * 0.6 if first_is_right else middle < width * 0.4, (name, middle, width)


def images(app):
    golden = os.path.join(ROOT, "tests/golden/vision")
    app.model = os.path.join(golden, "text.gguf")
    shutil.copy(os.path.join(golden, "mlp.gguf"), app.path("mmproj-mlp.gguf"))
    shutil.copy(os.path.join(golden, "qwen3vl_merger.gguf"), app.path("mmproj-wrong.gguf"))
    photo, other = os.path.join(golden, "tile.png"), os.path.join(golden, "tile.webp")
    app.run(["wait loaded", f"paste-image {photo}", "dump without", f"drop {app.path('mmproj-mlp.gguf')}",
             "wait loaded", "type What is this?", "key Return", "wait idle", "dump text", "key ctrl+N",
             f"paste-image {photo}", f"drop {other}", f"drop {other}", "dump two", "screenshot two.ppm",
             "press Remove image 2", "dump attached", "type What is this?", "key Return", "wait idle", "dump asked",
             "key ctrl+E", "key ctrl+A", "type And this?", "key Return", "wait idle", "dump edited",
             f"drop {photo}", "key Return", "wait idle", "dump alone", "quit"], *CHATML, "-n", "4")
    assert "reads no images" in app.dump("without")["problem"], app.dump("without")["problem"]

    def tokens(name):
        dump = app.dump(name)
        assert dump["problem"] == "", (name, dump["problem"])
        return sum(next(c for c in dump["conversations"] if c["id"] == dump["current"])["tiers"])

    def asked(name):
        dump = app.dump(name)
        return [m["images"] for c in dump["conversations"] if c["id"] == dump["current"] for m in c["shown"]][::2]
    assert tokens("asked") == tokens("text") + 16, (tokens("asked"), tokens("text"))  # the rows of the image
    assert "Remove image 2" in app.dump("two")["buttons"] and "Remove image 3" not in app.dump("two")["buttons"]
    assert "Remove image 2" not in app.dump("attached")["buttons"]
    assert "Remove image 1" not in app.dump("asked")["buttons"] and "Image 1" in app.dump("asked")["buttons"]
    [[name]] = asked("asked")
    assert asked("edited") == [[name]] and shown(app.dump("edited"))[0] == "And this?"
    [first, [second]] = asked("alone")  # the file as it is; a pasted image is written anew
    folder = app.path("state/kvrun/desktop/images")
    assert first == [name] and {name, second} < set(os.listdir(folder)), (first, second)
    assert len(os.listdir(folder)) == 3, os.listdir(folder)
    assert app.dump("two")["unnamed"] == [], app.dump("two")["unnamed"]
    # the encoder is remembered; images that no conversation has are gone; an encoder of another model is refused
    app.run(["wait loaded", "dump again", "key ctrl+R", "wait idle", "dump retried",
             f"drop {app.path('mmproj-wrong.gguf')}", "wait loaded", "dump wrong", f"drop {app.path('script')}",
             "dump neither", "quit"], *CHATML, "-n", "4")
    assert set(os.listdir(folder)) == {name, second}, os.listdir(folder)
    assert app.dump("again")["reads_images"] and app.dump("retried")["problem"] == "", app.dump("retried")["problem"]
    assert "sounds is not used" in app.dump("wrong")["problem"], app.dump("wrong")["problem"]
    assert not app.dump("wrong")["reads_images"]
    assert "neither a model" in app.dump("neither")["problem"]


def sounds(app):
    golden = os.path.join(ROOT, "tests/golden")
    app.model = os.path.join(golden, "vision", "text.gguf")
    shutil.copy(os.path.join(golden, "audio", "qwen2a.gguf"), app.path("mmproj-hears.gguf"))
    tone, photo = os.path.join(golden, "audio", "tone.mp3"), os.path.join(golden, "vision", "tile.png")
    app.run(["wait loaded", f"drop {tone}", "dump without", f"drop {app.path('mmproj-hears.gguf')}", "wait loaded",
             "type a", "key Return", "wait idle", "key ctrl+N", f"drop {tone}", "dump attached", "key Return",
             "wait idle", "dump asked", f"drop {photo}", "dump refused", "quit"], *CHATML, "-n", "4")
    assert "reads no sounds" in app.dump("without")["problem"], app.dump("without")["problem"]
    assert app.dump("attached")["reads_audio"] and "Remove image 1" in app.dump("attached")["buttons"]
    asked = app.dump("asked")
    assert asked["problem"] == "", asked["problem"]
    [c] = [c for c in asked["conversations"] if c["id"] == asked["current"]]
    [name] = c["shown"][0]["images"]
    assert c["title"] == "A sound" and name.endswith(".mp3") and sum(c["tiers"]) > 12, c
    assert name in os.listdir(app.path("state/kvrun/desktop/images"))
    assert "reads no images" in app.dump("refused")["problem"], app.dump("refused")["problem"]


def current(dump):
    return next(c for c in dump["conversations"] if c["id"] == dump["current"])


def nothing_is_lost(app):
    """What is typed and not sent: drafts, edits and settings; options of one start are not kept."""
    app.run(["wait loaded", "type one", "key Return", "wait idle", "key ctrl+N", "type two", "key Return", "wait idle",
             "type a draft", "key ctrl+Tab", "dump other", "key ctrl+Tab", "dump draft", "key ctrl+A", "key Delete",
             "key ctrl+E", "type  edited", "key ctrl+Tab", "dump away", "key ctrl+Tab", "dump back",
             "key ctrl++", "wait 0.2", "dump larger", "key Escape", "dump left",
             "key ctrl+N", "key ctrl+N", "dump empty", "key ctrl+Tab",
             "key ctrl+,", "wait planned", "key Tab", "key Tab", "type Be brief.", "dump typed", "key ctrl+R",
             "key ctrl+E", "key ctrl+shift+K", "key ctrl+-", "wait 0.2", "dump smaller", "key Escape", "dump asked",
             "key Return", "wait 0.5", "key ctrl+Return", "wait 0.2", "dump applied", "quit"], *CHATML, "-n", "3")
    assert app.dump("other")["typed"] == "" and app.dump("draft")["typed"] == "a draft", app.dump("draft")["typed"]
    assert app.dump("away")["focus"] == "Your question"
    for name in ("back", "larger"):
        assert app.dump(name)["typed"] == "two edited", (name, app.dump(name).get("typed"))
        assert app.dump(name)["focus"] == "The question, to be edited"
    assert app.dump("left")["focus"] == "Your question"
    assert len(app.dump("empty")["conversations"]) == 3  # one of them without messages
    assert app.dump("typed")["focus"] == "Instructions", app.dump("typed")["focus"]
    smaller, applied = app.dump("smaller"), app.dump("applied")
    assert smaller["page"] == "settings" and len(smaller["conversations"]) == 3, smaller["page"]
    assert all(c["messages"] in (0, 2) for c in smaller["conversations"]), smaller["conversations"]
    assert "Discard" in app.dump("asked")["dialog"] and app.dump("asked")["focus"] == "Keep"
    assert applied["page"] == "chat" and applied["settings"]["system"] == "Be brief.", applied["settings"]
    with open(app.path("state/kvrun/desktop/settings.json")) as f:
        saved = json.load(f)
    assert saved["system"] == "Be brief." and saved["chat_template"] == "" and saved["max_tokens"] == 0, saved
    assert saved["temperature"] == 0.8 and saved["device"] == "", saved


def models_that_fail(app):
    """A file that is no model, and one that comes while another is in use."""
    with open(app.path("bad.gguf"), "w") as f:
        f.write("text")
    shutil.copy(app.model, app.path("other.gguf"))
    app.run(["wait loaded", "type one", "key Return", "wait idle", f"drop {app.path('other.gguf')}", "dump offered",
             "press Not now", "dump declined", f"drop {app.path('bad.gguf')}", "press Use this model", "wait 1",
             "wait loaded", "dump bad", "key ctrl+R", "wait idle", "dump retried",
             f"drop {app.path('other.gguf')}", "press Use this model", "wait 0.5", "wait loaded", "dump used", "quit"],
            *CHATML, "-n", "3")
    assert app.dump("offered")["offered"].endswith("other.gguf") and app.dump("offered")["model"] == app.model
    assert app.dump("declined")["offered"] == ""
    bad = app.dump("bad")
    assert bad["model"] == app.model and "bad.gguf" in bad["problem"], (bad["model"], bad["problem"])
    assert bad["settings"]["recent"] == [app.model], bad["settings"]["recent"]
    assert len(shown(app.dump("retried"))) == 2 and shown(app.dump("retried"))[1].strip()
    assert app.dump("used")["model"].endswith("other.gguf"), app.dump("used")["model"]
    # the model used last is gone: a retry loads the one before
    os.remove(app.path("other.gguf"))
    model, app.model = app.model, None
    app.run(["wait models", "key Escape", "dump before", "key ctrl+R", "wait idle", "dump after", "quit"], *CHATML,
            "-n", "3")
    after = app.dump("after")
    assert after["model"] == model and after["problem"] == "", (after["model"], after["problem"])
    assert current(after)["messages"] == current(app.dump("before"))["messages"] + 1
    assert shown(after)[1].strip()


def search_shows(app):
    """A search shows the message that has the words, also far up and in another version."""
    folder = app.path("state/kvrun/desktop")
    os.makedirs(folder, mode=0o700)
    messages = [{"parent": i - 1, "role": "assistant" if i % 2 else "user", "content": f"message {i}\n\nmore\n\n" * 5}
                for i in range(120)]
    messages[5]["content"] += "the needle is here"
    messages.append({"parent": 0, "role": "assistant", "content": "hidden thimble"})
    with open(os.path.join(folder, "c1.json"), "w") as f:
        json.dump({"kvrun_desktop": 1, "title": "long", "kv": "fp16", "ctx": 2048, "changed": 1000, "answers": 1,
                   "last": 119, "messages": messages}, f)
    app.model = None
    app.run(["wait models", "key Escape", "wait 0.3", "dump end", "key ctrl+K", "type NEEDLE", "wait 0.1", "key Return",
             "wait 0.5", "dump needle", "key Escape", "key ctrl+K", "type thimble", "wait 0.1", "key Return",
             "wait 0.5", "dump thimble", "quit"])
    assert 119 in app.dump("end")["in_view"] and 5 not in app.dump("end")["in_view"], app.dump("end")["in_view"]
    seen = app.dump("needle")["in_view"]
    assert 5 in seen and 119 not in seen, seen
    assert 120 in app.dump("thimble")["in_view"], app.dump("thimble")["in_view"]


def html_is_text(app):
    """Marks of HTML in a title, a note, a code's language or a model's name are shown, not followed."""
    folder = app.path("state/kvrun/desktop")
    os.makedirs(folder, mode=0o700)
    messages = [{"parent": -1, "role": "user", "content": "<b>q</b>"},
                {"parent": 0, "role": "assistant", "content": "```<h1>x</h1>\ncode\n```", "note": "<i>note</i>"}]
    with open(os.path.join(folder, "c1.json"), "w") as f:
        json.dump({"kvrun_desktop": 1, "title": "<img src='/x.png'>title", "kv": "fp16", "ctx": 2048, "changed": 1000,
                   "answers": 1, "last": 1, "messages": messages}, f)
    shutil.copy(app.model, app.path("<b>m<b>.gguf"))
    app.model = app.path("<b>m<b>.gguf")
    app.run(["wait loaded", f"drop {app.path('<b>n<b>.gguf')}", "wait 0.3", "dump dump", "quit"], *CHATML)
    dump = app.dump()
    assert dump["page"] == "chat" and dump["offered"] and dump["rich"] == [], dump["rich"]
    tips = [t for t in dump["tips"] if "title" in t or "m<b>" in t or "m&lt;b" in t]
    assert len(tips) >= 2 and not any("<img" in t or "<b>" in t for t in tips), tips


def small_window(app):
    app.model = None
    app.run(["wait models", "key ctrl+,", "wait planned", "wait 0.3", "dump settings", "screenshot small.ppm",
             "key ctrl+B", "wait 0.2", "dump folded", "quit"], "--width", "480", "--height", "360")
    settings = app.dump("settings")
    assert "list" not in settings["regions"], settings["regions"]
    x, _, width, _ = settings["regions"]["plan"]
    assert x >= 0 and x + width <= 480, settings["regions"]
    assert "list" in app.dump("folded")["regions"]


def download_goes_on(app):
    """A download goes on while the pages are built anew, and its model is offered."""
    folder = app.path("bin")
    os.makedirs(folder)
    shutil.copy(app.program, folder)
    os.symlink(os.path.join(os.path.dirname(app.program), "kvrun-probe"), os.path.join(folder, "kvrun-probe"))
    app.program = os.path.join(folder, os.path.basename(app.program))
    with open(os.path.join(folder, "kvrun"), "w") as f:  # in the place of the program that fetches
        f.write('#!/bin/sh\necho "# x: 10 % of 1 GB" >&2\n'
                'while [ ! -e "$HOME/go.ppm" ]; do sleep 0.1; done\necho "$HOME/fetched.gguf"\n')
    os.chmod(os.path.join(folder, "kvrun"), 0o755)
    app.run(["wait loaded", "key ctrl+O", "wait models", "key shift+Backtab", "key shift+Backtab", "type a/b",
             "key Return", "wait 0.5", "dump begun", "key ctrl++", "wait 0.3", "dump larger", "screenshot go.ppm",
             "wait 1.5", "dump come", "quit"], *CHATML)
    assert "Stop" in app.dump("begun")["buttons"], app.dump("begun")["buttons"]
    assert "Stop" in app.dump("larger")["buttons"] and app.dump("larger")["page"] == "start"
    come = app.dump("come")
    assert come["offered"].endswith("fetched.gguf") and come["model"] == app.model, (come["offered"], come["model"])
    assert "Download" in come["buttons"] and come["phase"] == "ready", come["buttons"]


def second_start(app):
    """Someone who starts the program twice sees the first window; if that does not answer, one that says so."""
    first = app.start(["wait loaded", "dump open", "wait 100"])
    while first.poll() is None and not os.path.exists(app.path("open")):
        time.sleep(0.05)
    again = app.start([], "--script", None)
    out, err = again.communicate(timeout=60)
    assert again.returncode == 0 and "its window is shown" in err, (again.returncode, out, err)
    assert not os.path.exists(app.path("state/kvrun/desktop/call"))
    first.send_signal(signal.SIGSTOP)
    second = app.start([], "--script", None)
    line = second.stderr.readline()
    assert "another kvrun-desktop" in line, line
    time.sleep(0.5)
    assert second.poll() is None, second.returncode  # its dialog waits
    for process in (second, first):
        process.kill()
        process.communicate()


def refusals(app):
    for options, code, words in ((("--scale", "9"), 2, "--scale"), (("--script", "nowhere"), 3, "nowhere"),
                                 (("--theme", "pink"), 2, "--theme")):
        process = app.start(["quit"], *options)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code and words in err and err.startswith("error: ") and not out, (
            options, process.returncode, err)
    process = app.start(["wait loaded", "quit"])
    app.run(["wait loaded", "quit"], "--state", app.path("other"))  # beside it
    process.communicate(timeout=120)
    help_text = subprocess.run([app.program, "--help"], capture_output=True, text=True, check=True).stdout
    assert "--kv" in help_text and "Ctrl+," in help_text
    assert "Usage: kvrun-desktop [OPTIONS] [FILE.gguf]" in help_text and "Commands:" not in help_text, help_text
    assert subprocess.run([app.program, "--man"], capture_output=True, text=True, check=True).stdout.startswith(".TH")
    env = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")}
    env |= {"XDG_STATE_HOME": app.path("state")}
    for more in ({}, {"DISPLAY": ":99999", "QT_QPA_PLATFORM": "xcb"}):  # none, and one that is not there
        none = subprocess.run([app.program, app.model], capture_output=True, text=True, env=env | more, timeout=60)
        assert none.returncode == 4 and "DISPLAY" in none.stderr and none.stderr.startswith("error: "), none


def main():
    display = Display()
    try:
        for test in (first_user, question_and_answer, two_at_once_and_branches, long_question, stop_and_kill,
                     settings_and_errors, right_to_left, images, sounds,
                     nothing_is_lost, models_that_fail, search_shows, html_is_text, small_window, download_goes_on,
                     second_start, refusals):
            app = Desktop(sys.argv[1], display, device="llvmpipe" if test is question_and_answer else "cpu")
            began = time.monotonic()
            try:
                test(app)
            finally:
                app.close()
            print(f"{test.__name__}: ok, {time.monotonic() - began:.1f} s", flush=True)
    finally:
        display.close()


if __name__ == "__main__":
    main()

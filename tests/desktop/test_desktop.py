#!/usr/bin/env python3
"""kvrun-desktop as a user has it: keys and text in, the app's state and pictures of the window out; on Xvfb and
lavapipe, with the bundled model. Usage: test_desktop.py KVRUN_DESKTOP. Exit code 77: there is no Xvfb."""
import os, signal, subprocess, sys, time
from xvfb import Desktop, Display, colours

CHATML = ("--chat-template", "chatml", "--temp", "0")


def shown(dump, title=None):
    """Texts of the current conversation, or of the one with this title."""
    for c in dump["conversations"]:
        if c["title"] == title or (title is None and c["id"] == dump["current"]):
            return [m["text"] for m in c["shown"]]
    raise AssertionError(f"no conversation {title!r} in {[c['title'] for c in dump['conversations']]}")


def question_and_answer(app):
    app.run(["wait loaded", "type Once upon a time there was a dog.", "wait 0.2", "screenshot typed.ppm",
             "key Return", "wait idle", "wait 0.2", "screenshot answered.ppm", "dump dump", "quit"],
            *CHATML, "-n", "24", "--kv", "rtn4,recent=32,sinks=0")
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
    app.run(["wait loaded", "key ctrl+N", "type first", "key Return", "key ctrl+N", "type second", "key Return", "wait 0.1",
             "dump together", "wait idle",
             "key ctrl+R", "wait idle", "dump retried", "key alt+Left", "dump before",
             "key ctrl+E", "key ctrl+A", "type another", "key Return", "wait idle", "dump edited",
             "key ctrl+K", "dump forked", "key F2", "wait 0.2", "key ctrl+A", "type renamed", "key Return", "wait 0.2", "dump renamed",
             "key ctrl+Delete", "wait 0.2", "key Space", "wait 0.2", "dump deleted", "quit"],
            *CHATML, "-n", "160")
    assert sum(c["answering"] for c in app.dump("together")["conversations"]) == 2
    retried = app.dump("retried")
    last = next(c for c in retried["conversations"] if c["id"] == retried["current"])["shown"][-1]
    assert last["siblings"] == 2 and last["number"] == 2, last
    before = app.dump("before")
    assert next(c for c in before["conversations"] if c["id"] == before["current"])["shown"][-1]["number"] == 1
    assert shown(app.dump("edited"))[0] == "another", shown(app.dump("edited"))
    n = len(app.dump("edited")["conversations"])
    assert len(app.dump("forked")["conversations"]) == n + 1
    assert shown(app.dump("forked")) == shown(app.dump("edited"))
    assert "renamed" in [c["title"] for c in app.dump("renamed")["conversations"]]
    assert "renamed" not in [c["title"] for c in app.dump("deleted")["conversations"]]
    assert len(app.dump("deleted")["conversations"]) == n


def long_question(app):
    """The end of a question of 40 KB is seen while it is read."""
    with open(app.path("long"), "w") as f:
        f.write("".join(f"line {i} of a long question\n" for i in range(1400)))
    app.run(["wait loaded", "paste long", "key Return", "wait reading", "wait 0.3", "screenshot reading.ppm", "dump dump",
             "key Escape", "wait idle", "quit"], *CHATML, "-n", "1", "-c", "100000")
    x, y, width, height = app.dump()["regions"]["messages"]
    n, most = colours(app.picture("reading.ppm"), (x, y, width * 0.9, height * 0.7))  # above buttons and progress
    assert n > 50 and most < 0.99, (n, most)


def stop_and_kill(app):
    app.run(["wait loaded", "key ctrl+N", "type stopped", "key Return", "wait answering", "key Escape", "wait idle 10", "dump dump", "quit"],
            *CHATML, "--temp", "1.5", "-c", "2000")
    assert shown(app.dump())[0] == "stopped"
    process = app.start(["wait loaded", "key ctrl+N", "type killed", "key Return", "wait answering", "dump answering", "wait 100"],
                        *CHATML, "--temp", "1.5", "-c", "4000")
    end = time.monotonic() + 120
    while not (os.path.exists(app.path("answering")) and app.is_saved("killed")) and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    app.run(["wait loaded", "dump dump", "key ctrl+R", "wait idle", "dump again", "quit"], *CHATML, "-n", "4")
    assert shown(app.dump())[0] == "killed", shown(app.dump())
    assert shown(app.dump("again"), "killed")[1].strip()


def settings_and_errors(app):
    app.run(["wait loaded", "key ctrl+,", "wait planned", "wait 0.3", "screenshot plan.ppm", "dump dump", "key Escape", "wait 0.2",
             "dump closed", "quit"], *CHATML, "-c", "50000000")
    dump = app.dump()
    n, most = colours(app.picture("plan.ppm"), dump["regions"]["settings"])
    assert n > 8, n
    red = bytes((213, 60, 50))
    assert red in app.picture("plan.ppm")[2], "nothing is red where 50 million tokens do not fit"
    assert "settings" not in app.dump("closed")["regions"]
    # no chat template: the app says what to do
    app.run(["wait loaded", "dump dump", "quit"], "--chat-template", "")
    assert "chatml" in app.dump()["problem"], app.dump()["problem"]
    # twice the size
    app.run(["wait loaded", "wait 0.2", "dump large", "key ctrl+-", "wait 0.2", "dump smaller",
             "key ctrl+,", "wait 0.2", "key Escape", "wait 0.2", "key F1", "wait 0.2", "key Escape", "wait 0.2", "type heard", "key Return",
             "wait idle", "dump heard", "quit"], *CHATML, "--scale", "2", "-n", "2")
    assert shown(app.dump("heard"))[0] == "heard"  # the keyboard is back in the field after each dialog
    width = lambda name: app.dump(name)["regions"]["list"][2]
    assert width("large") > 1.8 * dump["regions"]["list"][2] and width("smaller") < width("large")


def refusals(app):
    for options, code, words in ((("--model",), 2, "--help"), (("--scale", "9"), 2, "--scale"), (("--script", "nowhere"), 3, "nowhere")):
        process = app.start(["quit"], *options)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code and words in err and err.startswith("error: ") and not out, (
            options, process.returncode, err)
    process = app.start(["wait loaded", "quit"])
    app.run(["wait loaded", "quit"], "--state", app.path("other"))  # beside it
    process.communicate(timeout=120)
    help_text = subprocess.run([app.program, "--help"], capture_output=True, text=True, check=True).stdout
    assert "--kv" in help_text and "Ctrl+," in help_text
    assert subprocess.run([app.program, "--man"], capture_output=True, text=True, check=True).stdout.startswith(".TH")
    env = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    env |= {"SDL_VIDEODRIVER": "x11", "XDG_STATE_HOME": app.path("state")}
    none = subprocess.run([app.program, app.model], capture_output=True, text=True, env=env, timeout=60)
    assert none.returncode == 4 and "DISPLAY" in none.stderr, none


def main():
    display = Display()
    try:
        for test in (question_and_answer, two_at_once_and_branches, long_question, stop_and_kill, settings_and_errors,
                     refusals):
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

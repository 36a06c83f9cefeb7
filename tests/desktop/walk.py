#!/usr/bin/env python3
"""The walk of a first user through kvrun-desktop, as pictures at three sizes, light and dark, to be looked at by eye:
start without arguments, choose a model, ask, stop, edit, fork, read long answers with code and tables in several
scripts, search, settings, another memory with its cost in view, close, start again.
Usage: walk.py KVRUN_DESKTOP FOLDER [--model FILE.gguf] [--device NAME] [--only 1280-light]
FOLDER gets NAME-SIZE-COLOURS.png. The model: SmolLM2 where tools/models.sh has fetched it, else the bundled one. Fonts:
fonts-noto-core, fonts-noto-cjk and fonts-noto-color-emoji of Debian; exit code 77 without them."""
import argparse, json, os, shutil, subprocess, time
from said import SAID
from xvfb import MODEL, ROOT, Desktop, Display, skip

SIZES = {"1280": (1280, 800, "1"), "1920": (1920, 1080, "1.5"), "3840": (3840, 2160, "2")}  # pixels, QT_SCALE_FACTOR

def store(app):
    """Conversations that a model of this size could not have, as if they had been saved before."""
    folder = app.path("state/kvrun/desktop")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for i, (name, question, answer) in enumerate(reversed(SAID)):
        with open(os.path.join(folder, f"c{i}.json"), "w") as f:
            json.dump({"kvrun_desktop": 1, "title": question, "kv": "turbo4", "ctx": 8192,
                       "changed": int((time.time() - 90000 * (len(SAID) - i)) * 1000), "answers": 1, "last": 1,
                       "messages": [{"parent": -1, "role": "user", "content": question},
                                    {"parent": 0, "role": "assistant", "content": answer,
                                     "note": "412 tokens, 38.2 tok/s"}]}, f)


def walk(app, folder, size, colours, device, template):
    shot = lambda name: f"screenshot {folder}/{name}-{size}-{colours}.png"
    width, height, scale = SIZES[size]
    app.env["QT_SCALE_FACTOR"] = scale
    options = ("--width", str(int(width / float(scale))), "--height", str(int(height / float(scale))),
               "--theme", colours, "--scale", None, "--device", device, "--chat-template", template, "-n", "120",
               "--temp", "0", "-s", "1")
    # a first user
    app.run(["wait models", "wait 0.3", shot("01-start"), "key Return", "wait 0.1", shot("02-loading"),
             "wait loaded", "wait 0.2", shot("03-new"), "type Explain in a few sentences why the sky is blue.",
             "wait 0.2", shot("04-typed"), "key Return", "wait answering", "wait 1",
             shot("05-answering"), "key Escape", "wait idle", "wait 0.2", shot("06-stopped"),
             "key ctrl+E", "wait 0.2", shot("07-edit"), "key ctrl+A", "type Why is the sea blue?", "key Return",
             "wait idle", "wait 0.2", shot("08-edited"), "key ctrl+shift+K", "wait 0.3", shot("09-fork"),
             "key ctrl+shift+Delete", "wait 0.3", shot("10-delete"), "key Return", "wait 0.3", "key F1",
             "wait 0.3", shot("11-keys"), "key Escape", "quit"], *options)
    # one who has been here before: everything is there
    store(app)
    app.run(["wait models", "wait 0.3", shot("20-again"), "key Escape", "wait 0.3", shot("21-conversation")] +
            [line for name, question, _ in SAID for line in
             ("key ctrl+K", f"type {question}", "wait 0.1", "key Return", "key Escape", "wait 0.3", "key PgUp",
              "wait 0.2", shot("22-" + name), "key PgDown", "key PgDown", "wait 0.2", shot("23-" + name))] +
            ["key ctrl+K", "type numpy", "wait 0.2", shot("24-search"), "key Escape",
             "key ctrl+O", "wait models", "key Return", "wait loaded", "key ctrl+,", "wait planned", "wait 0.3",
             shot("25-settings"), "key Right", "key Right", "wait planned", "wait 0.3", shot("26-memory"),
             "press Show settings for experts", "wait 0.2", *["key Tab"] * 9, "wait 0.3", shot("27-expert"),
             "key ctrl+Return", "key ctrl+shift+M", "type And now?", "key Return", "wait idle", "wait 0.4",
             shot("28-cache"), "quit"], *options)


def printed(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout


def main():
    a = argparse.ArgumentParser()
    a.add_argument("program")
    a.add_argument("folder")
    smol = printed(os.path.join(ROOT, "tools/models.sh"), "--path", "smollm2")
    a.add_argument("--model", default=smol.strip() or MODEL)
    a.add_argument("--device")
    a.add_argument("--only")
    o = a.parse_args()
    fonts = printed("fc-list", ":", "family") if shutil.which("fc-list") else ""
    for name in ("Noto Sans CJK", "Noto Sans Arabic", "Noto Sans Devanagari", "Noto Color Emoji"):
        if name not in fonts:
            skip(f"there is no font {name} (Debian: fonts-noto-core, fonts-noto-cjk, fonts-noto-color-emoji)")
    folder = os.path.abspath(o.folder)
    os.makedirs(folder, exist_ok=True)
    for size, (width, height, _) in SIZES.items():
        for colours in ("light", "dark"):
            if o.only and o.only != f"{size}-{colours}":
                continue
            display = Display(f"{width}x{height}x24")
            app = Desktop(o.program, display, None, None)
            hub = app.path("hub/models--HuggingFaceTB--SmolLM2-135M-Instruct-GGUF/snapshots/1")
            os.makedirs(hub)
            os.symlink(o.model, os.path.join(hub, os.path.basename(o.model)))
            app.env = {"HF_HUB_CACHE": app.path("hub")}
            try:
                walk(app, folder, size, colours, o.device, "chatml" if o.model == MODEL else None)
            finally:
                app.close()
                display.close()


if __name__ == "__main__":
    main()

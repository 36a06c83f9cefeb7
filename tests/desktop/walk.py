#!/usr/bin/env python3
"""The walk of a first user through kvrun-desktop, as pictures at three sizes, light and dark, to be looked at by eye:
start without arguments, choose a model, ask, stop, edit, fork, read long answers with code and tables in several
scripts, search, settings, another memory with its cost in view, close, start again.
Usage: walk.py KVRUN_DESKTOP FOLDER [--model FILE.gguf] [--only 1280-light]
FOLDER gets NAME-SIZE-COLOURS.png. The model: SmolLM2 where tools/models.sh has fetched it, else the bundled one. Fonts:
fonts-noto-core, fonts-noto-cjk and fonts-noto-color-emoji of Debian; exit code 77 without them."""
import argparse, json, os, shutil, subprocess, time
from xvfb import MODEL, ROOT, Desktop, Display, skip

SIZES = {"1280": (1280, 800, "1"), "1920": (1920, 1080, "1.5"), "3840": (3840, 2160, "2")}  # pixels, QT_SCALE_FACTOR

CODE = """Here is a function that adds the **even** numbers of a list, and how long it takes.

```python
def sum_even(numbers: list[int]) -> int:
    \"\"\"Adds the even numbers.\"\"\"
    total = 0
    for n in numbers:  # one after the other
        if n % 2 == 0:
            total += n
    return total

print(sum_even([1, 2, 3, 4]), "is the sum")
```

| numbers | time | memory |
|---|---:|---:|
| 1 000 | 41 \u00b5s | 8 KiB |
| 1 000 000 | 43 ms | 8 MiB |
| 100 000 000 | ~~5 s~~ 4.4 s | 763 MiB |

1. Install it:
   ```bash
   pip install numpy  # "faster"
   ```
2. Then use `numpy.sum(a[a % 2 == 0])`, which is *ten times* as fast.

> A generator takes no memory of its own.

More is in the [documentation](https://docs.python.org/3/library/functions.html#sum). \
\u2714 Done! \U0001f680\U0001f44d\U0001f3fd"""
CHINESE = """**\u957f\u57ce**\u662f\u4e2d\u56fd\u53e4\u4ee3\u7684\u519b\u4e8b\u9632\u5fa1\u5de5\u7a0b\u3002

| \u671d\u4ee3 | \u957f\u5ea6 |
|---|---:|
| \u79e6 | 5000 \u516c\u91cc |
| \u660e | 8851 \u516c\u91cc |

- \u5b83\u4eceshanhaiguan\uff08\u5c71\u6d77\u5173\uff09\u5230\u5609\u5cea\u5173\u3002
- \u65e5\u672c\u8a9e: \u4e07\u91cc\u306e\u9577\u57ce\u3001\ud55c\uad6d\uc5b4: \ub9cc\ub9ac\uc7a5\uc131 \U0001f3ef"""
ARABIC = """\
\u0627\u0644\u0642\u0627\u0647\u0631\u0629 \u0647\u064a **\u0639\u0627\u0635\u0645\u0629 \u0645\u0635\u0631** \
\u0648\u0623\u0643\u0628\u0631 \u0645\u062f\u0646\u0647\u0627.

1. \u0639\u062f\u062f \u0627\u0644\u0633\u0643\u0627\u0646: 10 \u0645\u0644\u0627\u064a\u064a\u0646
2. \u0627\u0644\u0646\u0647\u0631: \u0627\u0644\u0646\u064a\u0644

| \u0627\u0644\u0645\u062f\u064a\u0646\u0629 | \u0627\u0644\u0633\u0643\u0627\u0646 |
|---|---|
| \u0627\u0644\u0642\u0627\u0647\u0631\u0629 | 10 |
| \u0627\u0644\u0625\u0633\u0643\u0646\u062f\u0631\u064a\u0629 | 5 |"""
HINDI = """**\u0917\u0902\u0917\u093e** \u092d\u093e\u0930\u0924 \u0915\u0940 \
\u0938\u092c\u0938\u0947 \u092a\u0935\u093f\u0924\u094d\u0930 \u0928\u0926\u0940 \u0939\u0948\u0964

- \u0932\u0902\u092c\u093e\u0908: \u0968\u096b\u0968\u096b \u0915\u093f\u0932\u094b\u092e\u0940\u091f\u0930
- \u0909\u0926\u094d\u0917\u092e: \u0917\u0902\u0917\u094b\u0924\u094d\u0930\u0940 \u0939\u093f\u092e\u0928\u0926

> \u0915\u094d\u0937\u092e\u093e, \u0936\u094d\u0930\u0940, \
\u091c\u094d\u091e\u093e\u0928 \U0001f64f\U0001f1ee\U0001f1f3"""
SAID = [
    ("code", "Write a function that sums the even numbers of a list, and say how fast it is, "
     "with a table of sizes and times", CODE),
    ("chinese", "\u957f\u57ce\u6709\u591a\u957f\uff1f", CHINESE),
    ("arabic", "\u0645\u0627 \u0647\u064a \u0639\u0627\u0635\u0645\u0629 \u0645\u0635\u0631\u061f", ARABIC),
    ("hindi", "\u0917\u0902\u0917\u093e \u0915\u0947 \u092c\u093e\u0930\u0947 \u092e\u0947\u0902 "
     "\u092c\u0924\u093e\u0907\u090f \U0001f60a", HINDI),
]


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


def walk(app, folder, size, colours):
    shot = lambda name: f"screenshot {folder}/{name}-{size}-{colours}.png"
    width, height, scale = SIZES[size]
    app.env["QT_SCALE_FACTOR"] = scale
    options = ("--width", str(int(width / float(scale))), "--height", str(int(height / float(scale))),
               "--theme", colours, "--scale", None, "--device", None, "-n", "120", "--temp", "0", "-s", "1")
    # a first user
    app.run(["wait models", "wait 0.3", shot("01-start"), "key Return", "wait 0.1", shot("02-loading"),
             "wait loaded", "wait 0.2", shot("03-new"), "type Explain in a few sentences why the sky is blue.",
             "wait 0.2", shot("04-typed"), "key Return", "wait answering", "wait 1",
             shot("05-answering"), "key Escape", "wait idle", "wait 0.2", shot("06-stopped"),
             "key ctrl+E", "wait 0.2", shot("07-edit"), "key ctrl+A", "type Why is the sea blue?", "key Return",
             "wait idle", "wait 0.2", shot("08-edited"), "key ctrl+shift+K", "wait 0.3", shot("09-fork"),
             "key ctrl+shift+Delete", "wait 0.3", shot("10-delete"), "key Return", "key F1",
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
                walk(app, folder, size, colours)
            finally:
                app.close()
                display.close()


if __name__ == "__main__":
    main()

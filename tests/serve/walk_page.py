#!/usr/bin/env python3
"""The walk of a first user through the page of kvrun serve, as pictures at desk and phone width, light and dark, to be
looked at by eye. Only keys are pressed: ask, stop, edit, fork, delete, long answers with code and tables in several
scripts, search, settings, another memory policy, a reload.
Usage: walk_page.py KVRUN FOLDER [--model FILE.gguf] [--device NAME] [--only phone-dark]
FOLDER gets NAME-SIZE-COLOURS.png. Exit code 1: something did not fit the width or a key did not do what it should; 77:
there is no chromium."""
import argparse, json, os, sys, tempfile, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "desktop"))
from browser import CHROMIUM, Browser
from said import SAID
from serving import MODEL, Server

SIZES = {"desk": (1280, 800, 1, False), "phone": (390, 844, 2, True)}  # width, height, scale, a phone
IDLE = "$('stop').hidden"
ANSWER = "document.querySelector('.message.assistant .body')"


def said():
    """What the browser has kept of an earlier visit."""
    chats = [{"id": name, "title": "", "time": 1000 - i,
              "messages": [{"role": "user", "content": question},
                           {"role": "assistant", "content": answer, "note": "71 + 412 tokens, 38.2 tokens/s"}]}
             for i, (name, question, answer) in enumerate(SAID)]
    return json.dumps({"chats": chats, "chat": chats[0]["id"], "settings": {"max_tokens": "160"}})


def walk(b, shot, phone):
    def fits():
        wide = b.value("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"the page is {wide} pixels too wide"

    def list_of_chats():
        if phone:
            b.tab_to("e.id === 'menu'")
            b.key("Enter")

    def press(name, back=True):
        b.tab_to(f"e.textContent === {json.dumps(name)}", back)
        b.key("Enter")

    b.value("settings.max_tokens = '160'")  # answers of a small model may not end
    shot("01-start")
    b.type("Explain in a few sentences why the sky is blue.")
    shot("02-typed")
    b.key("Enter")
    assert b.wait(f"{ANSWER} && {ANSWER}.textContent.length > 80", 120), "no answer"
    shot("03-answering")
    b.key("Escape")
    assert b.wait(IDLE, 30), "Esc does not stop"
    shot("04-stopped")
    press("Edit")
    time.sleep(0.1)
    b.key("a", "Control")
    b.type("Say hello in three languages.")
    shot("05-edit")
    b.key("Enter", "Control")
    assert b.wait(IDLE + f" && !!{ANSWER}", 300), "the edited question is not answered"
    shot("06-edited")
    press("Fork")
    assert b.value("chats.length") == 3, "no fork"
    list_of_chats()
    shot("07-fork")
    b.tab_to("/drop/.test(e.className)", not phone)
    b.key("Enter")
    shot("08-delete")
    assert b.value("document.activeElement.textContent") == "Keep"
    b.key("Enter")
    assert b.wait("!$('confirm').open") and b.value("chats.length") == 3, "Enter deleted it"
    fits()
    # one who has been here before
    b.value(f"onbeforeunload = null, localStorage.setItem('kvrun', {json.dumps(said())})")
    b.call("Page.reload")
    assert b.wait("typeof chats !== 'undefined' && document.readyState === 'complete'")
    for name, question, _ in SAID:
        list_of_chats()
        b.tab_to(f"e.textContent === {json.dumps(question)}")
        b.key("Enter")
        shot("12-" + name)
        b.value("$('log').scrollTop = 0")
        shot("11-" + name)
        fits()
    list_of_chats()
    b.tab_to("e.id === 'find'", not phone)
    b.type("numpy")
    shot("13-search")
    b.key("Escape")
    b.tab_to("e.id === 'open'")
    b.key("Enter")
    shot("14-settings")
    b.tab_to("e.id === 'kv'")
    b.type("turbo4")
    shot("15-policy")
    b.tab_to("e.textContent === 'Done'")
    shot("16-settings-end")
    b.key("Enter")
    b.tab_to("e.id === 'text'")
    b.type("And now?")
    b.key("Enter")
    assert b.wait(IDLE + " && chat.messages.length === 4", 300), "no answer under another policy"
    assert "turbo4" in b.value("[...document.querySelectorAll('.note')].at(-1).textContent")
    shot("17-memory")
    fits()


def main():
    a = argparse.ArgumentParser()
    a.add_argument("program")
    a.add_argument("folder")
    a.add_argument("--model", default=MODEL)
    a.add_argument("--device", default="cpu")
    a.add_argument("--only")
    o = a.parse_args()
    if not CHROMIUM:
        print("skipped: no chromium")
        sys.exit(77)
    os.makedirs(o.folder, exist_ok=True)
    chat = ["--chat-template", "chatml"] if o.model == MODEL else []
    with Server("--ctx-size", "4096", *chat, model=o.model, device=o.device) as server:
        for size, shape in SIZES.items():
            for colours in ("light", "dark"):
                if o.only and o.only != f"{size}-{colours}":
                    continue
                with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                    b = Browser(folder)
                    try:
                        b.open("about:blank")
                        b.size(*shape, colours)
                        b.call("Page.navigate", url=f"http://127.0.0.1:{server.port}/")
                        assert b.wait("document.title !== 'kvrun' && typeof chats !== 'undefined'"), "no page"
                        walk(b, lambda name: b.picture(os.path.join(o.folder, f"{name}-{size}-{colours}.png")),
                             shape[3])
                        assert not b.errors, b.errors
                    finally:
                        b.end()


main()

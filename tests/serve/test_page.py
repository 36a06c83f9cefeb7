#!/usr/bin/env python3
"""The page of kvrun serve in a browser without a screen: asking, stopping, editing, forking, policies, Markdown, the
state after a reload, the bar of KV bytes. Usage: test_page.py KVRUN. Exit code 77: there is no chromium."""
import base64, json, os, sys, tempfile
from browser import CHROMIUM, Browser
from page_conversations import conversations, server_key
from serving import Server, check, equal, finish

VISION = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "vision")
AUDIO = os.path.join(VISION, "..", "audio")
HOSTILE = """# Title
<script>window.harm = 1</script><img src=x onerror="window.harm = 2"><a href="javascript:window.harm=3">x</a>
[bad](javascript:alert(1)) [good](https://example.org/) ![picture](https://example.org/p.png) **bold** ~~gone~~

| a | b |
|---|---|
| 1 | 2 |

```python
def f(): return "x"  # <b>
```
```
never closed"""


def use_markdown(b):
    b.value("window.shown = document.createElement('div'), document.body.append(shown), show_markdown(shown, %s)" % json.dumps(HOSTILE))
    for what, script, expected in [
            ("tags that are not allowed", "shown.querySelectorAll('script, img, style, iframe').length", 0),
            ("a link with a script", "[...shown.querySelectorAll('a')].map(a => a.getAttribute('href'))",
             ["https://example.org/"]),
            ("what cannot be followed is text", "/^x$|bad good/m.test(shown.textContent)", True),
            ("HTML is text", "shown.textContent.includes('<script>window.harm = 1</script><img src=x')", True),
            ("links open elsewhere",
             "[...shown.querySelectorAll('a')].every(a => a.rel === 'noopener noreferrer' && a.target === '_blank')",
             True),
            ("a picture is named, not loaded", "/\\[picture: picture\\]/.test(shown.textContent)", True),
            ("bold, struck, title", "['strong', 'del', 'h1'].map(t => shown.querySelectorAll(t).length)", [1, 1, 1]),
            ("a table", "[...shown.querySelectorAll('.scroll table td')].map(d => d.textContent)", ["1", "2"]),
            ("code has its language", "[...shown.querySelectorAll('.block .head span')].map(h => h.textContent)",
             ["python", "text"]),
            ("code is coloured", "shown.querySelector('.block .hljs-keyword').textContent", "def"),
            ("code is text", "shown.querySelector('.block code').textContent", 'def f(): return "x"  # <b>\n'),
            ("nothing ran", "window.harm === undefined", True)]:
        equal(what, b.value(script), expected)
    b.value("shown.remove()")


RIGHT = """\u0627\u0644\u0642\u0627\u0647\u0631\u0629 10

| \u0645\u062f\u064a\u0646\u0629 | n |
|---|---|
| 5 | 6 |

- \u0627\u0644\u0646\u064a\u0644

English again

```
code
```"""


def use_right_to_left(b):
    b.value("window.shown = document.createElement('div'), document.body.append(shown), shown.style.width = '400px', "
            "show_markdown(shown, %s)" % json.dumps(RIGHT))
    side = "(e => {const r = e.getBoundingClientRect(), a = shown.getBoundingClientRect();" \
           "return r.left - a.left > a.right - r.right ? 'right' : 'left'})"
    for what, script, expected in [
            ("an Arabic table stands at the right", side + "(shown.querySelector('table'))", "right"),
            ("its first column, too", side + "(shown.querySelector('th'))", "right"),
            ("an Arabic list is indented there", "getComputedStyle(shown.querySelector('ul')).direction", "rtl"),
            ("English in between is not", "getComputedStyle([...shown.querySelectorAll('p')].at(-1)).direction", "ltr"),
            ("nor is code", "getComputedStyle(shown.querySelector('pre')).direction", "ltr")]:
        equal(what, b.value(script), expected)
    b.value("shown.remove()")


FORMULAS = r"""Energy \(E=mc^2\) and $a_1 * b_1 * c$, but $5 and $6 are prices, `$x$` is code.

\[
x_1 = \frac{a}{b}
- [1]
\]

$$\{1, 2\}$$"""


def use_formulas(b):
    b.value("window.shown = document.createElement('div'), document.body.append(shown), "
            "show_markdown(shown, %s)" % json.dumps(FORMULAS))
    equal("formulas stay as they were written", b.value("[...shown.querySelectorAll('.math')].map(m => m.textContent)"),
          [r"\(E=mc^2\)", "$a_1 * b_1 * c$", "\\[\nx_1 = \\frac{a}{b}\n- [1]\n\\]", r"$$\{1, 2\}$$"])
    check("prices are none", b.value("/but .5 and .6 are prices/.test(shown.textContent)"),
          b.value("shown.textContent"))
    b.value("shown.remove()")


def use(b, s):
    b.open(f"http://127.0.0.1:{s.port}/")
    check("the model's name", b.wait("document.getElementById('model').textContent === 'recall-4m-f16'"))
    formats = b.value("typeof marked !== 'undefined' && typeof hljs !== 'undefined'")
    if formats:
        use_markdown(b)
        use_right_to_left(b)
        use_formulas(b)
    else:
        print("skipped: answers as Markdown (built without libjs-marked, node-highlight.js)")
    check("the policies can be chosen",
          b.value("[...document.querySelectorAll('#policies option')].some(o => o.value === 'kivi2')"))
    ask = "(t => { $('text').value = t; $('send').click(); })"
    texts = "[...document.querySelectorAll('.message .body')].map(m => m.textContent)"
    idle = "$('stop').hidden && chat.messages.length === %d"

    b.value(ask + "('The code of Anna is 4711. What is the code of Anna?')")
    check("stop can be pressed while it answers", b.wait("!$('stop').hidden", 10))
    check("an answer", b.wait("document.querySelectorAll('.message.assistant').length === 1 && "
                              "document.querySelector('.message.assistant .body').textContent.length > 3"))
    b.value("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")
    check("Esc stops it", b.wait(idle % 2, 20))
    check("and is kept as far as it came", b.value("document.querySelector('.note').textContent").startswith("stopped"))
    check("the bar has parts", b.wait("document.querySelectorAll('#bar i').length === 5"))
    check("and says how much", b.wait("/ of /.test($('legend').textContent)"), b.value("$('legend').textContent"))
    share = "[...document.querySelectorAll('#bar i')].reduce((s, i) => s + parseFloat(i.style.width), 0)"
    check("the parts add up to what is used", b.wait(f"Math.abs({share} - 100) < 0.1"), b.value(share))

    # a policy of its own, and an answer that ends by itself: its text depends on the model, but it always ends
    b.value("(() => { const f = window.fetch; window.fetch = (u, o) => { if (o && o.body) { const j = JSON.parse(o.body); "
            "j.max_tokens = 12; j.ignore_eos = true; window.sent = j; o = {...o, body: JSON.stringify(j)}; } return f(u, o); }; })()")
    b.value("(() => { for (const [k, v] of [['kv', 'kivi2,recent=32'], ['temperature', 0], ['system', 'Be short.']]) "
            "$(k).value = v, $(k).oninput(); })()")
    press = "[...document.querySelectorAll('.message:last-of-type .tools button')].find(b => b.textContent === '%s').click()"
    b.value(press % "Retry")
    check("answered again", b.wait(idle % 2))
    equal("under the policy chosen", b.value("window.sent.kv"), "kivi2,recent=32")
    equal("and the system prompt", b.value("window.sent.messages[0]"), {"role": "system", "content": "Be short."})
    check("and says so", "kivi2,recent=32" in (b.value("document.querySelector('.note').textContent") or ""))
    first = b.value(texts)
    b.value(press % "Fork")
    equal("a fork has what was said", b.value(texts), first)
    equal("and is the chat that goes on",
          b.value("chats.length === 2 && chat === chats[0] && / .fork.$/.test(chat.title)"), True)
    b.value(ask + "('And once more?')")
    check("the fork goes on", b.wait(idle % 4))
    b.value("[...document.querySelectorAll('.chat .title')].at(-1).click()")
    equal("the other stays as it was", b.value(texts), first)

    b.value("edit(0)")
    b.value("document.querySelector('.edit').value = 'Something else?'")
    b.value("[...document.querySelectorAll('.message button')].find(b => b.textContent === 'Send').click()")
    check("an edited message is answered anew", b.wait(idle % 2))
    equal("with its new text", b.value("window.sent.messages.at(-1).content"), "Something else?")
    equal("in a copy: what was said before is kept",
          b.value("[chats.length, JSON.stringify(chats.at(-1).messages).includes('Something else?')]"), [3, False])

    kept = b.value("JSON.stringify([chats.map(c => c.messages), chat.id])")
    b.call("Page.reload")
    check("after a reload", b.wait("typeof chats !== 'undefined' && document.readyState === 'complete'"))
    equal("everything is there", b.value("JSON.stringify([chats.map(c => c.messages), chat.id])"), kept)
    equal("settings, too", b.value("[$('kv').value, $('system').value]"), ["kivi2,recent=32", "Be short."])
    b.value("$('find').value = 'once more', draw_list()")
    equal("search finds the fork",
          b.value("[...document.querySelectorAll('.chat .title')].map(t => / .fork.$/.test(t.textContent))"), [True])
    b.value("document.querySelector('.chat .drop').click()")
    equal("deleting asks first, and not on the button that deletes",
          b.value("[$('confirm').open, document.activeElement.value]"), [True, "no"])
    b.value("document.querySelector('#confirm .danger').click()")
    check("it is gone", b.wait("chats.length === 2"))
    b.value("$('kv').value = 'nonsense', $('kv').oninput()")
    b.value(press % "Retry")
    check("an error is shown",
          b.wait("document.querySelector('.error') && /nonsense/.test(document.querySelector('.error').textContent)"))
    equal("no script failed and no rule of the page was broken", b.errors, [])


def record_requests(b):
    """window.sent becomes the body of the latest request, whose answer has four tokens."""
    b.value("(() => { const f = window.fetch; window.fetch = (u, o) => "
            "{ if (o && o.body) { const j = JSON.parse(o.body); j.max_tokens = 4; "
            "window.sent = j; o = {...o, body: JSON.stringify(j)}; } return f(u, o); }; })()")


def use_images(b, s):
    """A message with an image that is chosen, and one that is removed again; sent, edited, kept."""
    b.open(f"http://127.0.0.1:{s.port}/")
    check("images can be added", b.wait("reads_images"))
    with open(os.path.join(VISION, "tile.png"), "rb") as f:
        tile = base64.b64encode(f.read()).decode()
    record_requests(b)
    add = "add_files([new File([Uint8Array.from(atob('%s'), c => c.charCodeAt(0))], 'x.png', {type: 'image/png'})])"
    b.value(add % tile)
    b.value(add % tile)
    check("they are shown", b.wait("document.querySelectorAll('#images img').length === 2"))
    b.value("document.querySelector('#images button').click()")
    equal("one is removed", b.value("[images.length, document.querySelectorAll('#images img').length]"), [1, 1])
    b.value(add % base64.b64encode(b"no image").decode())
    check("what is none is named", b.wait("/x.png is no image/.test($('log').textContent)"))
    b.value("$('text').value = 'abc', $('send').click()")
    check("it is answered", b.wait("$('stop').hidden && chat.messages.length === 2"), b.value("$('log').textContent"))
    parts = b.value("window.sent.messages.at(-1).content")
    equal("the image comes before the text", [p["type"] for p in parts], ["image_url", "text"])
    check("as data", parts[0]["image_url"]["url"].startswith("data:image/jpeg;base64,"), parts)
    check("it is shown in the conversation",
          b.wait("(i => i && i.complete && i.naturalWidth === 16)(document.querySelector('.message.user img'))"))
    equal("and no longer for the next message", b.value("images.length"), 0)
    b.value("again(0, 'abcd')")
    check("an edited message is answered", b.wait("$('stop').hidden && chat.messages.length === 2"))
    equal("with its image", b.value("window.sent.messages.at(-1).content.map(p => p.text || 'image')"),
          ["image", "abcd"])
    kept = b.value("JSON.stringify(chats.map(c => c.messages))")
    b.call("Page.reload")
    check("after a reload", b.wait("typeof chats !== 'undefined' && document.readyState === 'complete'"))
    equal("the image is there", b.value("JSON.stringify(chats.map(c => c.messages))"), kept)
    equal("no script failed and no rule of the page was broken", b.errors, [])


def use_sounds(b, s):
    """A message with a sound that is chosen; sent and kept."""
    b.open(f"http://127.0.0.1:{s.port}/")
    check("sounds can be added", b.wait("reads_audio"))
    with open(os.path.join(AUDIO, "tone.mp3"), "rb") as f:
        tone = base64.b64encode(f.read()).decode()
    record_requests(b)
    add = "add_files([new File([Uint8Array.from(atob('%s'), c => c.charCodeAt(0))], '%s', {type: '%s'})])"
    b.value(add % (tone, "x.png", "image/png"))
    check("images are refused", b.wait("/x.png is an image, and this model reads none/.test($('log').textContent)"))
    b.value(add % (tone, "tone.mp3", ""))
    check("it is shown", b.wait("document.querySelectorAll('#images audio').length === 1"))
    check("and can be heard", b.wait("document.querySelector('#images audio').duration > 0.4"))
    b.value("$('text').value = 'abc', $('send').click()")
    check("it is answered", b.wait("$('stop').hidden && chat.messages.length === 2"), b.value("$('log').textContent"))
    equal("the sound comes before the text", b.value("window.sent.messages.at(-1).content"),
          [{"type": "input_audio", "input_audio": {"data": tone, "format": "mp3"}}, {"type": "text", "text": "abc"}])
    check("it is shown in the conversation", b.value("!!document.querySelector('.message.user audio')"))
    kept = b.value("JSON.stringify(chats.map(c => c.messages))")
    b.call("Page.reload")
    check("after a reload", b.wait("typeof chats !== 'undefined' && document.readyState === 'complete'"))
    equal("the sound is there", b.value("JSON.stringify(chats.map(c => c.messages))"), kept)
    equal("no script failed and no rule of the page was broken", b.errors, [])


def check_size(s):
    page = s.get("/")
    check("the page is small", len(page.body) < 210000, len(page.body))
    policy = page.headers.get("Content-Security-Policy", "")
    check("only its own scripts run", "unsafe" not in policy and "nonce-" in policy, policy)
    other = s.get("/").headers.get("Content-Security-Policy")
    check("each response has its own nonce", policy != other)


def main():
    if not CHROMIUM:
        print("skipped: no chromium")
        sys.exit(77)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Server("--chat-template", "chatml",
                                                                                   "--ctx-size", "4096") as s:
        check_size(s)
        browser = Browser(folder)
        try:
            use(browser, s)
            equal("no images without an encoder", browser.value("reads_images"), False)
            conversations(browser, f"http://127.0.0.1:{s.port}/")
            with Server("--api-key", "secret", "--chat-template", "chatml") as asks:
                server_key(browser, f"http://127.0.0.1:{asks.port}/")
            with Server("--mmproj", os.path.join(VISION, "mlp.gguf"), "--chat-template", "chatml", "--ctx-size", "256",
                        model=os.path.join(VISION, "text.gguf")) as sees:
                use_images(browser, sees)
            with Server("--mmproj", os.path.join(AUDIO, "qwen2a.gguf"), "--chat-template", "chatml", "--ctx-size",
                        "256", model=os.path.join(VISION, "text.gguf")) as hears:
                use_sounds(browser, hears)
        finally:
            browser.end()
    finish()


main()

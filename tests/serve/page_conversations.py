"""Conversations of the page that go wrong: two tabs, requests that fail or are stopped, deleting, leaving, limits. The
answers are written here, piece by piece, in the place of the server's."""
import json

from serving import check, equal

# asked[i]: the body of a request and what can be made of it. open() begins the answer, refuse() is an error.
ANSWERS = """(() => {
const real = window.fetch;
window.asked = [];
window.fetch = (url, o) => {
    if (!/completions/.test(url)) return real(url, o);
    const one = {body: JSON.parse(o.body)};
    asked.push(one);
    return new Promise((yes, no) => {
        o.signal.addEventListener('abort', () => {
            const e = new DOMException('stopped', 'AbortError');
            one.stopped = true, no(e);
            try { one.pen.error(e); } catch {}
        });
        one.open = () => yes(new Response(new ReadableStream({start(pen) { one.pen = pen; }})));
        one.event = e => one.pen.enqueue(new TextEncoder().encode('data: ' + JSON.stringify(e) + '\\n\\n'));
        one.say = content => one.event({choices: [{delta: {content}}]});
        one.end = (reason = 'stop', usage) => {
            one.event({choices: [{delta: {}, finish_reason: reason}], usage});
            one.pen.close();
        };
        one.refuse = (status, error) => yes(new Response(JSON.stringify({error}), {status}));
        one.lose = () => no(new TypeError('no network'));
    });
};
})()"""
LOADED = "typeof chats !== 'undefined' && document.readyState === 'complete' && !!chat"
LAST = "asked.at(-1)"
IDLE = "$('stop').hidden"
SHOWN = "[...document.querySelectorAll('.message .body')].map(m => m.textContent.trim())"
KEPT = "Object.keys(localStorage).filter(k => k.startsWith('kvrun:chat:')).map(k => localStorage[k]).join()"
BUTTONS = "[...document.querySelectorAll('.message:last-of-type .tools button')].filter(b => b.checkVisibility())" \
          ".map(b => b.textContent)"


def press(b, name):
    b.value("[...document.querySelectorAll('.message:last-of-type .tools button')]"
            f".find(b => b.textContent === {json.dumps(name)}).click()")


def load(b):
    """Reloads the page; answers are written here again."""
    b.value("window.old = true")
    b.call("Page.reload")
    check("the page is loaded", b.wait(f"!window.old && {LOADED}"))
    b.value(ANSWERS)


def ask(b, text):
    n = b.value("asked.length")
    b.value(f"$('text').value = {json.dumps(text)}, $('send').click()")
    check("it is asked", b.wait(f"asked.length === {n + 1}"), text)


def answer(b, *pieces, usage="undefined", reason="stop"):
    b.value(f"{LAST}.open()")
    for p in pieces:
        b.value(f"{LAST}.say({json.dumps(p)})")
    b.value(f"{LAST}.end({json.dumps(reason)}, {usage})")
    check("it is answered", b.wait(IDLE))


def say(b, piece):
    b.value(f"{LAST}.pen || {LAST}.open(), {LAST}.say({json.dumps(piece)})")
    check("it is shown", b.wait(f"{SHOWN}.at(-1).includes({json.dumps(piece.split(chr(10))[-1].strip())})"), piece)


def new_chat(b):
    b.value("$('new').click()")


def failed_questions(b):
    new_chat(b)
    ask(b, "First?")
    b.value("$('stop').click()")
    check("it is stopped before its first token", b.wait(IDLE))
    equal("the question is there and can be asked again", [b.value(SHOWN), "Retry" in b.value(BUTTONS)],
          [["First?"], True])
    ask(b, "Second?")
    b.value(f"{LAST}.lose()")
    check("a request fails", b.wait("!!document.querySelector('.error')"))
    ask(b, "Third?")
    equal("roles alternate", b.value(f"{LAST}.body.messages.map(m => m.role + ' ' + m.content)"), ["user Third?"])
    answer(b, "Yes.")
    ask(b, "Fourth?")
    equal("also later", b.value(f"{LAST}.body.messages.map(m => m.role)"), ["user", "assistant", "user"])
    answer(b, "No.")
    equal("all is shown", b.value(SHOWN), ["First?", "Second?", "Third?", "Yes.", "Fourth?", "No."])
    equal("an unanswered question is marked", b.value("document.querySelectorAll('.message.user .note').length"), 2)


def retries(b):
    new_chat(b)
    ask(b, "Which?")
    answer(b, "old answer")
    press(b, "Retry")
    check("it is asked again", b.wait("asked.length && !$('stop').hidden"))
    check("the old answer remains", "old answer" in b.value(SHOWN) and "old answer" in b.value(KEPT))
    b.value(f"{LAST}.refuse(500, {{message: 'broken'}})")
    check("the retry fails", b.wait("!!document.querySelector('.error')"))
    equal("the old answer is still there", b.value("chat.messages.map(m => m.content)"), ["Which?", "old answer"])
    press(b, "Retry")
    b.wait("!$('stop').hidden")
    say(b, "new answer")
    check("the new answer takes its place", b.wait(f"{SHOWN}.length === 2"), b.value(SHOWN))
    b.value(f"{LAST}.end()")
    check("it ends", b.wait(IDLE + f" && {BUTTONS}.includes('‹')"), b.value(BUTTONS))
    press(b, "‹")
    equal("the old answer is another version", b.value(SHOWN), ["Which?", "old answer"])
    load(b)
    press(b, "›")
    equal("so it is after a reload", b.value(SHOWN), ["Which?", "new answer"])


def deleting(b):
    new_chat(b)
    ask(b, "To be deleted?")
    say(b, "growing")
    b.value("save(chat), window.one = asked.at(-1), remove(chat)")
    equal("the request is aborted", b.value("one.stopped"), True)
    b.value("new Promise(done => setTimeout(done))")
    check("a deleted conversation stays deleted",
          "To be deleted?" not in b.value(KEPT) and
          b.value("chats.every(c => c.messages[0]?.content !== 'To be deleted?')"))
    new_chat(b)
    ask(b, "One more?")
    say(b, "growing")
    b.value("save(chat), $('forget').click(), document.querySelector('#confirm .danger').click()")
    check("all are deleted", b.wait("asked.at(-1).stopped && chats.every(c => !c.messages.length)"))
    b.value("new Promise(done => setTimeout(done))")
    equal("nothing is kept", b.value(KEPT), "")
    load(b)
    equal("also after a reload", b.value(SHOWN), [])


def leaving(b):
    new_chat(b)
    ask(b, "Long?")
    say(b, "piece ")
    check("an answer is kept while it grows",
          b.wait(f"{LAST}.say('more '), {KEPT}.includes('more')", 60), b.value(KEPT))
    say(b, "the last piece")
    load(b)
    check("what had come is there after a reload", b.value(SHOWN)[-1].endswith("the last piece"), b.value(SHOWN))
    equal("and can be gone on with", [n in b.value(BUTTONS) for n in ("Retry", "Continue")], [True, True])
    press(b, "Continue")
    check("the server is asked to go on", b.wait("asked.length === 1"))
    equal("with the answer's beginning", b.value(f"{LAST}.body.messages.at(-1).role"), "assistant")
    answer(b, ", and its end")
    equal("which gets its end", b.value("chat.messages.at(-1).content").endswith("the last piece, and its end"), True)
    check("it is complete", b.wait(f"!{BUTTONS}.includes('Continue')"))


def elsewhere(b):
    """Other conversations while an answer grows."""
    new_chat(b)
    ask(b, "Other?")
    answer(b, "Other.")
    new_chat(b)
    ask(b, "Slow?")
    say(b, "first paragraph\n\nsecond")
    b.value("remove(chats.find(c => c.messages[0].content === 'Other?'))")
    say(b, " grows")
    b.value("window.slow = asked.at(-1), window.one = chat")
    if b.value("typeof marked !== 'undefined'"):
        b.value("getSelection().selectAllChildren(document.querySelector('.assistant .body p'))")
        say(b, " onwards")
        equal("what is selected stays selected", b.value("getSelection().toString()"), "first paragraph")
        b.value("getSelection().selectAllChildren(document.querySelector('.assistant .body p:last-of-type'))")
        b.value("asked.at(-1).say(' beneath')")
        check("more has come", b.wait("/beneath/.test(chat.messages.at(-1).content)"))
        b.value("new Promise(done => setTimeout(done, 100))")
        equal("also in the last block", b.value("getSelection().toString()"), "second grows onwards")
        b.value("getSelection().removeAllRanges()")
    new_chat(b)
    equal("a new chat can be begun", b.value("[chat.messages.length, $('send').hidden]"), [0, False])
    b.value("$('find').focus()")
    ask(b, "Quick?")
    answer(b, "Quick.")
    equal("the keyboard stays where it was", b.value("document.activeElement.id"), "find")
    b.value("slow.say(' behind'), slow.end()")
    check("the answer goes on behind it", b.wait("!running.size"))
    equal("into its own conversation", b.value("one.messages.at(-1).content").endswith(" behind"), True)
    equal("not into this one", b.value(SHOWN), ["Quick?", "Quick."])


def edits(b):
    new_chat(b)
    ask(b, "Line one\nline two")
    answer(b, "Answer.")
    check("a title is one line", b.value("document.querySelector('.chat.now .title').offsetHeight < 45"))
    count = b.value("[asked.length, chats.length]")
    b.value("edit(0), again(0, '  ')")
    equal("an empty edit is not sent", b.value("[asked.length, chats.length]"), count)
    b.value("again(0, 'Else?')")
    answer(b, "Else.")
    equal("an edited question is asked in a copy",
          b.value("[chats.length, chats.some(c => c.messages[1]?.content === 'Answer.')]"),
          [count[1] + 1, True])
    b.value("$('text').value = 'a draft', $('text').oninput(), go(chats[1])")
    equal("a draft is of its conversation", b.value("$('text').value"), "")
    new_chat(b)
    b.value("$('text').value = 'of a new one', $('text').oninput(), go(chats[1])")
    new_chat(b)
    equal("one of a new chat is there when one comes back", b.value("$('text').value"), "of a new one")
    b.value("$('text').value = '', $('text').oninput(), go(chats[1])")
    load(b)
    equal("and there after a reload", b.value("$('text').value"), "a draft")
    b.value("edit(0)")
    b.value("(t => { t.value = 'changed', t.oninput(); })(document.querySelector('.edit'))")
    b.value("document.querySelector('.edit').dispatchEvent("
            "new KeyboardEvent('keydown', {key: 'Escape', bubbles: true}))")
    equal("a changed text is not discarded unasked", b.value("$('confirm').open"), True)
    b.value("document.querySelector('#confirm .danger').click()")
    check("it is discarded", b.wait("!document.querySelector('.edit')"))
    b.value("$('text').value = '', $('text').oninput()")


def numbers_and_limits(b):
    b.value("$('open').click()")
    equal("settings open at their beginning", b.value("document.activeElement.tagName"), "H2")
    for name, number in (("temperature", "0.75"), ("top_p", "0.955"), ("min_p", "0.005"), ("repeat_penalty", "1.07")):
        b.value(f"$('{name}').value = '{number}', $('{name}').oninput()")
    b.value("$('stops').value = 'END\\nSTOP', $('stops').oninput(), $('top_k').value = '-4', $('top_k').oninput()")
    b.value("$('settings').close()")
    check("a number that is none is gone with the dialog", b.wait("$('top_k').value === ''"))
    new_chat(b)
    ask(b, "Numbers?")
    equal("numbers are sent as they were typed",
          b.value(f"[{LAST}.body.temperature, {LAST}.body.top_p, {LAST}.body.min_p, {LAST}.body.repeat_penalty]"),
          [0.75, 0.955, 0.005, 1.07])
    equal("stop words, too", b.value(f"[{LAST}.body.stop, 'top_k' in {LAST}.body]"), [["END", "STOP"], False])
    answer(b, "cut", reason="length", usage="{prompt_tokens: 5, completion_tokens: 12, total_tokens: 17}")
    note = "document.querySelector('.message:last-of-type .note')?.textContent"
    check("a limit is named", b.wait(f"/^stopped at the limit of 12 tokens/.test({note})"), b.value(note))
    equal("tokens of the context are shown", b.value("$('context').textContent"), "17 of 4096 tokens")
    ask(b, "More?")
    answer(b, "cut", reason="length", usage="{prompt_tokens: 4086, completion_tokens: 10, total_tokens: 4096}")
    check("a full context, too", b.wait(f"/^the context of 4096 tokens is full/.test({note})"), b.value(note))
    ask(b, "Even more?")
    b.value(f"{LAST}.refuse(400, {{message: 'raise -c or shorten it', code: 'context_length_exceeded'}})")
    check("what does not fit is said in the page's words",
          b.wait("/does not fit the context of 4096 tokens/.test(document.querySelector('.error')?.textContent)"))
    equal("and can be edited or asked again", [n in b.value(BUTTONS) for n in ("Edit", "Retry")], [True, True])
    b.value("for (const n of numbers.concat('stops')) $(n).value = '', $(n).oninput()")


def texts(b):
    new_chat(b)
    b.value("add_files([new File(['int x;\\n'], 'x.c', {type: 'text/x-c'})])")
    check("a text is added", b.wait("document.querySelectorAll('#images .file').length === 1"))
    ask(b, "What is this?")
    equal("it is part of the message", b.value(f"{LAST}.body.messages[0].content"),
          "What is this?\n\nx.c:\n```\nint x;\n```")
    b.value(f"{LAST}.open(), {LAST}.event({{choices: [{{delta: {{reasoning_content: 'Hm.'}}}}]}})")
    check("reasoning can be seen while it lasts", b.wait("document.querySelector('.reasoning')?.open"))
    say(b, "C.")
    check("and is folded then", b.wait("document.querySelector('.reasoning').open === false"))
    b.value(f"{LAST}.end()")
    check("it ends", b.wait(IDLE))
    b.value("add_files([new File(['late'], 'late.txt')]), $('text').value = 'And this?', void send()")
    check("a message waits for its files", b.wait(f"{LAST}.body.messages.at(-1).content.includes('late.txt')"))
    answer(b, "Late.")
    check("it ends, too", b.wait(IDLE))
    equal("images without an encoder are refused", b.value(
        "add_files([new File(['x'], 'x.png', {type: 'image/png'})]).then(() => images.length)"), 0)
    saved = b.value("JSON.stringify({conversations: chats})")
    n = b.value("chats.length")
    b.value("remove(chat)")
    b.value(f"import_chats(new File([{json.dumps(saved)}], 'c.json'))")
    check("exported conversations are imported, once",
          b.wait("$('moved').textContent") and b.value("chats.length") == n,
          b.value("$('moved').textContent"))
    b.value("rename(chat), $('name').value = 'A name', document.querySelector('#naming button[value]').click()")
    check("a conversation is renamed", b.wait("document.querySelector('.chat.now .title').textContent === 'A name'"))


def nested(b):
    """An answer that is nested deeper than Markdown can be read is shown as its text."""
    deep = ">" * 6000 + " deep"
    new_chat(b)
    ask(b, "Deep?")
    answer(b, deep)
    equal("it is shown", b.value(SHOWN), ["Deep?", deep])
    load(b)
    equal("also after a reload", b.value(SHOWN), ["Deep?", deep])
    ask(b, "And now?")
    answer(b, "Plain.")
    equal("the conversation goes on", b.value(SHOWN)[2:], ["And now?", "Plain."])
    equal("text is wrapped as text, and Markdown is not",
          b.value("['> > a', '%s'].map(t => { const e = document.createElement('div'); show_markdown(e, t);"
                  "return e.style.whiteSpace === 'pre-wrap'; })" % deep), [not b.value("typeof marked !== 'undefined'"),
                                                                          True])


def composing(b):
    """Keys of an input method are its own. Safari's last one comes behind the composition, with the code 229."""
    new_chat(b)
    n = b.value("asked.length")
    b.value("window.key = (at, key, more) => { const e = new KeyboardEvent('keydown', {key, bubbles: true, "
            "cancelable: true, ...more}); at.dispatchEvent(e); return e.defaultPrevented; }")
    b.value("$('text').value = 'kana'")
    for more in ("{isComposing: true}", "{keyCode: 229}"):
        equal(f"Enter does not send {more}", b.value(f"[key($('text'), 'Enter', {more}), $('text').value]"),
              [False, "kana"])
    equal("nothing is asked", b.value("asked.length"), n)
    equal("Enter sends", b.value("key($('text'), 'Enter', {})"), True)
    check("it is asked", b.wait(f"asked.length === {n + 1}"))
    for more in ("{isComposing: true}", "{keyCode: 229}"):
        b.value(f"key($('text'), 'Escape', {more})")
        equal(f"Esc does not stop {more}", b.value("[!!asked.at(-1).stopped, $('stop').hidden]"), [False, False])
    answer(b, "Yes.")
    b.value("edit(0)")
    for more in ("{isComposing: true}", "{keyCode: 229}"):
        b.value(f"key(document.querySelector('.edit'), 'Escape', {more})")
        check(f"nor does it end an edit {more}", b.value("!!document.querySelector('.edit')"))
    b.value("key(document.querySelector('.edit'), 'Escape', {})")
    check("Esc ends it", b.wait("!document.querySelector('.edit')"))


def old_list(b):
    """What earlier versions of the page have kept, with a damaged message."""
    chats = [{"id": "b", "title": "", "time": 1, "messages": [{"role": "user"}, {"role": "assistant", "content": "B"}]},
             {"id": "a", "title": "A", "time": 2, "messages": [{"role": "user", "content": "A?"}, None, 7]}]
    old = json.dumps({"chats": chats, "chat": "b", "settings": {"system": "Be short."}})
    b.value(f"localStorage.clear(), sessionStorage.clear(), localStorage.setItem('kvrun', {json.dumps(old)})")
    load(b)
    equal("an old list is moved, in its order", b.value("[chats.map(c => c.id), 'kvrun' in localStorage]"),
          [["b", "a"], False])
    equal("what is damaged does no harm",
          b.value("chats.map(c => c.messages.map(m => m.content))"), [["", "B"], ["A?"]])
    equal("settings are moved", b.value("$('system').value"), "Be short.")
    b.value("$('system').value = '', $('system').oninput()")
    for text in ('{', '{"id": 3}', '{"id": "c", "messages": [{"role": "user", "content": 5}], "title": {}}'):
        b.value(f"localStorage.setItem('kvrun:chat:c', {json.dumps(text)})")
        load(b)
    equal("nor is one under its own key", b.value("chats.find(c => c.id === 'c').messages"),
          [{"role": "user", "content": ""}])
    b.value("localStorage.clear(), sessionStorage.clear()")
    load(b)


def two_tabs(b, url):
    def tab(session):
        b.session = session

    b.value("localStorage.clear(), sessionStorage.clear()")
    load(b)
    one = b.session
    ask(b, "In one?")
    answer(b, "One.")
    b.session = None
    b.open(url)
    two = b.session
    check("another tab is opened", b.wait(f"{LOADED} && chats.length === 1"))
    b.value(ANSWERS)
    equal("it has what the first one has", b.value(SHOWN), ["In one?", "One."])
    new_chat(b)
    ask(b, "In two?")
    answer(b, "Two.")
    tab(one)
    check("the first one learns of it", b.wait("chats.some(c => c.messages[1]?.content === 'Two.')"))
    equal("and stays where it is", b.value(SHOWN), ["In one?", "One."])
    ask(b, "More?")
    answer(b, "More.")
    tab(two)
    said = "chats.filter(c => c.messages.length).map(c => c.messages.length).sort().join()"
    check("so does the other", b.wait(f"{said} === '2,4'"), b.value(said))
    load(b)
    equal("both are kept", b.value(said), "2,4")
    b.value("go(chats.find(c => c.messages.length === 4))")
    tab(one)
    ask(b, "Both?")
    say(b, "from one")
    tab(two)
    check("a question appears in the other tab", b.wait(f"{SHOWN}.includes('Both?')"))
    b.value("$('text').value = 'Me, too?', $('send').click()")
    answer(b, "from two")
    tab(one)
    b.value(f"{LAST}.end()")
    check("where both went on, both are kept", b.wait(f"/from one/.test({KEPT}) && /from two/.test({KEPT})"))
    tab(two)
    b.value("window.lost = chats.find(c => c.messages[1]?.content === 'Two.'), remove(lost)")
    tab(one)
    check("what is deleted in one is gone in the other", b.wait("!chats.some(c => c.messages[1]?.content === 'Two.')"))
    ask(b, "And now?")
    answer(b, "Now.")
    check("and does not come back", "Two." not in b.value(KEPT))
    tab(two)
    b.call("Page.close")
    tab(one)


def conversations(b, url):
    b.value(ANSWERS)
    b.value("$('find').value = '', $('kv').value = '', $('kv').oninput(), "
            "$('system').value = '', $('system').oninput(), $('temperature').value = '', $('temperature').oninput()")
    for part in (failed_questions, retries, deleting, leaving, elsewhere, edits, numbers_and_limits, texts, nested,
                 composing, old_list):
        part(b)
    two_tabs(b, url)
    equal("no script failed in conversations", b.errors, [])


def server_key(b, url):
    b.call("Page.navigate", url=url)
    check("a missing key is asked for", b.wait("/asks for its key/.test($('log').textContent) && "
                                              "/asks for its key/.test($('legend').textContent)"))
    b.value("[...document.querySelectorAll('#log button')].find(b => b.textContent === 'Settings').click()")
    b.value("$('key').value = 'secret', $('key').onchange(), $('settings').close()")
    check("with it the model is named", b.wait("$('model').textContent === 'recall-4m-f16'"))
    b.value("window.old = true")
    b.call("Page.reload")
    check("a reload keeps it", b.wait("!window.old && $('model').textContent === 'recall-4m-f16'"))
    equal("in this tab only", b.value("[localStorage.getItem('kvrun:key'), sessionStorage.getItem('kvrun:key')]"),
          [None, '"secret"'])

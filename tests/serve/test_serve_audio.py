#!/usr/bin/env python3
"""kvrun serve reads sounds in messages, and writes down what is said in one. Usage: test_serve_audio.py KVRUN"""
import base64, json, os, tempfile
from serving import ROOT, Server, check, equal, finish

AUDIO = os.path.join(ROOT, "tests", "golden", "audio")
TEXT = os.path.join(ROOT, "tests", "golden", "vision", "text.gguf")
CHAT, RESPONSES, TRANSCRIPTIONS = "/v1/chat/completions", "/v1/responses", "/v1/audio/transcriptions"
INSTRUCTION = "Transcribe audio to text"


def content(name):
    with open(os.path.join(AUDIO, name), "rb") as f:
        return f.read()


def base(name):
    return base64.b64encode(content(name)).decode()


def audio(data, **more):
    return {"type": "input_audio", "input_audio": {"data": data, **more}}


def text(t):
    return {"type": "text", "text": t}


def chat(s, content, **more):
    return s.post(CHAT, {"messages": [{"role": "user", "content": content}], "max_tokens": 6, "temperature": 0, **more})


def form(*parts):
    """(type, body) of a form; parts: (name, content) or (name, content, file name)."""
    body = b""
    for name, data, *file in parts:
        of_file = f'; filename="{file[0]}"' if file else ""
        body += f'--B0und\r\nContent-Disposition: form-data; name="{name}"{of_file}\r\n\r\n'.encode()
        body += (data if isinstance(data, bytes) else data.encode()) + b"\r\n"
    return {"Content-Type": "multipart/form-data; boundary=B0und"}, body + b"--B0und--\r\n"


def transcribe(s, *parts):
    headers, body = form(*parts)
    return s.post(TRANSCRIPTIONS, body, **headers)


def answers(s):
    meta = s.get("/v1/models").json()["data"][0]["meta"]
    check("models say what is read", meta["reads_audio"] and not meta["reads_images"], meta)
    equal("so do the properties", s.get("/props").json()["modalities"], {"vision": False, "audio": True})
    plain = chat(s, "abc").json()["usage"]["prompt_tokens"]
    one = chat(s, [audio(base("tone.wav"), format="wav"), text("abc")])
    check("a sound is answered", one.status == 200, one.body[:300])
    one = one.json()
    rows = one["usage"]["prompt_tokens"] - plain
    check("its rows are tokens of the prompt", rows > 5, one["usage"])
    again = chat(s, [audio("data:audio/wav;base64," + base("tone.wav")), text("abc")]).json()
    equal("as a URL", again["choices"], one["choices"])
    check("a cached beginning", again["usage"]["prompt_tokens_details"]["cached_tokens"] >= rows, again["usage"])
    for name in ("tone.flac", "tone.ogg", "tone.opus", "tone.mp3"):
        other = chat(s, [audio(base(name)), text("abc")])
        check(f"{name} is read", other.status == 200 and other.json()["usage"]["prompt_tokens"] > plain,
              other.body[:300])
    two = chat(s, [audio(base("tone.wav")), text("a"), audio(base("tone.wav")), text("bc")]).json()
    check("two sounds", two["usage"]["prompt_tokens"] >= plain + 2 * rows, two["usage"])
    items = [{"role": "user", "content": [audio(base("tone.wav"), format="wav"),
                                          {"type": "input_text", "text": "abc"}]}]
    r = s.post(RESPONSES, {"input": items, "max_output_tokens": 6, "temperature": 0}).json()
    equal("the Responses API", r["output"][0]["content"][0]["text"], one["choices"][0]["message"]["content"])
    messages = [{"role": "user", "content": [audio(base("tone.wav")), text("abc")]}]
    shown = s.post("/apply-template", {"messages": messages}).json()["prompt"]
    check("a template's text", "[audio]abc" in shown, shown)


def conversations(s):
    first = chat(s, [audio(base("tone.wav")), text("abc")], session="heard").json()
    kept = s.get("/sessions/heard").json()
    check("a named conversation keeps its sound", '"audio"' in json.dumps(kept), kept)
    check("and its tokens", first["kv"]["kept"], first["kv"])


def transcriptions(s):
    asked = chat(s, [audio(base("tone.wav")), text(INSTRUCTION)],
                 chat_template_kwargs={"enable_thinking": False}).json()
    wanted = asked["choices"][0]["message"]["content"]
    wav = ("file", content("tone.wav"), "tone.wav")
    r = transcribe(s, wav, ("model", "any"), ("max_tokens", "6"))
    check("a transcription", r.status == 200, r.body[:300])
    j = r.json()
    equal("its text is the answer of a chat", j["text"], wanted)
    equal("tokens", (j["usage"]["input_tokens"], j["usage"]["output_tokens"]),
          (asked["usage"]["prompt_tokens"], asked["usage"]["completion_tokens"]))
    details = j["usage"]["input_token_details"]
    equal("of text and sound", sum(details.values()), j["usage"]["input_tokens"])
    check("tokens of the sound", details["audio_tokens"] > 5, details)
    r = transcribe(s, wav, ("max_tokens", "6"), ("response_format", "text"))
    equal("as a text", (r.body.decode(errors="replace"), r.headers["Content-Type"].split(";")[0]),
          (wanted + "\n", "text/plain"))
    events = transcribe(s, ("max_tokens", "6"), ("stream", "true"), wav).events()
    equal("a stream", "".join(e.get("delta", "") for e in events), wanted)
    equal("its last event", (events[-1]["type"], events[-1]["text"]), ("transcript.text.done", wanted))
    other = transcribe(s, wav, ("max_tokens", "6"), ("language", "de"), ("prompt", "Write")).json()
    check("an instruction of its own", other["usage"]["input_tokens"] != j["usage"]["input_tokens"], other)
    for parts, said in (((("model", "x"),), "no file"), ((("file", b"RIFF", "a.wav"),), "neither WAV"),
                        ((("file", content("tone.wav")[:40], "a.wav"),), "cannot be read"),
                        ((wav, ("response_format", "srt")), "expected json or text")):
        r = transcribe(s, *parts)
        check(f"a form is refused: {said}", r.status == 400 and said in (r.error() or ""), (r.status, r.body[:300]))
    r = s.post(TRANSCRIPTIONS, {"file": "x"}, **{"Content-Type": "application/json"})
    check("JSON is refused", r.status == 415 and "multipart" in r.error(), (r.status, r.body[:300]))


def refusals(s):
    with open(os.path.join(ROOT, "tests", "golden", "vision", "tile.png"), "rb") as f:
        png = base64.b64encode(f.read()).decode()
    for data, wanted in (("!!!", "not valid base64"), (base("tone.wav")[:40], "cannot be read"),
                         ("R0lGODlh", "neither WAV, FLAC, Ogg nor MP3"), (png, "it is an image (PNG)"),
                         ("https://example.org/a.wav", "not valid base64")):
        r = chat(s, [audio(data), text("abc")])
        check(f"{data[:30]} is refused", r.status == 400 and wanted in (r.error() or ""), (r.status, r.body[:300]))
    for part in ({"type": "input_audio"}, {"type": "input_audio", "input_audio": "x"}, audio(5)):
        r = chat(s, [part, text("abc")])
        check(f"{part} is refused", r.status == 400 and "input_audio.data" in r.error(), r.body[:300])
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + png}}
    r = chat(s, [image, text("abc")])
    check("no images", r.status == 400 and "reads no images" in r.error(), r.body[:300])
    part = {"type": "audio", "id": "0123456789abcdef"}
    check("nobody can name a sound", chat(s, [part, text("abc")]).status == 400)
    equal("the server lives", s.get("/health").status, 200)


def main():
    options = ("--chat-template", "chatml", "--ctx-size", "512")
    with tempfile.TemporaryDirectory() as folder:
        s = Server("--mmproj", os.path.join(AUDIO, "qwen2a.gguf"), "--sessions", folder, *options, model=TEXT)
        answers(s)
        conversations(s)
        transcriptions(s)
        refusals(s)
        s.stop()
    s = Server(*options, model=TEXT)
    r = chat(s, [audio(base("tone.wav")), text("abc")])
    check("without --mmproj", r.status == 400 and "--mmproj" in (r.error() or ""), r.body[:300])
    r = transcribe(s, ("file", content("tone.wav"), "tone.wav"))
    check("nor a transcription", r.status == 400 and "--mmproj" in (r.error() or ""), r.body[:300])
    s.stop()
    finish()


main()

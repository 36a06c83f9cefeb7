#!/usr/bin/env python3
"""kvrun serve reads images in messages of all APIs. Usage: test_serve_images.py KVRUN"""
import base64, json, os
from serving import ROOT, Server, check, equal, finish

VISION = os.path.join(ROOT, "tests", "golden", "vision")
TEXT = os.path.join(VISION, "text.gguf")
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
ROWS = 16  # of the encoder mlp, for every image


def data(name):
    with open(os.path.join(VISION, name), "rb") as f:
        return base64.b64encode(f.read()).decode()


PNG, JPG, WEBP = data("tile.png"), data("tile.jpg"), data("tile.webp")


def image(url):
    return {"type": "image_url", "image_url": {"url": url}}


def text(t):
    return {"type": "text", "text": t}


def chat(s, content, **more):
    return s.post(CHAT, {"messages": [{"role": "user", "content": content}], "max_tokens": 6, "temperature": 0, **more})


def answers(s):
    plain = chat(s, "abc").json()
    one = chat(s, [image("data:image/png;base64," + PNG), text("abc")])
    check("an image is answered", one.status == 200, one.body[:300])
    one = one.json()
    equal("its rows are tokens of the prompt", one["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"] + ROWS)
    again = chat(s, [image("data:image/webp;base64," + WEBP), text("abc")]).json()
    equal("the same pixels in another format", again["choices"], one["choices"])
    check("a cached beginning", again["usage"]["prompt_tokens_details"]["cached_tokens"] >= ROWS, again["usage"])
    jpg = chat(s, [text("a"), image("data:image/jpeg;base64," + JPG), text("bc")]).json()["usage"]
    check("an image between texts", jpg["prompt_tokens"] >= plain["usage"]["prompt_tokens"] + ROWS, jpg)
    two = chat(s, [image("data:image/png;base64," + PNG), image("data:image/jpeg;base64," + JPG), text("abc")]).json()
    equal("two images", two["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"] + 2 * ROWS)
    stream = chat(s, [image("data:image/png;base64," + PNG), text("abc")], stream=True).events()
    equal("a stream", "".join(e["choices"][0]["delta"].get("content") or "" for e in stream),
          one["choices"][0]["message"]["content"])

    anthropic = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    body = {"messages": [{"role": "user", "content": [anthropic, text("abc")]}], "max_tokens": 6, "temperature": 0}
    r = s.post(MESSAGES, body).json()
    equal("Anthropic's blocks", r["content"][0]["text"], one["choices"][0]["message"]["content"])
    equal("their tokens", r["usage"]["input_tokens"] + r["usage"]["cache_read_input_tokens"],
          one["usage"]["prompt_tokens"])
    equal("counted", s.post(MESSAGES + "/count_tokens", {"messages": body["messages"]}).json()["input_tokens"],
          one["usage"]["prompt_tokens"])
    items = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64," + PNG},
                                          {"type": "input_text", "text": "abc"}]}]
    r = s.post(RESPONSES, {"input": items, "max_output_tokens": 6, "temperature": 0}).json()
    equal("the Responses API", r["output"][0]["content"][0]["text"], one["choices"][0]["message"]["content"])
    own = {"stream": False, "options": {"num_predict": 6, "temperature": 0}}
    r = s.post("/api/chat", {"messages": [{"role": "user", "content": "abc", "images": [PNG]}], **own}).json()
    equal("Ollama's API", r["message"]["content"], one["choices"][0]["message"]["content"])
    r = s.post("/api/generate", {"prompt": "abc", "images": [PNG], **own}).json()
    equal("its prompts", r["response"], one["choices"][0]["message"]["content"])
    check("what it can do", "vision" in s.post("/api/show", {"model": "x"}).json()["capabilities"])


def refusals(s):
    for url, wanted in [("https://example.org/a.png", "this server fetches none"),
                        ("data:image/png;base64,!!!", "not valid base64"),
                        ("data:image/png;base64," + PNG[:80], "damaged image"),
                        ("data:image/gif;base64,R0lGODlh", "neither PNG, JPEG nor WebP")]:
        r = chat(s, [image(url), text("abc")])
        check(f"{url[:40]} is refused", r.status == 400 and wanted in (r.error() or ""), (r.status, r.body[:300]))
    r = chat(s, [{"type": "image_url"}, text("abc")])
    check("an image without a url", r.status == 400 and "image_url.url" in r.error(), r.body[:300])
    sound = {"type": "input_audio", "input_audio": {"data": "UklGRgAAAABXQVZF", "format": "wav"}}
    r = chat(s, [sound, text("abc")])
    check("audio is refused", r.status == 400 and "reads no sounds" in r.error(), r.body[:300])
    marked = chat(s, "[image 0123456789abcdef 0123456789abcdef]")
    check("nobody can write a mark", marked.status == 200, marked.body[:300])
    equal("the server lives", s.get("/health").status, 200)


def main():
    s = Server("--mmproj", os.path.join(VISION, "mlp.gguf"), "--chat-template", "chatml", "--ctx-size", "256",
               model=TEXT)
    answers(s)
    refusals(s)
    s.stop()
    s = Server("--chat-template", "chatml", "--ctx-size", "256", model=TEXT)
    r = chat(s, [image("data:image/png;base64," + PNG), text("abc")])
    check("without --mmproj", r.status == 400 and "--mmproj" in (r.error() or ""), r.body[:300])
    s.stop()
    finish()


main()

"""kvrun.ray: which replica a request belongs to, and an application on a cluster of three nodes on this machine, a head
and two with a device, all of it bound to 127.0.0.1. Run by ctest `python_ray`."""
import asyncio
import concurrent.futures
import io
import json
import os
import signal
import tarfile
import urllib.error
import urllib.request

import pytest
from ray_rig import MINE, MODEL, ask, ray_cluster, said, serve, servers, start_proxy, user

import kvrun
import kvrun.merge
import kvrun.ray as kr
from kvrun.ray._keys import BLOCK, keys_of
from kvrun.ray._replica import Ask, Replica, key_of
from kvrun.ray._scaling import replicas_wanted


# ---- without a cluster


def test_turns_of_a_conversation_have_one_home():
    first = keys_of({"messages": [user("Hello")]})
    second = keys_of({"messages": [user("Hello"), {"role": "assistant", "content": "Hi"}, user("And?")]})
    assert first.home == second.home and second.prefixes[:len(first.prefixes)] == first.prefixes
    assert keys_of({"messages": [user("Hello?")]}).home != first.home
    assert keys_of({"messages": [user("Hello")], "kv": "kivi2"}).home != first.home  # another cache
    assert keys_of({"messages": [user("Hello")], "temperature": 1}) == first


def test_long_common_beginnings_have_one_home():
    system = {"role": "system", "content": "x" * (3 * BLOCK)}
    assert keys_of({"messages": [system, user("a")]}).home == keys_of({"messages": [system, user("b")]}).home
    short = {"role": "system", "content": "Be brief."}
    assert keys_of({"messages": [short, user("a")]}).home != keys_of({"messages": [short, user("b")]}).home
    assert keys_of({"prompt": "y" * 4000 + "a"}).home == keys_of({"prompt": "y" * 4000 + "b"}).home


def test_names_and_requests_without_a_prompt():
    assert keys_of({"session": "work", "messages": [user("x")]}).home == "session:work"
    assert keys_of(None) is None and keys_of([1]) is None and keys_of({"model": "x"}) is None
    assert keys_of({"messages": "no list"}) is not None and keys_of({"prompt": [1, 2, 3]}) is not None


def test_replicas_by_memory():
    assert replicas_wanted([0.9, 0.9], now=2, queued=0, per_replica=8) == 3
    assert replicas_wanted([0.1, 0.1], now=2, queued=0, per_replica=8) == 1
    assert replicas_wanted([0.6, 0.6], now=2, queued=0, per_replica=8) == 2
    assert replicas_wanted([0.6, 0.6], now=2, queued=24, per_replica=8) == 5
    assert replicas_wanted([], now=1, queued=0, per_replica=8) == 1


def test_a_key_of_the_server(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# ours\n\nfirst\nsecond\n")
    assert key_of(["--kv", "kivi2"]) is None
    assert key_of(["--api-key", "a,b"]) == "a" and key_of(["--kv", "kivi2", "--api-key=c"]) == "c"
    assert key_of(["--api-key-file", str(file)]) == "first" == key_of([f"--api-key-file={file}"])


def test_a_replica_with_a_key():
    async def main():
        load = await replica.kv_load()
        statuses = []
        for headers in ({}, {"X-Api-Key": "secret"}, {"Authorization": "Bearer secret"}):
            answer = replica.answer(Ask("GET", "/v1/models", headers, b"", None))
            statuses.append((await anext(answer))[0])
            await answer.aclose()
        return load, statuses

    replica = Replica(MODEL, "cpu", None, 2, ["--api-key", "secret"])
    try:
        load, statuses = asyncio.run(main())
    finally:
        replica.__del__()  # as Ray ends it
    assert load == {"kv_share": 0, "place_share": 0} and statuses == [401, 200, 200]


@pytest.mark.parametrize("filters", [True, False])
def test_results_of_a_machine_are_unpacked(tmp_path, monkeypatch, filters):
    """Also by a Python whose tarfile has no filters."""
    if filters and not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python has none")
    if not filters:
        extract = tarfile.TarFile.extractall
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
        monkeypatch.setattr(tarfile.TarFile, "extractall", lambda self, path: extract(self, path))
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        member = tarfile.TarInfo("./report.json")
        member.size = 2
        tar.addfile(member, io.BytesIO(b"{}"))
    [job] = kr.compare_jobs(MODEL, ["here"])
    kvrun.ray._sweep._keep(str(tmp_path), job, data.getvalue())
    assert (tmp_path / "compare-here" / "report.json").read_text() == "{}"


# ---- on a cluster


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster() as c:
        yield c


@pytest.fixture(scope="module")
def url(cluster, tmp_path_factory):
    address = start_proxy()
    sessions = tmp_path_factory.mktemp("sessions")
    app = kr.build(MODEL, replicas=2, sessions=sessions / "chats", parallel=4, device="cpu",
                   options=["--chat-template", "chatml"])
    serve.run(app, name="kvrun", route_prefix="/")
    return address


@pytest.fixture(scope="module")
def alone():
    """A single engine, whose answers those of replicas must equal."""
    with kvrun.Engine(MODEL, device="cpu") as e:
        yield lambda messages: e.session(chat="chatml").ask(messages, **MINE).text


def test_answers_are_those_of_one_server(url, alone):
    questions = [[user(f"The code of Ben is {1000 + i}. What is the code of Ben?")] for i in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda m: said(ask(url, {"messages": m, **MINE})), questions))
    assert found == [alone(m) for m in questions]


def test_streams_errors_and_other_routes(url, alone):
    messages = [user("Hello")]
    events = ask(url, {"messages": messages, "stream": True, **MINE}).decode().split("\n\n")
    assert events[-2] == "data: [DONE]"
    deltas = [json.loads(e[6:])["choices"][0]["delta"].get("content") or "" for e in events[:-2]]
    assert "".join(deltas) == alone(messages) and len(events) > 4
    with pytest.raises(urllib.error.HTTPError) as e:
        ask(url, {"messages": messages, "top_p": 7})
    assert e.value.code == 400 and "top_p" in json.loads(e.value.read())["error"]["message"]
    with urllib.request.urlopen(url + "/v1/models", timeout=60) as r:
        assert json.loads(r.read())["data"][0]["id"] == "recall-4m-f16"


def test_the_next_turn_finds_its_cache(url):
    for i in range(4):
        history = [user(f"Question {i}: " + "what is it? " * 20)]
        first = said(ask(url, {"messages": history, **MINE}))
        history += [{"role": "assistant", "content": first}, user("And?")]
        usage = json.loads(ask(url, {"messages": history, **MINE}))["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > 100, usage


def test_a_replica_is_killed_and_its_conversations_go_on(url, alone):
    turns = {f"chat{i}": [user(f"The code of Ben is {2000 + i}. What is the code of Ben?")] for i in range(4)}
    for name, messages in turns.items():
        answer = said(ask(url, {"messages": messages, "session": name, **MINE}))
        messages.append({"role": "assistant", "content": answer})
        messages.append(user("And again?"))
    before = servers()
    assert len(before) == 2
    server, replica = next(iter(before.items()))
    os.kill(replica, signal.SIGKILL)
    for name, messages in turns.items():
        answer = json.loads(ask(url, {"messages": messages, "session": name, **MINE}))
        assert answer["choices"][0]["message"]["content"] == alone(messages), name
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 30, answer  # from the shared folder
    assert server not in servers()  # it ended with its replica


def test_sweep_goes_on_and_its_parts_make_one(cluster, tmp_path):
    options = ["--task", "recall", "--samples", "5", "--lines", "3", "--device", "cpu"]
    jobs = kr.eval_jobs(MODEL, ["kivi2"], shards=2, options=options)
    bad = kr.Job("bad", ("eval", MODEL, "--json", "--kv", "kvi2", *options))
    errors = kr.sweep([*jobs, bad], tmp_path, resources={}, num_cpus=0.1)
    assert list(errors) == ["bad"] and "kvi2" in errors["bad"]
    times = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("eval*.json")}
    assert len(times) == 2
    assert kr.sweep(jobs, tmp_path, resources={}, num_cpus=0.1) == {}
    assert times == {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("eval*.json")}  # nothing ran again
    parts = [json.loads((tmp_path / n).read_text()) for n in times]
    merged = kvrun.merge.merge(parts)["results"][0]
    whole = kvrun.eval(MODEL, kv="kivi2", task="recall", samples=5, lines=3, device="cpu")["results"][0]
    same = ("n", "right", "answers", "losses")
    assert [merged[k] for k in same] == [whole[k] for k in same]

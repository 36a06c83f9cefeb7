// What the user of the desktop app does when something is missing, damaged or under way: nothing is lost.
#include "tests/desktop/state_rig.h"
#include "tests/support/temp_folder.h"
#include "tools/desktop/engine.h"
#include "tools/desktop/planner.h"
#include "tools/desktop/search.h"
#include "tools/desktop/store.h"
#include "tools/desktop/words.h"
#include <doctest/doctest.h>
#include <fstream>
#include <thread>

using namespace kvrun;
using namespace kvrun::desktop;

namespace {

void fail_answer(Rig& r, kvrun_status status, const std::string& error, bool no_model = false) {
	const auto* a = r.last<Answer>();
	REQUIRE(a);
	Ended e;
	e.conversation = a->conversation, e.message = a->message;
	e.status = status, e.error = error, e.no_model = no_model;
	r.state.take(e);
}

} // namespace

TEST_CASE("desktop state: retry and edit load the last model; a failure leaves the old answer") {
	Rig r;
	r.state.ask("question");
	r.answer("answer");
	r.state.phase = EnginePhase::Off;
	r.state.settings.recent = {kModel};
	r.sent.clear();
	REQUIRE(r.state.retry(1));
	REQUIRE(r.sent.size() == 2);
	REQUIRE(std::get_if<Load>(&r.sent[0]));
	CHECK(std::get_if<Load>(&r.sent[0])->model == kModel);
	LoadFailed failed;
	failed.text = "damaged", failed.model = kModel;
	r.state.take(failed);
	fail_answer(r, KVRUN_EINVALID, "no model is loaded", true);
	CHECK(r.state.problem == "damaged"); // the reason
	CHECK(r.shown() == "question|answer|");
	CHECK(r.state.current()->messages.size() == 2);
	CHECK(r.state.phase == EnginePhase::Failed);

	r.sent.clear();
	REQUIRE(r.state.edit(0, "another"));
	CHECK(std::get_if<Load>(&r.sent[0]));
	r.state.take(failed);
	fail_answer(r, KVRUN_EINVALID, "no model is loaded", true);
	CHECK(r.shown() == "question|answer|");
	const Draft& d = r.state.draft(r.state.current_id); // what was typed is in the editor again
	CHECK(d.edited == 0);
	CHECK(d.edit_text == "another");

	r.state.phase = EnginePhase::Ready; // another failure
	REQUIRE(r.state.edit(0, "too long"));
	fail_answer(r, KVRUN_ECONTEXT, "the prompt has 9 tokens");
	CHECK(r.shown() == "question|answer|");
	REQUIRE(r.state.retry(1));
	r.answer("part", KVRUN_EDEVICE, "lost"); // what was said is kept
	CHECK(r.shown() == "question|part|");

	r.state.phase = EnginePhase::Off;
	r.state.settings.recent.clear(), r.state.model.clear();
	r.sent.clear();
	CHECK(!r.state.retry(1));
	CHECK(!r.state.edit(0, "x"));
	CHECK(r.sent.empty());
	CHECK(r.state.problem.find("Choose a model") != std::string::npos);
}

TEST_CASE("desktop state: the last model is one that was loaded and still exists") {
	TempFolder folder;
	const std::string gone = (folder.path / "gone.gguf").string(), good = (folder.path / "good.gguf").string();
	std::ofstream(good) << "x";
	Rig r;
	r.state.phase = EnginePhase::Off;
	r.state.load(good);
	CHECK(r.state.settings.recent.empty());
	r.loaded();
	r.state.load(gone);
	r.loaded();
	CHECK(r.state.settings.recent == std::vector<std::string>{gone, good});
	CHECK(r.state.last_model() == good);
	r.state.load("/models/bad.gguf");
	LoadFailed failed;
	failed.text = "no GGUF", failed.model = "/models/bad.gguf", failed.bad_file = true;
	r.state.take(failed);
	CHECK(r.state.settings.recent == std::vector<std::string>{gone, good});
	failed.model = gone; // one that has become damaged is the last to be tried
	r.state.take(failed);
	CHECK(r.state.settings.recent == std::vector<std::string>{good, gone});
}

TEST_CASE("desktop state: a load that fails keeps the model in use; one that has come is only offered") {
	Rig r;
	r.state.load("/models/a.gguf");
	r.loaded();
	r.state.load("/models/b.gguf");
	LoadFailed failed;
	failed.text = "b is no model.", failed.model = "/models/b.gguf", failed.back = "/models/a.gguf";
	failed.kept = true;
	r.state.take(failed);
	CHECK(r.state.phase == EnginePhase::Ready);
	CHECK(r.state.model == "/models/a.gguf");
	CHECK(r.state.problem == "b is no model. a.gguf stays loaded.");
	failed.kept = false;
	r.state.take(failed);
	CHECK(r.state.phase == EnginePhase::Loading);

	r.loaded();
	r.sent.clear();
	r.state.offer("/models/c.gguf");
	CHECK(r.sent.empty());
	CHECK(r.state.offered == "/models/c.gguf");
	r.state.load(r.state.offered);
	CHECK(r.last<Load>()->model == "/models/c.gguf");
	CHECK(r.state.offered.empty());
	r.state.phase = EnginePhase::Off;
	r.state.offer("/models/d.gguf");
	CHECK(r.last<Load>()->model == "/models/d.gguf");
}

TEST_CASE("desktop state: only changed settings are applied, memory after the answer") {
	Rig r;
	r.state.settings.kv = "turbo4";
	r.state.ask("x");
	r.answer("y");
	r.state.current()->kv = "fp16";
	Settings opened = r.state.settings; // as the page shows it: the memory of the conversation
	opened.kv = "fp16", opened.scale = 1.1;
	r.state.settings.scale = 1.125;
	r.state.apply(opened, opened);
	CHECK(r.state.settings.kv == "turbo4");
	CHECK(r.state.settings.scale == 1.125);
	CHECK(r.state.current()->kv == "fp16");
	Settings s = opened;
	s.theme = "dark";
	r.state.apply(opened, s);
	CHECK(r.state.settings.theme == "dark");
	CHECK(r.state.settings.kv == "turbo4");

	r.state.ask("z");
	const Answer asked = *r.last<Answer>();
	s.kv = "turbo2";
	r.state.apply(opened, s);
	CHECK(r.state.current()->kv == "fp16");
	CHECK(r.last<Answer>()); // it goes on
	Ended e;
	e.conversation = asked.conversation, e.message = asked.message;
	r.state.take(e);
	CHECK(r.state.current()->kv == "turbo2");
	CHECK(r.last<Forget>());
	CHECK(r.state.settings.kv == "turbo2");
}

TEST_CASE("desktop state: options of one start are not saved, later changes are") {
	Settings stored;
	stored.kv = "turbo4", stored.sampling.temperature = 0.7;
	Settings begun = stored;
	begun.kv = "fp16", begun.sampling.temperature = 0, begun.sampling.max_tokens = 24;
	Settings now = begun;
	now.recent = {"/models/a.gguf"};
	CHECK(with_changes(stored, begun, now).kv == "turbo4");
	CHECK(with_changes(stored, begun, now).sampling.temperature == 0.7);
	CHECK(with_changes(stored, begun, now).sampling.max_tokens == 0);
	CHECK(with_changes(stored, begun, now).recent == now.recent);
	now.kv = "turbo2";
	CHECK(with_changes(stored, begun, now).kv == "turbo2");
}

TEST_CASE("desktop state: empty conversations are used again and not saved; the list is in the order of activity") {
	Rig r;
	r.state.create();
	const std::string empty = r.state.current_id;
	CHECK(r.changed.empty());
	r.state.create();
	CHECK(r.state.current_id == empty);
	r.state.fork(empty); // nothing to go on from
	CHECK(r.state.conversations.size() == 1);
	r.state.ask("first");
	r.answer("a");
	const std::string first = r.state.current_id;
	CHECK(first == empty);
	r.state.create();
	r.state.ask("second");
	r.answer("b");
	const std::string second = r.state.current_id;
	r.state.create();
	const std::string third = r.state.current_id;
	r.state.select(first);
	r.state.create();
	CHECK(r.state.current_id == third);
	CHECK(r.state.conversations.size() == 3);
	r.state.select(first);
	r.state.ask("more");
	CHECK(r.state.conversations.front().id == first);
	r.state.select(second);
	REQUIRE(r.state.retry(1));
	CHECK(r.state.conversations.front().id == second);
	std::vector<Conversation> saved = r.state.conversations;
	r.state.adopt(saved);
	CHECK(r.state.conversations.size() == 2);
	CHECK(r.changed.back() == third); // its file is removed
}

TEST_CASE("desktop state: the word that an answer is under way does not outlive the answer") {
	Rig r;
	r.state.ask("one");
	CHECK(!r.state.ask("two"));
	CHECK(r.state.problem.find("under way") != std::string::npos);
	r.answer("x");
	CHECK(r.state.problem.empty());
	r.state.problem = "another";
	r.state.pass_hint();
	CHECK(r.state.problem == "another");
}

TEST_CASE("desktop state: beyond the trained context a greater length is not advised") {
	const std::string text = advice(KVRUN_ECONTEXT, "the prompt has 9000 tokens, and the model was trained for 2048: "
	                                                "shorten it, or take a model with a longer context");
	CHECK(text.find("greater length") == std::string::npos);
	CHECK(text.find("Ctrl+N") != std::string::npos);
	CHECK(window_words("the prompt has 9 tokens, the context has room for 4 of 8; raise -c or shorten it") ==
	      "the prompt has 9 tokens, the context has room for 4 of 8");
	CHECK(window_words("the context of 8 tokens is full; raise -c") == "the context of 8 tokens is full");
}

TEST_CASE("desktop: a second start of the program calls the window of the first one") {
	TempFolder folder;
	Store store(folder.path);
	CHECK(!store.take_call());
	bool shown = false;
	std::thread second([&] { shown = call_window(folder.path, 60); });
	while (!store.take_call()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
	second.join();
	CHECK(shown);
	CHECK(!store.take_call());
	CHECK(!call_window(folder.path, 0)); // nobody answers
	CHECK(!store.take_call());           // and nothing is left of it
}

TEST_CASE("desktop: damaged settings are put aside, and values are in their ranges") {
	TempFolder folder;
	const std::string damaged = R"({"kvrun_desktop_settings": 1, "kv": 5})";
	std::ofstream(folder.path / "settings.json") << damaged;
	{
		Store store(folder.path);
		const Store::Saved saved = store.read();
		CHECK(saved.problem.find("settings.json.damaged") != std::string::npos);
		CHECK(saved.problem.find("left as it is") == std::string::npos);
		CHECK(saved.problem.find("json.exception") == std::string::npos);
		CHECK(saved.settings.kv == "fp16");
		store.save(saved.settings);
	}
	std::ifstream kept(folder.path / "settings.json.damaged");
	CHECK(std::string(std::istreambuf_iterator<char>(kept), {}) == damaged);
	{
		Store store(folder.path);
		CHECK(store.read().problem.empty());
	}
	std::ofstream(folder.path / "settings.json") << "{";
	Store store(folder.path);
	CHECK(store.read().problem.find("settings.json.damaged-2") != std::string::npos);

	const Settings s = settings_from_json(
	    R"({"kvrun_desktop_settings":1,"scale":1000,"theme":"pink","temperature":-3,"max_tokens":-7,"seed":-9})", "x");
	CHECK(s.scale == 0);
	CHECK(s.theme == "system");
	CHECK(s.sampling.temperature == 0);
	CHECK(s.sampling.max_tokens == 0);
	CHECK(s.sampling.seed == -1);
	Settings usual;
	usual.scale = 1.125, usual.sampling.dry_last = -1;
	CHECK(to_json(settings_from_json(to_json(usual), "x")) == to_json(usual));
}

TEST_CASE("desktop: a search looks only at what has changed") {
	int looked = 0;
	Search search([&](const Conversation& c, const std::string& words) -> std::optional<Hit> {
		++looked;
		for (size_t i = 0; i < c.messages.size(); ++i)
			if (c.messages[i].text.find(words) != std::string::npos) return Hit{int(i), words};
		return std::nullopt;
	});
	std::vector<Conversation> all(3);
	for (size_t i = 0; i < all.size(); ++i) all[i].id = std::to_string(i), all[i].add(kNone, true, "text");
	const auto found = [&](const char* words) {
		int n = 0;
		for (const Conversation& c : all) n += search.in(c, words).has_value();
		return n;
	};
	CHECK(found("grown") == 0);
	CHECK(looked == 3);
	CHECK(found("grown") == 0);
	CHECK(looked == 3);
	all[1].messages.back().text += " that has grown";
	CHECK(found("grown") == 1);
	CHECK(search.in(all[1], "grown")->message == 0);
	CHECK(looked == 4);
	CHECK(found("text") == 3);
	CHECK(looked == 7);
}

TEST_CASE("desktop planner: a policy is checked before it is applied") {
	CHECK(policy_fault(kModel, "turbo4").empty());
	CHECK(policy_fault(kModel, "kivi2,recent=32").empty());
	CHECK(policy_fault(kModel, "nonsense").find("nonsense") != std::string::npos);
	CHECK(!policy_fault(kModel, "kivi2,recent=x").empty());
	CHECK(policy_fault("/nowhere.gguf", "nonsense").empty()); // nothing is known
}

TEST_CASE("desktop engine: a file that is no model does not end the model in use, nor its answer") {
	TempFolder folder;
	const std::string bad = (folder.path / "bad.gguf").string();
	std::ofstream(bad) << "this is text";
	EngineThread engine;
	State s;
	s.send = [&](kvrun::desktop::Command c) { engine.send(std::move(c)); };
	const auto listen = [&] {
		for (const Event& e : engine.take()) s.take(e);
	};
	s.settings.device = "cpu", s.settings.chat_template = "chatml", s.settings.sampling.max_tokens = 20;
	s.load(kModel);
	wait_for([&] { return listen(), s.phase == EnginePhase::Ready; });
	s.load(bad);
	s.ask("One upon a time there was a house");
	wait_for([&] { return listen(), s.n_answering() == 0; });
	CHECK(s.phase == EnginePhase::Ready);
	CHECK(s.model == kModel);
	CHECK(s.settings.recent == std::vector<std::string>{kModel});
	CHECK(!s.current()->messages[1].text.empty());
	// a failure after the file was read: the model before is loaded again
	Settings other = s.settings;
	other.chat_template = "/nowhere/template.jinja";
	s.apply(other);
	std::string said;
	wait_for([&] { return listen(), said += s.problem, s.phase == EnginePhase::Ready; });
	CHECK(said.find("is loaded again") != std::string::npos);
	s.ask("and a dog");
	wait_for([&] { return listen(), s.n_answering() == 0; });
	const std::string text = s.current()->messages[3].text;
	CHECK(!text.empty());
	if (s.current()->messages[3].cut) { // by the limit of tokens
		s.go_on(3);
		wait_for([&] { return listen(), s.n_answering() == 0; });
		CHECK_MESSAGE(s.problem.empty(), s.problem);
		CHECK(s.current()->messages[3].text.starts_with(text));
		CHECK(s.current()->messages[3].text.size() > text.size());
	}
}

TEST_CASE("desktop state: the model is unloaded until the next question; a conversation is exported as it is shown") {
	Rig r;
	r.state.load(kModel);
	r.loaded();
	r.state.unload();
	CHECK(r.state.phase == EnginePhase::Off);
	CHECK(r.last<Unload>());
	REQUIRE(r.state.ask("Who?"));
	CHECK(r.state.phase == EnginePhase::Loading);
	r.answer("*One*");
	REQUIRE(r.state.retry(1));
	r.answer("Two");
	CHECK(to_markdown(*r.state.current()) == "# Who?\n\n## Question\n\nWho?\n\n## Answer\n\nTwo\n");
}

TEST_CASE("desktop state: an answer that was stopped goes on where it is") {
	Rig r;
	r.state.ask("Who?");
	r.answer("One and", KVRUN_ECANCELLED);
	REQUIRE(r.state.current()->messages[1].cut);
	CHECK(conversation_from_json(to_json(*r.state.current()), "x").messages[1].cut);
	REQUIRE(r.state.go_on(1));
	CHECK(r.last<Answer>()->goes_on);
	CHECK(r.last<Answer>()->messages ==
	      R"([{"role":"user","content":"Who?"},{"role":"assistant","content":"One and"}])");
	r.answer(" two");
	CHECK(r.shown() == "Who?|One and two|");
	CHECK(!r.state.go_on(1)); // it came to its own end
	CHECK(r.state.current()->messages.size() == 2);
}

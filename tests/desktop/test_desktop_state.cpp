// The desktop app without its window: conversations as trees, settings, files that survive a crash, models found,
// answers.
#include "tests/desktop/state_rig.h"
#include "tests/support/temp_folder.h"
#include "tools/desktop/engine.h"
#include "tools/desktop/memory_choices.h"
#include "tools/desktop/models_found.h"
#include "tools/desktop/planner.h"
#include "tools/desktop/saved_caches.h"
#include "tools/desktop/store.h"
#include "tools/desktop/words.h"
#include "tools/text.h"
#include "tools/user_files.h"
#include <csignal>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace kvrun;
using namespace kvrun::desktop;
namespace fs = std::filesystem;

TEST_CASE("desktop state: ask, answer, retry, edit: nothing is overwritten") {
	Rig r;
	CHECK(!r.state.ask("  \n"));
	REQUIRE(r.state.ask("What is it?\nTell me."));
	CHECK(r.state.current()->title == "What is it?");
	CHECK(r.last<Answer>()->messages == R"([{"role":"user","content":"What is it?\nTell me."}])");
	CHECK(!r.state.ask("more")); // while the answer is under way
	CHECK(r.state.problem.find("Esc") != std::string::npos);
	r.answer("one");
	CHECK(r.shown() == "What is it?\nTell me.|one|");
	REQUIRE(r.state.retry(1));
	r.answer("two");
	CHECK(r.shown() == "What is it?\nTell me.|two|");
	r.state.show(1);
	CHECK(r.shown() == "What is it?\nTell me.|one|");
	CHECK(r.state.current()->siblings(1) == std::vector<int>{1, 2});
	REQUIRE(r.state.ask("and then?"));
	r.state.problem.clear();
	CHECK(!r.state.edit(0, "Who?")); // while the answer is under way
	CHECK(r.state.problem.find("Esc") != std::string::npos);
	r.answer("three");
	REQUIRE(r.state.edit(0, "Who?"));
	CHECK(r.last<Answer>()->messages == R"([{"role":"user","content":"Who?"}])");
	r.answer("four");
	CHECK(r.shown() == "Who?|four|");
	r.state.show(0); // back to the first question, on to its newest end
	CHECK(r.shown() == "What is it?\nTell me.|two|");
	CHECK(r.state.current()->messages.size() == 7);
	CHECK(!r.state.retry(0));
	CHECK(!r.state.edit(1, "x"));
	CHECK(!r.state.retry(99));
}

TEST_CASE("desktop state: fork, rename, delete; the list's order") {
	Rig r;
	r.state.ask("first");
	r.answer("a");
	const std::string first = r.state.current_id;
	r.state.fork(first);
	const std::string fork = r.state.current_id;
	CHECK(fork != first);
	CHECK(r.shown() == "first|a|");
	r.state.ask("only in the fork");
	CHECK(r.state.find(first)->messages.size() == 2);
	r.state.rename(fork, "branch");
	r.state.rename(fork, "");
	CHECK(r.state.current()->title == "branch");
	r.state.select_next(1);
	CHECK(r.state.current_id == first);
	r.state.select_next(1);
	CHECK(r.state.current_id == fork);
	r.sent.clear();
	r.state.remove(r.state.current()->id);
	CHECK(r.sent.size() == 2); // stopped and forgotten
	CHECK(std::get_if<Stop>(&r.sent[0]));
	CHECK(r.state.current_id == first);
	r.state.take(Piece{fork, 3, "late", ""}); // of an answer that nobody has any more
	r.state.remove(first);
	CHECK(r.state.current() == nullptr);
	r.state.remove(first);
}

TEST_CASE("desktop state: errors say what to do") {
	Rig r;
	r.state.ask("long");
	r.answer("", KVRUN_ECONTEXT, "9000 tokens do not fit the context of 4096");
	CHECK(r.state.problem.find("9000 tokens") == 0);
	CHECK(r.state.problem.find("Settings") != std::string::npos);
	CHECK(r.state.current()->messages[1].note.find("9000 tokens") != std::string::npos);
	CHECK(!r.state.answering(r.state.current_id));
	r.state.take(LoadFailed{"no such file"});
	CHECK(r.state.phase == EnginePhase::Failed);
	CHECK(!r.state.ask("nobody answers"));
	CHECK(r.state.problem.find("No model is loaded") == 0);
	r.sent.clear();
	r.state.model = "/models/a.gguf";
	r.state.apply(r.state.settings); // loads again
	CHECK(r.last<Load>());
}

TEST_CASE("desktop state: another model is chosen while one loads") {
	Rig r;
	const auto loaded = [](const char* model) {
		Loaded e;
		e.model = model;
		return e;
	};
	r.state.load("/models/a.gguf"), r.state.load("/models/b.gguf");
	r.state.take(loaded("/models/a.gguf"));
	CHECK(r.state.phase == EnginePhase::Loading);
	CHECK(r.state.model == "/models/b.gguf");
	CHECK(r.state.settings.recent.front() == "/models/a.gguf");
	r.state.take(loaded("/models/b.gguf"));
	CHECK(r.state.phase == EnginePhase::Ready);
	CHECK(r.state.facts.model == "/models/b.gguf");
	r.state.load("/models/c.gguf"), r.state.load("/models/a.gguf");
	r.state.take(LoadFailed{.text = "no such file", .model = "/models/c.gguf", .back = "/models/b.gguf"});
	CHECK(r.state.phase == EnginePhase::Loading);
	CHECK(r.state.model == "/models/a.gguf");
	CHECK(r.state.problem == "no such file");
}

TEST_CASE("desktop state: another policy reads the conversation again") {
	Rig r;
	r.state.ask("x");
	r.answer("y");
	Settings s = r.state.settings;
	s.kv = "kivi2", s.ctx = 4096;
	r.state.apply(s);
	CHECK(r.last<Forget>());
	r.state.ask("z");
	CHECK(r.last<Answer>()->kv == "kivi2");
	CHECK(r.last<Answer>()->ctx == 4096);
	s.device = "cpu";
	r.state.model = "/models/a.gguf";
	r.state.apply(s);
	CHECK(r.last<Load>()->device == "cpu");
}

TEST_CASE("desktop: files round-trip; damaged ones are named and left alone") {
	TempFolder folder;
	Rig r;
	r.state.ask("kept");
	r.answer("answer \xf0\x9f\x90\x8b \xff"); // with a byte that is not UTF-8
	r.state.ask("open");
	Settings s;
	s.kv = "kivi4", s.sampling.temperature = 0.5, s.sampling.seed = 7, s.scale = 1.5;
	const std::string id = r.state.current_id;
	{
		Store store(folder.path);
		CHECK_THROWS_WITH_AS(Store(folder.path), doctest::Contains("another kvrun-desktop"), StatusError);
		store.save(*r.state.current());
		store.save(s);
		Conversation gone;
		gone.id = "gone";
		store.save(gone);
		store.remove("gone");
		store.flush();
	}
	std::ofstream(folder.path / "bad.json") << R"({"kvrun_desktop": 1, "title": 5})";
	std::ofstream(folder.path / "cut.json") << R"({"kvrun_desktop": 1, "ti)";
	std::ofstream(folder.path / "loop.json")
	    << R"({"kvrun_desktop":1,"title":"","kv":"","ctx":0,"changed":0,"answers":0,"last":0,"messages":[{"parent":0,"role":"user","content":""}]})";
	std::ofstream(folder.path / "newer.json") << R"({"kvrun_desktop": 2})";
	std::ofstream(folder.path / "x.json.new-1") << "left by a crash";
	Store store(folder.path);
	Store::Saved saved = store.read();
	for (const char* name : {"bad.json", "cut.json", "loop.json", "newer.json"})
		CHECK(saved.problem.find(name) != std::string::npos);
	CHECK(std::filesystem::exists(folder.path / "bad.json"));
	CHECK(!std::filesystem::exists(folder.path / "x.json.new-1"));
	CHECK(saved.settings.kv == "kivi4");
	CHECK(saved.settings.sampling.seed == 7);
	CHECK(saved.settings.scale == 1.5);
	REQUIRE(saved.conversations.size() == 1);
	State again;
	again.adopt(std::move(saved.conversations));
	CHECK(again.current_id == id);
	REQUIRE(again.current()->messages.size() == 4);
	CHECK(again.current()->messages[1].text == "answer \xf0\x9f\x90\x8b \xef\xbf\xbd");
	CHECK(!again.current()->messages[3].unfinished);
	CHECK(again.current()->messages[3].note.find("retry") != std::string::npos);
	const auto dump = nlohmann::json::parse(again.dump());
	CHECK(dump["conversations"][0]["shown"][0]["text"] == "kept");
}

TEST_CASE("desktop: links, FIFOs and folders in the place of its files are not followed, read or waited for") {
	namespace fs = std::filesystem;
	TempFolder outside, folder;
	const auto text_of = [](const fs::path& p) {
		std::ifstream in(p);
		return std::string(std::istreambuf_iterator<char>(in), {});
	};
	Conversation c;
	c.id = "mine";
	c.add(kNone, true, "question");
	{ // a sound conversation of somebody else
		Store store(outside.path);
		store.save(c);
		store.flush();
	}
	const fs::path victim = outside.path / "mine.json";
	const std::string before = text_of(victim);
	REQUIRE(!before.empty());
	// names of temporary files that could be foreseen
	const std::string guess = fmt::format("mine.json.new-{}", getpid());
	fs::create_symlink(victim, folder.path / guess);
	fs::create_symlink(victim, folder.path / "mine.json");
	fs::create_symlink(outside.path / "new", folder.path / "settings.json"); // a dangling one
	fs::create_symlink(victim, folder.path / "link.json");
	fs::create_symlink(folder.path / "loop.json", folder.path / "loop.json");
	fs::create_directory(folder.path / "folder.json");
	REQUIRE(mkfifo((folder.path / "fifo.json").c_str(), 0600) == 0);
	fs::create_directory(folder.path / "mine.json.new-folder");
	{
		Store store(folder.path);
		Store::Saved saved = store.read();
		CHECK(saved.conversations.empty());
		for (const char* name : {"mine.json", "link.json", "loop.json"})
			CHECK_MESSAGE(saved.problem.find(std::string(name) + ": it is a symbolic link") != std::string::npos, name);
		for (const char* name : {"folder.json", "fifo.json"})
			CHECK_MESSAGE(saved.problem.find(std::string(name) + ": it is no regular file") != std::string::npos, name);
		c.messages[0].text = "changed";
		store.save(c);
		store.save(Settings{});
		store.flush();
		CHECK(store.take_problem().empty());
		store.remove("link");
		store.flush();
	}
	CHECK(text_of(victim) == before);
	CHECK(!fs::exists(outside.path / "new"));
	CHECK(!fs::is_symlink(folder.path / "mine.json")); // the link is gone, what it led to is as it was
	CHECK(text_of(folder.path / "mine.json").find("changed") != std::string::npos);
	CHECK(!fs::exists(fs::symlink_status(folder.path / "link.json")));
	const auto mode = [](const fs::path& p) { return unsigned(fs::status(p).permissions()); };
	CHECK(mode(folder.path / "mine.json") == 0600);
	CHECK(mode(folder.path) == 0700);
	for (const auto& e : fs::directory_iterator(folder.path))
		CHECK_MESSAGE((e.path().filename().string().find(".new-") == std::string::npos || e.is_directory()),
		              e.path().filename().string());
	// nor is the folder itself a link, or its lock
	fs::create_symlink(outside.path, folder.path / "state");
	CHECK_THROWS_WITH_AS(Store((folder.path / "state").string()), doctest::Contains("symbolic link"), StatusError);
	fs::create_directory(folder.path / "other");
	fs::create_symlink(victim, folder.path / "other/lock");
	CHECK_THROWS_AS(Store((folder.path / "other").string()), StatusError);
	CHECK(text_of(victim) == before);
}

TEST_CASE("desktop: temporary files have names that cannot be foreseen, and never replace what is there") {
	TempFolder folder;
	const std::string path = folder.path / "x.json";
	std::set<std::string> names;
	for (int i = 0; i < 50; ++i) {
		std::string name;
		const int fd = open_beside(path, name);
		REQUIRE(fd >= 0);
		CHECK(name.starts_with(path + ".new-"));
		CHECK(name.find(std::to_string(getpid())) == std::string::npos);
		struct stat st {};
		CHECK((fstat(fd, &st) == 0 && (st.st_mode & 0777) == 0600 && st.st_size == 0));
		close(fd);
		CHECK(names.insert(name).second); // all of them are still there
	}
	std::string name;
	CHECK(open_beside(folder.path / "none/x.json", name) < 0);
	CHECK(errno == ENOENT);
}

TEST_CASE("desktop: kill -9 while files are written leaves every file whole") {
	TempFolder folder;
	for (int round = 0; round < 5; ++round) {
		const pid_t child = fork();
		REQUIRE(child >= 0);
		if (child == 0) {
			Store store(folder.path);
			Conversation c;
			c.id = "c1";
			c.add(kNone, true, "question");
			for (;;) { // grows as an answer does
				c.messages[0].text += std::string(1000, 'x');
				store.save(c);
				usleep(100);
			}
		}
		for (int i = 0; i < 20000 && !std::filesystem::exists(folder.path / "c1.json"); ++i) usleep(1000);
		usleep(10000 + 7000 * round);
		kill(child, SIGKILL);
		waitpid(child, nullptr, 0);
		Store store(folder.path); // the lock went with the process
		const Store::Saved saved = store.read();
		CHECK(saved.problem.empty());
		REQUIRE(saved.conversations.size() == 1);
		CHECK(saved.conversations[0].messages[0].text.size() > 1000);
	}
}

TEST_CASE("desktop: errors are in the words of a window") {
	CHECK(window_words("x.gguf: the file has no chat template; choose one with --chat-template: chatml, llama3") ==
	      "x.gguf: the file has no chat template. Choose one in Settings, Expert, Chat template: chatml, llama3");
	CHECK(window_words("--kv turbo2 would fit, or raise --kv-budget") == "memory turbo2 would fit");
	CHECK(window_words("plain") == "plain");
	CHECK(human_size(512) == "512 B");
	CHECK(human_size(1536) == "1.5 KiB");
	CHECK(human_count(7) == "7");
	CHECK(human_count(1234567) == "1\u202f234\u202f567");
}

TEST_CASE("desktop: places of the memory slider go from quality to length") {
	const auto& all = memory_choices();
	REQUIRE(all.size() > 2);
	CHECK(all.front().kv == "fp16");
	for (size_t i = 1; i < all.size(); ++i) {
		CHECK(all[i].divergence > all[i - 1].divergence);
		CHECK(all[i].same_token < all[i - 1].same_token);
		CHECK(memory_choice_of(all[i].kv) == int(i));
	}
	CHECK(memory_choice_of("kivi2") == -1);
}

TEST_CASE("desktop: recent models are kept, the latest first, each once") {
	Rig r;
	for (int i = 0; i < 12; ++i) {
		r.state.load(fmt::format("/models/{}.gguf", i % 10));
		r.loaded();
	}
	REQUIRE(r.state.settings.recent.size() == 8);
	CHECK(r.state.settings.recent[0] == "/models/1.gguf");
	r.state.load(r.state.settings.recent.back()); // a name in the list itself
	CHECK(r.state.model == "/models/4.gguf");
	CHECK(r.last<Load>()->model == "/models/4.gguf");
	r.loaded();
	r.state.forget_model("/models/4.gguf");
	r.state.forget_model("/models/1.gguf");
	CHECK(r.state.settings.recent[0] == "/models/0.gguf");
	Settings s = r.state.settings;
	s.theme = "dark", s.expert = s.show_cache = true;
	const Settings again = settings_from_json(to_json(s), "settings.json");
	CHECK(again.recent == s.recent);
	CHECK(again.theme == "dark");
	CHECK((again.expert && again.show_cache));
}

TEST_CASE("desktop: models that other programs have left are found, each once") {
	namespace fs = std::filesystem;
	TempFolder home;
	const auto put = [&](const char* path, const std::string& content = "weights") {
		fs::create_directories((home.path / path).parent_path());
		std::ofstream(home.path / path) << content;
	};
	put("hub/models--org--big/snapshots/1/big-00001-of-00002.gguf");
	put("hub/models--org--big/snapshots/1/big-00002-of-00002.gguf");
	put("hub/models--org--big/snapshots/1/mmproj-big.gguf");
	put("hub/models--org--big/blobs/0123");
	put("ollama/manifests/registry.ollama.ai/library/qwen3/4b",
	    R"({"layers":[{"mediaType":"application/vnd.ollama.image.license","digest":"sha256:aa"},)"
	    R"({"mediaType":"application/vnd.ollama.image.model","digest":"sha256:bb"}]})");
	put("ollama/manifests/registry.ollama.ai/library/odd/1",
	    R"({"layers":[{"mediaType":"application/vnd.ollama.image.model","digest":"../../outside"}]})");
	put("ollama/manifests/registry.ollama.ai/library/damaged/1", "{");
	put("ollama/blobs/sha256-bb");
	put("outside");
	put("Downloads/Model.Q4_1.GGUF");
	put("Downloads/empty.gguf", "");
	fs::create_directory_symlink(home.path / "Downloads", home.path / "Downloads/again");
	fs::create_symlink(home.path / "Downloads/Model.Q4_1.GGUF", home.path / "Downloads/same.gguf");
	const std::pair<const char*, fs::path> variables[] = {{"HOME", home.path},
	                                                      {"XDG_CACHE_HOME", home.path / "cache"},
	                                                      {"XDG_DATA_HOME", home.path / "data"},
	                                                      {"HF_HUB_CACHE", home.path / "hub"},
	                                                      {"OLLAMA_MODELS", home.path / "ollama"},
	                                                      {"KVRUN_MODELS", home.path / "none"},
	                                                      {"XDG_DOWNLOAD_DIR", home.path / "Downloads"}};
	std::vector<std::pair<const char*, std::string>> before;
	for (const auto& [name, value] : variables) {
		const char* v = std::getenv(name);
		before.emplace_back(name, v ? v : "");
		setenv(name, value.c_str(), 1);
	}
	std::string all;
	for (const FoundModel& m : find_models())
		if (m.path.starts_with(home.path.string())) all += fmt::format("{}: {}, {}\n", m.source, m.name, m.bytes);
	bool asked = false;
	const auto stopped = find_models([&] { return asked = true; });
	for (const auto& [name, value] : before) value.empty() ? unsetenv(name) : setenv(name, value.c_str(), 1);
	const bool either =
	    all == "Hugging Face: big, 14\nOllama: qwen3:4b, 7\nDownloads: Model.Q4_1, 7\n" ||
	    all == "Hugging Face: big, 14\nOllama: qwen3:4b, 7\nDownloads: same, 7\n"; // two names of one file
	CHECK_MESSAGE(either, all);
	CHECK(asked);
	CHECK(stopped.empty());
	CHECK(model_name("/x/Qwen3-8B-Q4_K_M-00001-of-00003.gguf") == "Qwen3-8B-Q4_K_M");
}

TEST_CASE("desktop engine: two conversations at once, tiers while they go on, stop, a model that is not there") {
	EngineThread engine;
	State s;
	int64_t now = 0;
	s.send = [&](kvrun::desktop::Command c) { engine.send(std::move(c)); };
	s.calendar = [&] { return ++now; };
	const auto listen = [&] {
		for (const Event& e : engine.take()) s.take(e);
	};
	s.settings.device = "cpu";
	s.load("/nowhere/model.gguf");
	wait_for([&] { return listen(), s.phase == EnginePhase::Failed; });
	CHECK(s.problem.find("/nowhere/model.gguf") != std::string::npos);
	CHECK(s.problem.find("Settings") != std::string::npos);

	s.settings.chat_template = "chatml";
	s.settings.kv = "rtn4,recent=32,sinks=0";
	s.settings.sampling.max_tokens = 60;
	s.load(kModel);
	wait_for([&] { return listen(), s.phase == EnginePhase::Ready; });
	s.ask("One upon a time there was a house and a dog and a tree");
	const std::string first = s.current_id;
	s.create();
	s.ask("Tell me more");
	const std::string second = s.current_id;
	bool together = false, packed = false;
	wait_for([&] {
		listen();
		together |= s.n_answering() == 2 && s.live(first).pieces > 1 && s.live(second).pieces > 1;
		for (const uint8_t t : s.live(first).cache.tiers) packed |= t == KVRUN_TIER_REGULAR;
		return s.n_answering() == 0;
	});
	INFO(s.problem);
	CHECK(together);
	CHECK(packed);
	CHECK(!s.find(first)->messages[1].text.empty());
	CHECK(!s.find(second)->messages[1].text.empty());
	CHECK(s.live(second).cache.tiers.size() > 10);

	s.settings.sampling.max_tokens = 0;
	s.ask("again"); // ends only when it is stopped, or the model has had enough
	wait_for([&] { return listen(), s.live(second).pieces > 0 || s.n_answering() == 0; });
	s.stop();
	wait_for([&] { return listen(), s.n_answering() == 0; });
	CHECK(!s.current()->messages[3].unfinished);
}

TEST_CASE("desktop engine: a conversation goes on after a restart without being read again, unless something differs") {
	const TempFolder folder;
	const std::string caches = (folder.path / "caches").string();
	State s;
	int64_t now = 0;
	s.calendar = [&] { return ++now; };
	s.settings.device = "cpu", s.settings.chat_template = "chatml", s.settings.kv = "rtn4,recent=32,sinks=0";
	s.settings.sampling.max_tokens = 20;
	// Asks in a program of its own; returns what the answer reused.
	const auto ask = [&](const std::string& question, const std::string& place) {
		EngineThread engine(place);
		s.send = [&](kvrun::desktop::Command c) { engine.send(std::move(c)); };
		std::optional<Ended> ended;
		const auto listen = [&] {
			for (const Event& e : engine.take()) {
				if (const auto* end = std::get_if<Ended>(&e)) ended = *end;
				s.take(e);
			}
		};
		s.load(kModel);
		wait_for([&] { return listen(), s.phase == EnginePhase::Ready; });
		s.ask(question);
		wait_for([&] { return listen(), s.n_answering() == 0; });
		REQUIRE(ended);
		CHECK_MESSAGE(ended->error == "", ended->error);
		return std::pair(ended->reused_tokens, ended->prompt_tokens);
	};
	CHECK(ask("One upon a time there was a house and a dog and a tree", caches).first == 0);
	const std::string id = s.current_id, file = caches + "/" + id + ".kvs";
	REQUIRE(fs::exists(file));
	CHECK((fs::status(file).permissions() & fs::perms(077)) == fs::perms::none);
	const auto [reused, all] = ask("and a cat", caches);
	CHECK(reused > 20);
	CHECK(reused < all);
	CHECK(ask("and a bird", "").first == 0);              // nothing is saved there
	const auto [again, more] = ask("and a fish", caches); // it holds what the text begins with
	CHECK(again > reused);
	CHECK(again + 30 < more);
	{ // what is damaged, or a link to elsewhere, is not read
		std::ofstream(file, std::ios::in | std::ios::out).seekp(200) << "damaged!";
		CHECK(ask("and an ox", caches).first == 0);
		fs::rename(file, file + "2");
		fs::create_symlink(file + "2", file);
		CHECK(ask("and an owl", caches).first == 0);
		fs::remove(file + "2");
	}
	const std::string old = caches + "/old.kvs"; // of another conversation, and too large to keep
	std::ofstream(old).put(0);
	fs::resize_file(old, SavedCaches::kMostBytes);
	fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(24));
	CHECK(ask("and a fox", caches).first > 0);
	CHECK(!fs::exists(old));
	CHECK(fs::exists(file));
	const std::string kv = std::exchange(s.find(id)->kv, "rtn2,recent=32,sinks=0");
	CHECK(ask("and a hen", caches).first == 0);
	s.find(id)->kv = kv;
	Settings other = s.settings;
	other.kv = "fp16";
	const auto without_model = [&](auto change) {
		EngineThread engine(caches);
		s.send = [&](kvrun::desktop::Command c) { engine.send(std::move(c)); };
		change();
		wait_for([&] { return !fs::exists(file); });
	};
	without_model([&] { s.apply(other); }); // another policy
	CHECK(ask("and an ant", caches).first == 0);
	REQUIRE(fs::exists(file));
	without_model([&] { s.remove(id); });
}

TEST_CASE("desktop planner: usual policies, and one that does not exist") {
	Planner p;
	PlanRequest r{kModel, "cpu", "kivi7", 1024, uint64_t(1) << 30};
	p.ask(r);
	wait_for([&] { return p.plan().has_value(); });
	const Plan plan = *p.plan();
	REQUIRE(plan.policies.size() == kUsualPolicies.size() + 1);
	CHECK(plan.policies[0].error.find("kivi7") != std::string::npos);
	CHECK(plan.policies[1].kv == "fp16");
	CHECK(plan.policies[1].plan.fits);
	CHECK(plan.policies[1].plan.kv_bytes > plan.policies[4].plan.kv_bytes);
	r.memory_bytes = 1 << 20; // less than the weights
	r.kv = "fp16";
	p.ask(r);
	wait_for([&] { return p.plan().has_value(); });
	CHECK(!p.plan()->policies[0].plan.fits);
	wait_for([&] { return !p.devices().empty(); });
}

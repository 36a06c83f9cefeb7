// kvrun chat when it is ended, or its output or disk fails, during an answer.
#include "tests/cli/chat_state.h"
#include "tests/support/gguf_builder.h"
#include <csignal>
#include <filesystem>
#include <sys/resource.h>

using namespace kvrun;

TEST_CASE("chat: SIGTERM and SIGHUP during an answer keep the question, the answer so far and the cache") {
	if (needs_posix("SIGTERM")) return;
	const State state;
	const std::string expected = state.answers({"--temp", "1.3", "--seed", "5", "-n", "200"}, "Hello\n");
	for (const int signal : {SIGTERM, SIGHUP}) {
		const std::string name = signal == SIGTERM ? "term" : "hup";
		RunSpec spec = state.spec({"--temp", "1.3", "--seed", "5", "--ignore-eos", "--chat", name}, "Hello\nAgain\n");
		bool sent = false;
		spec.watch = [&](int pid, int, const std::string& out) {
			if (!out.empty() && out.find('#') == std::string::npos && !sent) sent = kill(pid, signal) == 0;
		};
		const Ran r = run_program(spec);
		CAPTURE(r.err);
		CHECK(r.killed);
		CHECK(r.code == 128 + signal);
		const nlohmann::json messages = state.chat(name)["messages"];
		REQUIRE(messages.size() == 2);
		const std::string said = messages[1]["content"];
		CHECK(!said.empty());
		CHECK(r.out == said + (said.ends_with('\n') ? "" : "\n"));
		const size_t same = std::min(said.size(), expected.size()) / 2; // the seed is the same
		CHECK(said.substr(0, same) == expected.substr(0, same));
		CHECK(std::filesystem::exists(state.file("chats/" + name + ".kv")));
		const Ran next = state.run(with(kGreedy, {"--chat", name}), "Again\n");
		CHECK(next.code == 0);
		CHECK(!contains(next.err, "cache is not used"));
		CHECK(state.chat(name)["messages"].size() == 4);
	}
}

TEST_CASE("chat: an answer that cannot be written to standard output is in the chat as far as it came") {
	if (needs_posix("/dev/full")) return;
	const State state;
	RunSpec spec = state.spec(with(kGreedy, {"--chat", "full"}), "Hello\nAgain\n");
	spec.out = Out::Full;
	const Ran r = run_program(spec);
	CAPTURE(r.err);
	CHECK(r.code == 5);
	const nlohmann::json messages = state.chat("full")["messages"];
	REQUIRE(messages.size() == 2);
	CHECK(!messages[1]["content"].get<std::string>().empty());
}

TEST_CASE("chat: where the device fails, the question and the answer so far are kept") {
	const State state;
	TinyShape shape;
	shape.ctx = 512;
	GgufBuilder b = tiny_model(shape);
	const size_t row = shape.dim * sizeof(float), z = (3 + 'Z') * row; // the token of this byte
	for (GgufBuilder::Tensor& t : b.tensors)
		if (t.name == "token_embd.weight") std::fill_n(t.data.begin() + ptrdiff_t(z), row, '\xff'); // NaN
	const std::vector<std::byte> bytes = b.bytes();
	const std::string model = state.path + "/model.gguf";
	std::ofstream(model, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), ptrdiff_t(bytes.size()));
	const auto run = [&](const std::string& input, const std::string& answer) {
		RunSpec spec = state.spec({"--chat", "x", "--grammar", "root ::= \"" + answer + "\""}, input);
		spec.args[1] = model;
		return run_program(spec);
	};
	CHECK(run("one\n", "ab").code == 0);
	const Ran failed = run("two\n", "abZab");
	CAPTURE(failed.err);
	CHECK(failed.code == 4);
	CHECK(failed.out == "abZ\n");
	nlohmann::json m = state.chat("x")["messages"];
	REQUIRE(m.size() == 4);
	CHECK(m[2]["content"] == "two");
	CHECK(m[3]["content"] == "abZ");

	CHECK(run("/undo\n/undo\nthe Z\n", "ab").code == 4); // while it reads the question
	m = state.chat("x")["messages"];
	REQUIRE(m.size() == 1);
	CHECK(m[0]["content"] == "the Z");
	const Ran opened = run("/undo\nthree\n", "ab"); // though the question is there, which cannot be read
	CHECK(opened.code == 0);
	CHECK(contains(opened.err, "; the rest is read with the next message"));
	CHECK(contains(opened.err, "the last question has no answer"));
	m = state.chat("x")["messages"];
	CHECK(m.size() == 2);
	CHECK(run("/retry\n", "Zab").code == 4); // the answer is replaced as far as it came
	CHECK(state.chat("x")["messages"][1]["content"] == "Z");
}

TEST_CASE("chat: a disk that is full during an answer leaves the saved chat as it was") {
	if (needs_posix("limits of file sizes")) return;
	const State state;
	state.answers(with(kGreedy, {"--chat", "x"}), "Hello\n");
	const nlohmann::json before = state.chat("x");
	RunSpec spec = state.spec({"--temp", "1.3", "--seed", "5", "-n", "400", "--ignore-eos", "--chat", "x"}, "Hello\n");
	rlimit limit{}, own{};
	getrlimit(RLIMIT_FSIZE, &own);
	limit = own;
	limit.rlim_cur = file_text(state.file("chats/x.json")).size() + 300;
	setrlimit(RLIMIT_FSIZE, &limit);
	const Ran r = run_program(spec);
	setrlimit(RLIMIT_FSIZE, &own);
	CAPTURE(r.err);
	CHECK(r.code == 5);
	CHECK(!r.out.empty()); // the answer was printed
	const nlohmann::json after = state.chat("x");
	REQUIRE(after["messages"].size() >= 2);
	for (size_t i = 0; i < 2; ++i) CHECK(after["messages"][i] == before["messages"][i]);
	CHECK(state.run(with(kGreedy, {"--chat", "x"}), "Again\n").code == 0);
}

// Assistants (--draft FILE): their guesses against tests/golden/assistant; answers are those without drafts, whatever
// they guess; they attend to the model's cache as it is, packed or not.
#include "engine/core/npy.h"
#include "engine/run/draft_assistant.h"
#include "engine/run/memory_plan.h"
#include "tests/device/drafting.h"

using namespace kvrun;

namespace {

// Layers that share keys and values with others of the model; KV heads that differ between kinds of layers.
const std::vector<Case> kAssisted{{"gemma4"}, {"gemma4_shared"}};
constexpr uint32_t kCuts[] = {1, 5, 8, 21}; // of tools/dev/make_assistant_models.py
constexpr uint32_t kGuesses = 3;

std::string file_of(const std::string& name) { return kGolden + "assistant/" + name; }

EngineOptions options_of(const std::string& device, const std::string& name) {
	EngineOptions o;
	o.model = name == "right" ? file_of("right.model.gguf") : kGolden + "tiny/" + name + ".gguf";
	o.backend = select_test_device(device), o.draft_file = file_of(name) + ".gguf", o.ubatch = 7;
	return o;
}

// Reads the tokens; returns the residual stream of the last one.
Floats read(Session& s, std::span<const uint32_t> tokens) {
	const uint32_t dim = s.engine().config().dim;
	Floats state;
	PrefillHooks hooks;
	hooks.states = {{s.engine().config().n_layers}, 0, [&](uint32_t, std::span<const float> rows) {
		                state.assign(rows.end() - dim, rows.end());
	                }};
	s.prefill(tokens, hooks);
	return state;
}

} // namespace

TEST_CASE("assistant: guesses behind texts of any length are those of transformers") {
	each_row(kAssisted, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = Engine::open(options_of(row.device, c.name));
		Assistant& assistant = *engine->assistant();
		const NpyArray ids = npy_read(file_of(c.name) + ".tokens.npy"),
		               rows = npy_read(file_of(c.name) + ".logits.npy");
		const Tokens tokens(ids.as<int32_t>().begin(), ids.as<int32_t>().end());
		const size_t vocab = engine->config().vocab;
		std::span<const float> want = rows.as<float>();
		REQUIRE(want.size() == std::size(kCuts) * kGuesses * vocab);
		const double most = logits_tolerance(engine->backend(), c.name, /*decode=*/true);
		for (const uint32_t n : kCuts) {
			Session s(*engine, with("fp16", 64));
			const Floats state = read(s, std::span(tokens).first(n));
			for (int again = 0; again < 2; ++again) { // nothing of the session changes
				const Assistant::Text text{&s, state};
				Assistant::Round round(assistant, {&text, 1});
				uint32_t token = tokens[n];
				for (uint32_t i = 0; i < kGuesses; ++i) {
					const std::span<const float> logits = want.subspan(i * vocab, vocab);
					const uint32_t guess = round.guess({&token, 1})[0];
					CHECK_MESSAGE(relative_error(assistant.logits(), logits) < most, n << " tokens, guess " << i);
					token = best(logits);
					CHECK(guess == token);
				}
			}
			CHECK(s.n_tokens() == n);
			want = want.subspan(kGuesses * vocab);
		}
	});
}

TEST_CASE("assistant: answers are those without drafts, and so is what the session holds") {
	each_row(kAssisted, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = Engine::open(options_of(row.device, c.name));
		check_answers_with_drafts(*engine, row,
		                          {"fp16", "turbo3,recent_keep=8,flush=16", "kivi2,recent_keep=8,flush=32,group=32"},
		                          row.device == "cpu" ? 60 : 30);
	});
}

TEST_CASE("assistant: guesses of an answer are those behind the same text read at once, also when drafts were wrong") {
	each_row(kAssisted, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = Engine::open(options_of(row.device, c.name));
		const Tokens prompt = random_tokens(20, engine->config().vocab, 5);
		GuessNotes notes;
		GenerateOptions o = answer_of(40, 3, 1);
		Session s(*engine, with("fp16", 200));
		o.drafter = [&] { return std::make_unique<Noted>(engine->drafter(s), notes); };
		const GenerateResult r = generate(s, prompt, o);
		Tokens text = prompt;
		text.insert(text.end(), r.tokens.begin(), r.tokens.end());
		size_t equal = 0;
		for (const auto& [length, token] : notes) {
			Session whole(*engine, with("fp16", 200));
			const Floats state = read(whole, std::span(text).first(length - 1));
			const Assistant::Text at{&whole, state};
			equal += Assistant::Round(*engine->assistant(), {&at, 1}).guess({&text[length - 1], 1})[0] == token;
		}
		CHECK(notes.size() > 5);
		CHECK(r.draft.accepted < r.draft.drafted);
		CHECK(equal >= notes.size() - notes.size() / 10); // states of steps are rounded in another way than a prompt's
	});
}

TEST_CASE("assistant: several sessions are guessed together as they are alone, under policies of their own") {
	each_row(kAssisted, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = Engine::open(options_of(row.device, c.name));
		const uint32_t vocab = engine->config().vocab;
		const char* policies[] = {"fp16", "turbo3,recent_keep=8,flush=16", "kivi2,recent_keep=8,flush=32,group=32"};
		std::vector<std::unique_ptr<Session>> sessions;
		std::vector<std::unique_ptr<Drafter>> drafters;
		std::vector<DraftRequest> requests;
		for (uint32_t i = 0; i < 11; ++i) { // more than a round takes; the last one has no hidden state
			const Tokens text = random_tokens(3 + 5 * i, vocab, i + 1);
			Session& s = *sessions.emplace_back(std::make_unique<Session>(*engine, with(policies[i % 3], 200)));
			const Floats state = read(s, text);
			Drafter& d = *drafters.emplace_back(engine->drafter(s));
			d.accept(text);
			if (i < 10) d.states(s.n_tokens() - 1, state);
			const uint32_t next = (7 * i) % vocab;
			d.accept({&next, 1});
			requests.push_back({&d, i == 4 ? 0 : 1 + i % 3});
		}
		drafters[0]->group()->draft(requests);
		for (size_t i = 0; i < requests.size(); ++i) {
			const uint32_t most = requests[i].most;
			const std::span<const uint32_t> alone = drafters[i]->draft(most);
			CHECK(alone.size() == (i < 10 ? most : 0));
			CHECK_MESSAGE(std::ranges::equal(alone, requests[i].tokens), "session " << i);
		}
	});
}

TEST_CASE("assistant: one that is right has all its guesses taken, in a batch with forks as well") {
	each_row(std::vector<Case>{{"right"}}, [](Backend&, const Case& c, const TestRow& row) {
		check_right_guesses(*Engine::open(options_of(row.device, c.name)), "turbo4");
	});
}

TEST_CASE("assistant: a plan counts its memory as an engine allocates it") {
	each_row(kAssisted, [](Backend&, const Case& c, const TestRow& row) {
		if (row.device != "cpu") return; // others round up allocations
		const auto engine = Engine::open(options_of(row.device, c.name));
		const Gguf file = Gguf::open(file_of(c.name) + ".gguf");
		const ModelMemory m = with_draft_file({}, file, engine->config());
		CHECK(double(engine->assistant()->bytes()) == doctest::Approx(double(m.draft_bytes)).epsilon(0.03));
		const MemoryAccount a = memory_account(m, uint64_t(1) << 30, 100);
		CHECK(a.draft == m.draft_bytes);
		CHECK(a.draft_cache == 0);
	});
}

TEST_CASE("assistant: what was made for another model, and damaged files, are refused by name") {
	each_row(std::vector<Case>{{"refused"}}, [](Backend&, const Case&, const TestRow& row) {
		if (row.device != "cpu") return;
		const auto refused = [&](const std::string& model, const std::string& assistant) {
			EngineOptions o;
			o.model = kGolden + model, o.backend = select_test_device(row.device), o.draft_file = assistant;
			return message_of([&] { Engine::open(o); });
		};
		const auto says = [](const std::string& message, const char* what) {
			CHECK_MESSAGE(message.find(what) != std::string::npos, message);
		};
		const std::string good = file_of("gemma4.gguf");
		says(refused("tiny/llama.gguf", good), "drafts for models of gemma4; this model is one of llama");
		says(refused("tiny/gemma4_wide.gguf", good), "KV heads of");
		says(message_of([&] { open_model(good); }), "an assistant, which drafts for a model of gemma4; give the model");
	});
}

// Prediction layers (--draft mtp) and EAGLE-3 layers (--draft FILE): logits of the layer against
// tests/golden/prediction and eagle, in any cut; answers are those without drafts, whatever the layer guesses; what it
// has read goes on in forks and later answers.
#include "engine/core/npy.h"
#include "engine/run/memory_plan.h"
#include "models/prediction.h"
#include "tests/device/drafting.h"
#include "tests/support/gguf_builder.h"

using namespace kvrun;

namespace {

// Gated attention, dense and with experts; partial RoPE with biases; latent attention, with an embedding and an output
// of the layer's own, or with a gate; attention beside the experts, with LayerNorm; behind layers with an indexer.
// EAGLE-3: fewer tokens than the model; a width, an embedding and a norm of states of its own; the model's embedding
// and output, and the other residual.
const std::vector<Case> kEagle{{"eagle/qwen3moe"}, {"eagle/gpt_oss"}, {"eagle/gemma4"}};
const std::vector<Case> kPredicting{{"qwen35"},     {"qwen35moe"},      {"glm4moe"},       {"deepseek2_v3"},
                                    {"deepseek32"}, {"glm_dsa"},        {"hy_v3"},         {"bailingmoe3"},
                                    {"cohere2moe"}, {"eagle/qwen3moe"}, {"eagle/gpt_oss"}, {"eagle/gemma4"}};

bool is_eagle(const std::string& name) { return name.starts_with("eagle/"); }
std::string file_of(const std::string& name) { return kGolden + (is_eagle(name) ? "" : "prediction/") + name; }

EngineOptions options_of(const std::string& device, const std::string& name) {
	EngineOptions o;
	o.backend = select_test_device(device), o.model = file_of(name) + ".gguf", o.mtp = !is_eagle(name);
	if (!is_eagle(name)) return o;
	o.draft_file = std::exchange(o.model, kGolden + "tiny/" + name.substr(6) + ".gguf");
	if (name == "eagle/right") o.model = file_of(name) + ".model.gguf";
	return o;
}

std::unique_ptr<Engine> open_predicting(const std::string& device, const std::string& name, uint32_t ubatch = 512) {
	EngineOptions o = options_of(device, name);
	o.ubatch = ubatch;
	return Engine::open(o);
}

DraftLayers& layer_of(Engine& e) { return e.state_drafts()->layers(); }
void read_rows(DraftLayers& layer, const DraftRows& rows) { layer.read({&rows, 1}); }

// The most likely token by the layer's logits.
uint32_t best_token(const DraftLayers& layer, std::span<const float> logits) {
	const std::vector<uint32_t>& tokens = layer.config().fusion.tokens;
	return tokens.empty() ? best(logits) : tokens[best(logits)];
}

} // namespace

TEST_CASE("prediction: logits of the layer are those of its equations, in any cut, and of guesses that go on") {
	each_row(kPredicting, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_predicting(row.device, c.name);
		DraftLayers& layer = layer_of(*engine);
		const NpyArray ids = npy_read(file_of(c.name) + ".tokens.npy"),
		               rows = npy_read(file_of(c.name) + ".logits.npy"), h = npy_read(file_of(c.name) + ".states.npy");
		const Tokens tokens(ids.as<int32_t>().begin() + (is_eagle(c.name) ? 1 : 0), ids.as<int32_t>().end());
		const std::span<const float> want = rows.as<float>(), states = h.as<float>();
		const size_t vocab = layer.config().vocab, width = layer.state_width(), n = tokens.size();
		REQUIRE(want.size() == (n + 2) * vocab);
		REQUIRE(states.size() == n * width);
		const double most = logits_tolerance(engine->backend(), c.name, /*decode=*/true);
		Floats last;
		for (const uint32_t cut : {1u, 7u, 21u}) {
			DraftCache cache = layer.cache();
			FirstGuess guess;
			for (uint32_t at = 0; at < n; at += cut) {
				const uint32_t m = std::min(cut, uint32_t(n) - at);
				read_rows(layer, {&cache, at, std::span(tokens).subspan(at, m), states.subspan(at * width, m * width),
				                  false, &guess});
				CHECK(relative_error(layer.logits(), want.subspan((at + m - 1) * vocab, vocab)) < most);
			}
			if (last.empty()) last = keep(layer.logits());
			check_same_bits({row.device, row.number, fmt::format("{}, {} at once", c.name, cut)}, keep(layer.logits()),
			                last);
			for (uint32_t i = 0; i < 2; ++i) {
				const uint32_t token = best_token(layer, want.subspan((n + i - 1) * vocab, vocab));
				CHECK(guess.token == token);
				const Floats state = guess.state;
				read_rows(layer, {&cache, uint32_t(n) + i, {&token, 1}, state, true, &guess});
				CHECK(relative_error(layer.logits(), want.subspan((n + i) * vocab, vocab)) < most);
			}
			CHECK(cache.n_tokens() == n + 2);
		}
	});
}

TEST_CASE("prediction: hidden states of a prompt and of steps are those of transformers in front of the same layers") {
	each_row(kEagle, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_predicting(row.device, c.name, 7);
		const NpyArray ids = npy_read(file_of(c.name) + ".tokens.npy"), h = npy_read(file_of(c.name) + ".states.npy");
		const Tokens tokens(ids.as<int32_t>().begin(), ids.as<int32_t>().end() - 1);
		const size_t width = layer_of(*engine).state_width();
		const std::span<const float> want = h.as<float>();
		const double most = logits_tolerance(engine->backend(), c.name.substr(6), /*decode=*/true);
		for (const uint32_t first : {0u, 3u, 9u, 20u}) {
			Session s(*engine, with("fp16", 64));
			Floats got;
			PrefillHooks hooks;
			hooks.states = {engine->state_layers(), first, [&](uint32_t at, std::span<const float> rows) {
				                CHECK(at == first + got.size() / width);
				                got.insert(got.end(), rows.begin(), rows.end());
			                }};
			s.prefill(tokens, hooks);
			REQUIRE(got.size() + first * width == want.size());
			for (size_t i = 0; i < got.size(); i += width)
				CHECK(relative_error(std::span(got).subspan(i, width), want.subspan(first * width + i, width)) < most);
		}
		Session s(*engine, with("fp16", 64));
		s.prefill(std::span(tokens).first(1));
		for (size_t i = 1; i < tokens.size(); ++i) {
			s.decode(tokens[i]);
			CHECK(relative_error(engine->decoder().state(0), want.subspan(i * width, width)) < most);
		}
	});
}

TEST_CASE("prediction: hidden states in front of every layer are those of steps, in models of all kinds") {
	// Layers without keys and values, or attention, of their own; states; layers that run several times.
	const std::vector<Case> kinds{{"gemma4_shared"}, {"deci"}, {"nemotron_h"}, {"qwen35"}, {"nanbeige"}};
	each_row(kinds, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, kGolden + "tiny/" + c.name + ".gguf", 7);
		const uint32_t n_layers = engine->config().n_layers, dim = engine->config().dim;
		const Tokens tokens = random_tokens(20, engine->config().vocab, 5);
		const double most = logits_tolerance(engine->backend(), c.name, /*decode=*/true);
		std::vector<uint32_t> layers;
		std::vector<Floats> prompt(n_layers + 1);
		for (uint32_t l = 0; l <= n_layers; ++l) {
			layers.push_back(l);
			Session s(*engine, with("fp16", 64));
			PrefillHooks hooks;
			hooks.states = {{l}, 0, [&](uint32_t, std::span<const float> rows) {
				                prompt[l].insert(prompt[l].end(), rows.begin(), rows.end());
			                }};
			s.prefill(tokens, hooks);
			REQUIRE(prompt[l].size() == tokens.size() * dim);
		}
		engine->decoder().read_states_at(layers);
		Session s(*engine, with("fp16", 64));
		s.prefill(std::span(tokens).first(1));
		for (size_t i = 1; i < tokens.size(); ++i) {
			s.decode(tokens[i]);
			const std::span<const float> step = engine->decoder().state(0);
			for (uint32_t l = 0; l <= n_layers; ++l)
				CHECK_MESSAGE(relative_error(std::span(prompt[l]).subspan(i * dim, dim), step.subspan(l * dim, dim)) <
				                  most,
				              "layer " << l << ", token " << i);
		}
	});
}

TEST_CASE("prediction: a drafter gets the hidden states of as many of a prompt's last tokens as it asks for") {
	struct Listener final : Drafter {
		std::vector<uint32_t>& first;
		uint32_t wanted;
		Listener(std::vector<uint32_t>& f, uint32_t n) : first(f), wanted(n) {}
		void accept(std::span<const uint32_t>) override {}
		bool reads_states() const override { return true; }
		uint32_t prompt_states() const override { return wanted; }
		void states(uint32_t at, std::span<const float>) override { first.push_back(at); }
		std::span<const uint32_t> draft(uint32_t) override { return {}; }
	};
	each_row(std::vector<Case>{{"eagle/gpt_oss"}}, [](Backend&, const Case& c, const TestRow& row) {
		EngineOptions o = options_of(row.device, c.name);
		o.ubatch = 8, o.prefill_block = 16;
		const auto engine = Engine::open(o);
		const Tokens prompt = random_tokens(40, engine->config().vocab, 5);
		for (const auto& [wanted, first] : {std::pair(0u, 40u), {1u, 39u}, {10u, 30u}, {25u, 15u}, {UINT32_MAX, 0u}}) {
			Session s(*engine, with("fp16", 64));
			std::vector<uint32_t> got;
			GenerateOptions answer = answer_of(2, 3);
			answer.drafter = [&, w = wanted] { return std::make_unique<Listener>(got, w); };
			generate(s, prompt, answer);
			REQUIRE(!got.empty());
			CHECK(got.front() == first);
			CHECK(std::ranges::is_sorted(got));
			CHECK(got.back() == 40);
		}
	});
}

TEST_CASE("prediction: answers are those without drafts, and so is what the session holds") {
	each_row(kPredicting, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_predicting(row.device, c.name, 7);
		check_answers_with_drafts(*engine, row, {"fp16", "rtn4,recent_keep=8,flush=32"}, row.device == "cpu" ? 60 : 30);
	});
}

TEST_CASE("prediction: guesses of an answer are those of the layer on the whole text, read at once") {
	each_row(kPredicting, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_predicting(row.device, c.name, 7);
		const uint32_t width = layer_of(*engine).state_width();
		Tokens text = random_tokens(20, engine->config().vocab, 5);
		GuessNotes notes;
		GenerateOptions o = answer_of(60, 3, 1);
		o.drafter = [&] { return std::make_unique<Noted>(engine->state_drafts()->drafter(), notes); };
		Session s(*engine, with("fp16", 200)), whole(*engine, with("fp16", 200));
		for (int turn = 0; turn < 2; ++turn) { // the second one goes on with what the layer has read
			const size_t known = s.n_tokens();
			const GenerateResult r = generate(s, std::span(text).subspan(known), o);
			text.insert(text.end(), r.tokens.begin(), r.tokens.end());
			text.push_back(7 + turn);
		}
		Floats states;
		PrefillHooks hooks;
		hooks.states = {engine->state_layers(), 0, [&](uint32_t first, std::span<const float> rows) {
			                REQUIRE(size_t(first) * width == states.size());
			                states.insert(states.end(), rows.begin(), rows.end());
		                }};
		whole.prefill(text, hooks);
		REQUIRE(states.size() == text.size() * width);
		DraftCache cache = layer_of(*engine).cache();
		std::vector<uint32_t> guesses;
		for (uint32_t p = 0; p + 1 < text.size(); ++p) {
			FirstGuess guess;
			read_rows(layer_of(*engine),
			          {&cache, p, {&text[p + 1], 1}, std::span(states).subspan(p * width, width), false, &guess});
			guesses.push_back(guess.token);
		}
		CHECK(notes.size() > 10);
		size_t equal = 0;
		for (const auto& [length, token] : notes) equal += guesses[length - 2] == token;
		CHECK(equal >= notes.size() - notes.size() / 10); // states of steps are rounded in another way than a prompt's
	});
}

TEST_CASE("prediction: a layer that is right has all its guesses taken, in a batch with forks as well") {
	each_row(std::vector<Case>{{"right"}, {"eagle/right"}}, [](Backend&, const Case& c, const TestRow& row) {
		check_right_guesses(*open_predicting(row.device, c.name, 7), "fp16");
	});
}

TEST_CASE("prediction: several texts are guessed together as they are alone, whatever is to be read of each") {
	each_row(std::vector<Case>{{"glm4moe"}, {"eagle/gpt_oss"}, {"eagle/qwen3moe"}},
	         [](Backend&, const Case& c, const TestRow& row) {
		         check_guesses_together(*open_predicting(row.device, c.name));
	         });
}

TEST_CASE("prediction: an answer that goes on with a text, or with a part of it, finds what the layer has read") {
	each_row(std::vector<Case>{{"glm4moe"}, {"eagle/gpt_oss"}}, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_predicting(row.device, c.name);
		StateDrafts& drafts = *engine->state_drafts();
		const uint32_t width = drafts.layers().state_width();
		const Tokens text = random_tokens(40, engine->config().vocab, 5);
		const Floats states(size_t(40) * width, 0.25f);
		const auto rows = [&](uint32_t n) { return std::span(states).first(size_t(n) * width); };
		{
			const auto d = drafts.drafter();
			d->accept(std::span(text).first(30));
			d->states(0, rows(30)); // the last of them waits for its token
			CHECK(d->draft(1).size() == 1);
		}
		const auto entries = [&](std::span<const uint32_t> tokens, uint32_t position) {
			DraftedText t;
			t.tokens.assign(tokens.begin(), tokens.end());
			drafts.begin(t, position);
			if (!t.at.empty()) CHECK(t.cache->n_tokens() == t.at.size());
			return std::pair(t.at.size(), t.waiting.size() / width);
		};
		CHECK(entries(std::span(text).first(35), 30) == std::pair<size_t, size_t>(29, 1));
		CHECK(entries(std::span(text).first(35), 20) == std::pair<size_t, size_t>(20, 0));
		CHECK(entries(std::span(text).subspan(1, 20), 10).first == 0);
		Tokens other(text.begin(), text.begin() + 20);
		for (const uint32_t t : {7u, 8u, 9u}) other.push_back((text[20] + t) % engine->config().vocab);
		CHECK(entries(other, 20) == std::pair<size_t, size_t>(19, 0)); // that of token 19 had another one behind it
		while (drafts.forget()) {}
		CHECK(entries(std::span(text).first(35), 30).first == 0);
	});
}

TEST_CASE("prediction: a plan counts the memory of the layer as an engine allocates it") {
	each_row(kPredicting, [](Backend&, const Case& c, const TestRow& row) {
		if (row.device != "cpu") return; // others round up allocations
		const auto engine = open_predicting(row.device, c.name);
		const ModelMemory m = is_eagle(c.name)
		                          ? with_draft_file({}, Gguf::open(file_of(c.name) + ".gguf"), engine->config())
		                          : with_prediction({}, engine->file(), engine->config(),
		                                            read_prediction(engine->file(), engine->config()));
		CHECK(double(layer_of(*engine).bytes()) == doctest::Approx(double(m.draft_bytes)).epsilon(0.03));
		const MemoryAccount a = memory_account(m, uint64_t(1) << 30, 100);
		CHECK(a.draft == m.draft_bytes);
		CHECK(a.cache / m.cached_layers == doctest::Approx(double(a.draft_cache)).epsilon(1e-6));
		CHECK(a.draft + a.draft_cache + a.cache + a.reserve + a.activations + a.prompt == a.total);
	});
}

TEST_CASE("prediction: where its cache has no room, the layer begins anew and the answer is the same") {
	each_row(std::vector<Case>{{"right"}}, [](Backend&, const Case& c, const TestRow& row) {
		EngineOptions o = options_of(row.device, c.name);
		const Tokens prompt = random_tokens(40, 256, 5);
		o.kv_budget = size_t(128) << 10;
		const auto engine = Engine::open(o);
		Session plain(*engine, with("fp16", 300)), s(*engine, with("fp16", 300));
		const GenerateResult want = generate(plain, prompt, answer_of(200));
		plain.reset();
		const GenerateResult r = generate(s, prompt, answer_of(200, 5));
		CHECK(r.tokens == want.tokens);
		CHECK(r.draft.accepted > 100); // its cache is full after 128 tokens, 88 of which are the answer's
	});
}

TEST_CASE("prediction: files without the layer, families without one and damaged layers are refused by name") {
	each_row(std::vector<Case>{{"refused"}}, [](Backend&, const Case&, const TestRow& row) {
		const auto refused = [&](const std::string& model) {
			EngineOptions o;
			o.model = model, o.backend = select_test_device(row.device), o.mtp = true;
			return message_of([&] { Engine::open(o); });
		};
		CHECK(refused(kGolden + "tiny/qwen35.gguf").find("key qwen35.nextn_predict_layers is missing") !=
		      std::string::npos);
		CHECK(refused(kGolden + "tiny/llama.gguf").find("architecture is llama") != std::string::npos);
		// The converter wrote the key and not the layer.
		CHECK(refused(kGolden + "tiny/glm4moe.gguf").find("blk.3.nextn.enorm.weight is missing") != std::string::npos);
	});
}

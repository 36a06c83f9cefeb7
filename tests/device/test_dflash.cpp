// DFlash and DSpark layers (--draft FILE): guesses of blocks of tokens against tests/golden/dflash; answers are those
// without drafts, whatever they guess.
#include "engine/core/npy.h"
#include "engine/run/memory_plan.h"
#include "tests/device/drafting.h"

using namespace kvrun;

namespace {

// Masks that see each other; windows in some layers, DSpark from the token on, fewer tokens than the model; layers as
// Gemma 4's, all with windows, DSpark from the first mask on, masks that see earlier ones alone.
const std::vector<Case> kBlocks{{"qwen3moe"}, {"gpt_oss"}, {"gemma4"}};
constexpr uint32_t kCuts[] = {1, 6, 12, 21}; // of tools/dev/make_dflash_models.py
constexpr uint32_t kGuesses = 5;

std::string file_of(const std::string& name) { return kGolden + "dflash/" + name; }

EngineOptions options_of(const std::string& device, const std::string& name, uint32_t ubatch = 7) {
	EngineOptions o;
	o.model = kGolden + (name == "right" ? "eagle/right.model.gguf" : "tiny/" + name + ".gguf");
	o.backend = select_test_device(device), o.draft_file = file_of(name) + ".gguf", o.ubatch = ubatch;
	return o;
}

// The text, up to the token behind the last entry, in steps of `cut` rows.
void read(DraftLayers& layers, DraftCache& cache, std::span<const uint32_t> tokens, std::span<const float> states,
          uint32_t n, uint32_t cut) {
	const size_t width = layers.state_width();
	for (uint32_t at = cache.n_tokens(); at < n; at += cut) {
		const uint32_t m = std::min(cut, n - at);
		const DraftRows rows{&cache, at, tokens.subspan(at + 1, m), states.subspan(at * width, m * width)};
		layers.read({&rows, 1});
	}
}

Tokens guess(DraftLayers& layers, DraftCache& cache, uint32_t next, uint32_t most) {
	Tokens out;
	const DraftGuess g{&cache, cache.n_tokens() - 1, next, most, nullptr, &out};
	layers.guess({&g, 1});
	return out;
}

} // namespace

TEST_CASE("dflash: guesses behind texts of any length are those of the equations, read in any cut") {
	each_row(kBlocks, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = Engine::open(options_of(row.device, c.name));
		DraftLayers& layers = engine->state_drafts()->layers();
		const NpyArray ids = npy_read(file_of(c.name) + ".tokens.npy"), h = npy_read(file_of(c.name) + ".states.npy"),
		               all = npy_read(file_of(c.name) + ".logits.npy");
		const Tokens tokens(ids.as<int32_t>().begin(), ids.as<int32_t>().end());
		const std::span<const float> states = h.as<float>(), want = all.as<float>();
		const std::vector<uint32_t>& table = layers.config().fusion.tokens;
		const size_t vocab = layers.config().vocab;
		REQUIRE(want.size() == std::size(kCuts) * kGuesses * vocab);
		const double most = logits_tolerance(engine->backend(), c.name, /*decode=*/true);
		for (const uint32_t cut : {1u, 5u, 21u}) {
			DraftCache cache = layers.cache();
			for (size_t k = 0; k < std::size(kCuts); ++k) {
				const uint32_t n = kCuts[k];
				read(layers, cache, tokens, states, n, cut);
				const Tokens guesses = guess(layers, cache, tokens[n], kGuesses);
				REQUIRE(guesses.size() == kGuesses);
				for (uint32_t i = 0; i < kGuesses; ++i) {
					const std::span<const float> logits = want.subspan((k * kGuesses + i) * vocab, vocab);
					CHECK_MESSAGE(relative_error(layers.logits(i), logits) < most, n << " tokens, guess " << i);
					CHECK(guesses[i] == (table.empty() ? best(logits) : table[best(logits)]));
				}
				cache.truncate(n);
				CHECK(cache.n_tokens() == n);
			}
		}
		// No more than the block that the layers are trained on, however many are asked for.
		DraftCache cache = layers.cache();
		read(layers, cache, tokens, states, 21, 21);
		CHECK(guess(layers, cache, tokens[21], 31).size() ==
		      layers.config().block.size - (layers.config().block.from_anchor ? 0 : 1));
	});
}

TEST_CASE("dflash: answers are those without drafts, and so is what the session holds") {
	each_row(kBlocks, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = Engine::open(options_of(row.device, c.name));
		check_answers_with_drafts(*engine, row, {"fp16", "kivi2,recent_keep=8,flush=32,group=32"},
		                          row.device == "cpu" ? 60 : 20);
	});
}

TEST_CASE("dflash: guesses of an answer are those behind the same text read at once, in a second answer as well") {
	each_row(kBlocks, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = Engine::open(options_of(row.device, c.name));
		DraftLayers& layers = engine->state_drafts()->layers();
		Tokens text = random_tokens(20, engine->config().vocab, 5);
		GuessNotes notes;
		GenerateOptions o = answer_of(row.device == "cpu" ? 40 : 15, 4, 1);
		o.drafter = [&] { return std::make_unique<Noted>(engine->state_drafts()->drafter(), notes); };
		Session s(*engine, with("fp16", 200)), whole(*engine, with("fp16", 200));
		for (int turn = 0; turn < 2; ++turn) {
			const GenerateResult r = generate(s, std::span(text).subspan(s.n_tokens()), o);
			text.insert(text.end(), r.tokens.begin(), r.tokens.end());
			text.push_back(7 + turn);
		}
		Floats states;
		PrefillHooks hooks;
		hooks.states = {engine->state_layers(), 0, [&](uint32_t, std::span<const float> rows) {
			                states.insert(states.end(), rows.begin(), rows.end());
		                }};
		whole.prefill(text, hooks);
		size_t equal = 0;
		for (const auto& [length, token] : notes) {
			DraftCache cache = layers.cache();
			read(layers, cache, text, states, uint32_t(length) - 1, 21);
			equal += guess(layers, cache, text[length - 1], 4)[0] == token;
		}
		CHECK(notes.size() > 5);
		CHECK(equal >= notes.size() - notes.size() / 10); // states of steps are rounded in another way than a prompt's
	});
}

TEST_CASE("dflash: several texts are guessed together as they are alone, whatever is to be read of each") {
	each_row(kBlocks, [](Backend&, const Case& c, const TestRow& row) {
		check_guesses_together(*Engine::open(options_of(row.device, c.name)));
	});
}

TEST_CASE("dflash: layers that are right have all their guesses taken, in a batch with forks as well") {
	each_row(std::vector<Case>{{"right"}}, [](Backend&, const Case& c, const TestRow& row) {
		check_right_guesses(*Engine::open(options_of(row.device, c.name)), "turbo4");
	});
}

TEST_CASE("dflash: a plan counts the memory of the layers as an engine allocates it") {
	each_row(kBlocks, [](Backend&, const Case& c, const TestRow& row) {
		if (row.device != "cpu") return; // others round up allocations
		const auto engine = Engine::open(options_of(row.device, c.name));
		const ModelMemory m = with_draft_file({}, Gguf::open(file_of(c.name) + ".gguf"), engine->config());
		CHECK(double(engine->state_drafts()->layers().bytes()) == doctest::Approx(double(m.draft_bytes)).epsilon(0.03));
		const MemoryAccount a = memory_account(m, uint64_t(1) << 30, 100);
		CHECK(a.draft == m.draft_bytes);
		CHECK(double(a.cache) / m.cached_layers == doctest::Approx(double(a.draft_cache) / 2).epsilon(1e-6));
	});
}

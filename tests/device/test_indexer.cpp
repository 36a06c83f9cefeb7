// Attention to the tokens that an indexer chooses, under every kind of policy. That the choice is the model's is tested
// in models and recurrent.
#include "tests/device/sequences.h"
#include <doctest/doctest.h>

using namespace kvrun;

namespace {

const std::string kModel = kGolden + "tiny/qwen4exp_sparse.gguf";

// 8 bits in every tier: results are nearly those of f16, if rows attend to the same tokens. One set of tokens and one
// per head, tokens in order and ranked, codes of groups, channels and codebooks.
const std::vector<Case> kPolicies = {{"rtn8,recent_keep=8,flush=8"},
                                     {"kivi2,bits=8,group=32,recent_keep=32,flush=32"},
                                     {"zipcache,bits=8,salient.bits=8,flush=20"},
                                     {"mikv,bits=8,salient.bits=8,recent_keep=8,flush=16"},
                                     {"logquant,bits=8"},
                                     {"turbo8/8"}};

// Logits of the last row of a prompt, and of each token behind it.
Floats logits_of(Engine& e, const std::string& kv, std::span<const uint32_t> text, uint32_t n_prompt) {
	Session s(e, with(kv, 256));
	Floats got = keep(s.prefill(text.first(n_prompt)));
	const Floats next = fed(s, Tokens(text.begin() + n_prompt, text.end()));
	got.insert(got.end(), next.begin(), next.end());
	return got;
}

double error(const Floats& got, const Floats& want) {
	REQUIRE(got.size() == want.size());
	double worst = 0, largest = 0;
	for (size_t i = 0; i < got.size(); ++i) {
		worst = std::max(worst, std::abs(double(got[i]) - double(want[i])));
		largest = std::max(largest, std::abs(double(want[i])));
	}
	return worst / largest;
}

} // namespace

TEST_CASE("indexer: rows attend to the same tokens wherever a policy keeps them") {
	each_row(kPolicies, [](Backend&, const Case& c, const TestRow& row) {
		EngineOptions in_blocks;
		in_blocks.model = kModel, in_blocks.backend = select_test_device(row.device);
		in_blocks.ubatch = 16, in_blocks.prefill_block = 48;
		const auto engine = open_engine(row.device, kModel, 32), blocks = Engine::open(in_blocks);
		const Tokens text = random_tokens(150, engine->config().vocab, 3);
		const Floats want = logits_of(*engine, "fp16", text, 140);
		CHECK(error(logits_of(*engine, c.name, text, 140), want) < 5e-3);
		CHECK(error(logits_of(*blocks, c.name, text, 140), want) < 5e-3);
		Floats decoded = logits_of(*engine, c.name, text, 1);
		decoded.erase(decoded.begin(), decoded.end() - ptrdiff_t(want.size()));
		CHECK(error(decoded, want) < 5e-3);
	});
}

TEST_CASE("indexer: a policy that fetches attends to all tokens") {
	each_row(std::vector<Case>{{"specache2,fetch_mode=sync"}}, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, kModel, 32);
		Session s(*engine, with(c.name, 128));
		CHECK(s.index() == nullptr);
		const Tokens text = random_tokens(60, engine->config().vocab, 3); // nothing is packed yet
		const Floats got = logits_of(*engine, c.name, text, 50), sparse = logits_of(*engine, "fp16", text, 50);
		CHECK(error(got, sparse) > 2e-2); // another result, which a warning announces
	});
}

TEST_CASE("indexer: drafts that are taken back leave no keys") {
	each_row(std::vector<Case>{{"fp16"}, {"rtn8,recent_keep=8,flush=64"}},
	         [](Backend&, const Case& c, const TestRow& row) {
		         const auto engine = open_engine(row.device, kModel, 32);
		         const Tokens text = random_tokens(48, engine->config().vocab, 5),
		                      wrong = random_tokens(5, engine->config().vocab, 6);
		         Session plain(*engine, with(c.name, 128)), s(*engine, with(c.name, 128));
		         const std::span<const uint32_t> prompt = std::span(text).first(30);
		         plain.prefill(prompt), s.prefill(prompt);
		         const Floats want = fed(plain, Tokens(text.begin() + 30, text.end()));
		         Floats got;
		         for (size_t i = 30; i < text.size(); ++i) { // each token with wrong ones behind it
			         const uint32_t n = std::min(s.step_tokens(6), 6u) - 1;
			         const SessionRow step{&s, text[i], 0, std::span(wrong).first(n)};
			         const std::span<const RowLogits> logits = decode_step({&step, 1});
			         got.insert(got.end(), logits[0].all.begin(), logits[0].all.end());
			         s.truncate(uint32_t(i) + 1);
			         CHECK(s.index()->n_tokens() == i + 1);
		         }
		         check_same_bits({row.device, row.number, c.name}, got, want);
	         });
}

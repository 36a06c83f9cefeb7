// Attention to the tokens that an indexer chooses, under every kind of policy. That the choice is the model's is tested
// in models and recurrent.
#include "engine/run/session_file.h"
#include "tests/device/sequences.h"
#include "tests/support/compare.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"
#include <doctest/doctest.h>
#include <fstream>

using namespace kvrun;

namespace {

// Blocks of four tokens; tokens, by an indexer on attention's latent of queries; the same, and every other layer shares
// the choice of the one before it; gated blocks of two, between recurrent layers; RoPE on the last channels; blocks of
// four by each KV head.
constexpr const char* kModels[] = {"qwen4exp_sparse", "deepseek32", "glm_dsa", "glm5_next", "hy_v4", "minimax_m3"};
std::string path_of(std::string_view model) { return fmt::format("{}tiny/{}.gguf", kGolden, model); }
const std::string kModel = path_of(kModels[0]);

// 8 bits in every tier: results are nearly those of f16, if rows attend to the same tokens. One set of tokens and one
// per head, tokens in order and ranked, codes of groups, channels and codebooks.
const std::vector<Case> kPolicies = {{"rtn8,recent_keep=8,flush=8"},
                                     {"kivi2,bits=8,group=32,recent_keep=32,flush=32"},
                                     {"zipcache,bits=8,salient.bits=8,flush=20"},
                                     {"mikv,bits=8,salient.bits=8,recent_keep=8,flush=16"},
                                     {"logquant,bits=8"},
                                     {"turbo8/8"}};
bool applies(const Config& c, std::string_view policy) { // no channels of a latent are balanced against queries
	return !latent_layer(c) || !policy.starts_with("mikv");
}

// Logits of the last row of a prompt, and of each token behind it.
Floats logits_of(Engine& e, const std::string& kv, std::span<const uint32_t> text, uint32_t n_prompt) {
	Session s(e, with(kv, 256));
	Floats got = keep(s.prefill(text.first(n_prompt)));
	const Floats next = fed(s, Tokens(text.begin() + n_prompt, text.end()));
	got.insert(got.end(), next.begin(), next.end());
	return got;
}

// n layers of a file, from one on. What the first indexer chooses depends on no cache, and a policy of 8 bits would
// change the choice of a later one among 140 tokens.
void cut_layers(const std::string& from, uint32_t first, uint32_t n, const std::string& to) {
	const Gguf g = Gguf::open(from);
	const std::string arch(g.text("general.architecture"));
	const uint32_t all = g.u32(arch + ".block_count");
	GgufBuilder b;
	for (const GgufEntry& e : g.entries()) {
		std::string value(reinterpret_cast<const char*>(e.bytes.data()), e.bytes.size());
		if (e.type == GgufType::Array) {
			const uint64_t count = e.count == all ? n : e.count; // a number for each layer
			if (count != e.count) value.resize(value.size() / all * n);
			value = b.raw(uint32_t(e.element)) + b.raw(count) + value;
		}
		if (e.type == GgufType::String) value = b.raw(e.count ? uint64_t(e.bytes.size()) : 0) + value;
		b.set(std::string(e.key), e.type, value);
	}
	b.u32(arch + ".block_count", n).erase(arch + ".attention.indexer.types"); // the tensors say the same
	if (first) b.u32(arch + ".leading_dense_block_count", 0);
	for (const GgufTensor& t : g.tensors()) {
		const uint64_t l = layer_of_tensor(t.name);
		const bool of_layer = t.name.starts_with("blk.");
		if (of_layer && (l < first || l >= first + n)) continue;
		std::string data(t.bytes, 0), name(t.name);
		g.read(t, 0, std::as_writable_bytes(std::span(data)));
		if (of_layer) name = fmt::format("blk.{}{}", l - first, name.substr(name.find('.', 4)));
		b.tensor(name, t.type, {t.shape, t.shape + t.n_dims}, data);
	}
	const std::vector<std::byte> bytes = b.bytes();
	std::ofstream(to, std::ios::binary)
	    .write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
}

// Rows MODEL:POLICY.
std::vector<Case> of_models(std::span<const Case> policies) {
	std::vector<Case> rows;
	for (const char* model : kModels)
		for (const Case& c : policies) rows.push_back({fmt::format("{}:{}", model, c.name)});
	return rows;
}
struct ModelAndPolicy {
	std::string model, policy;
	explicit ModelAndPolicy(const std::string& row)
	    : model(path_of(row.substr(0, row.find(':')))), policy(row.substr(row.find(':') + 1)) {}
};

} // namespace

TEST_CASE("indexer: rows attend to the same tokens wherever a policy keeps them") {
	const TempFolder folder;
	each_row(of_models(kPolicies), [&](Backend&, const Case& c, const TestRow& row) {
		auto [model, policy] = ModelAndPolicy(c.name);
		if (model != kModel) {
			const std::string whole = std::exchange(model, folder.path / (row.device + ".gguf"));
			cut_layers(whole, whole.find("/minimax") != whole.npos ? 1 : 0, whole.find("/glm") != whole.npos ? 2 : 1,
			           model);
		}
		EngineOptions in_blocks;
		in_blocks.model = model, in_blocks.backend = select_test_device(row.device);
		in_blocks.ubatch = 16, in_blocks.prefill_block = 48;
		const auto engine = open_engine(row.device, model, 32), blocks = Engine::open(in_blocks);
		if (!applies(engine->config(), policy)) return;
		const Tokens text = random_tokens(150, engine->config().vocab, 3);
		const Floats want = logits_of(*engine, "fp16", text, 140);
		CHECK(relative_difference(logits_of(*engine, policy, text, 140), want) < 5e-3);
		CHECK(relative_difference(logits_of(*blocks, policy, text, 140), want) < 5e-3);
		Floats decoded = logits_of(*engine, policy, text, 1);
		decoded.erase(decoded.begin(), decoded.end() - ptrdiff_t(want.size()));
		CHECK(relative_difference(decoded, want) < 5e-3);
	});
}

TEST_CASE("indexer: a policy that fetches attends to all tokens") {
	each_row(std::vector<Case>{{"specache2,fetch_mode=sync"}}, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, kModel, 32);
		Session s(*engine, with(c.name, 128));
		CHECK(s.index() == nullptr);
		const Tokens text = random_tokens(60, engine->config().vocab, 3); // nothing is packed yet
		const Floats got = logits_of(*engine, c.name, text, 50), sparse = logits_of(*engine, "fp16", text, 50);
		CHECK(relative_difference(got, sparse) > 2e-2); // another result, which a warning announces
	});
}

// What they give a token is added to one sum, and work items of a dispatch do not wait for each other.
TEST_CASE("indexer: rows that chose different tokens add to sums one after the other") {
	each_row(std::vector<Case>{{"h2o,recent_keep=16,flush=64,budget=100"}},
	         [](Backend&, const Case& c, const TestRow& row) {
		         const auto engine = open_engine(row.device, path_of("deepseek32"), 32);
		         Session one(*engine, with(c.name, 256)), two(*engine, with(c.name, 256));
		         for (Session* s : {&one, &two}) s->prefill(random_tokens(40, engine->config().vocab, 5)), s->decode(3);
		         const RowChoice a{0, 0, 40}, b{16, 0, 40};
		         const KvSequence &first = one.seq(), &second = two.seq();
		         const ScoreRows rows[] = {{&first, 0, 1, 1, nullptr, &a},
		                                   {&first, 1, 1, 1, nullptr, &b},
		                                   {&second, 2, 1, 1, nullptr, &a},
		                                   {&first, 3, 1, 1, nullptr, &a},
		                                   {&first, 4, 1, 1, nullptr, &b}};
		         StepTable table;
		         ScorePlan plan;
		         const Buffer none;
		         const auto groups = [&](std::span<const ScoreRows> of) {
			         plan.build(0, of, table);
			         return plan.read(one.seq().pool(), none, View(), 1).groups;
		         };
		         const uint32_t n_items = groups(std::span(rows).first(1))[0].n_work; // of a row
		         REQUIRE(groups(rows).size() == 2);
		         CHECK(groups(rows)[0].apart);
		         CHECK(!groups(rows)[1].apart);
		         CHECK(groups(rows)[0].n_work + groups(rows)[1].n_work == 5 * n_items);
		         CHECK(groups(std::span(rows).subspan(1, 2)).size() == 1); // sequences have sums of their own
	         });
}

TEST_CASE("indexer: drafts that are taken back leave no keys") {
	each_row(of_models(std::vector<Case>{{"fp16"}, {"rtn8,recent_keep=8,flush=64"}}),
	         [](Backend&, const Case& c, const TestRow& row) {
		         const auto [model, policy] = ModelAndPolicy(c.name);
		         const auto engine = open_engine(row.device, model, 32);
		         const Tokens text = random_tokens(48, engine->config().vocab, 5),
		                      wrong = random_tokens(5, engine->config().vocab, 6);
		         Session plain(*engine, with(policy, 128)), s(*engine, with(policy, 128));
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

TEST_CASE("indexer: pieces of a prompt, rows of one step, forks and restored sessions have the same bits") {
	const TempFolder folder;
	each_row(of_models(std::vector<Case>{{"fp16"}, {"rtn8,recent_keep=8,flush=16"}}),
	         [&](Backend&, const Case& c, const TestRow& row) {
		         const auto [model, policy] = ModelAndPolicy(c.name);
		         const auto engine = open_engine(row.device, model, 16), pieces = open_engine(row.device, model, 7);
		         const auto check = [&](const char* what, const Floats& got, const Floats& want) {
			         check_same_bits({row.device, row.number, c.name + ", " + what}, got, want);
		         };
		         std::vector<Tokens> next;
		         std::vector<Floats> alone;
		         std::vector<std::unique_ptr<Session>> sessions;
		         for (uint32_t i = 0; i < 3; ++i) {
			         const Tokens prompt = random_tokens(9 + 17 * i, engine->config().vocab, 7 + i);
			         next.push_back(random_tokens(5, engine->config().vocab, 70 + i));
			         Session s(*pieces, with(policy, 64));
			         s.prefill(prompt);
			         alone.push_back(fed(s, next[i]));
			         sessions.push_back(std::make_unique<Session>(*engine, with(policy, 64)));
			         sessions[i]->prefill(prompt);
		         }
		         const auto fork = sessions[2]->fork();
		         const std::string path = (folder.path / (row.device + std::to_string(row.number) + ".kvs")).string();
		         save_session(*sessions[2], path, {});
		         const std::vector<Floats> got = fed_together(sessions, next);
		         for (uint32_t i = 0; i < 3; ++i) check("together", got[i], alone[i]);
		         check("fork", fed(*fork, next[2]), alone[2]);
		         check("file", fed(*restore_session(*engine, path), next[2]), alone[2]);
	         });
}

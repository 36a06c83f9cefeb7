// Latent attention (MLA): one latent per token, which is keys and values, and a rotated key. Cuts of a prompt, steps of
// several sequences, forks, files and rewinds have the bits of a sequence that was read in one go; policies pack
// latents.
#include "engine/core/f16.h"
#include "engine/kv_device/read_plan.h"
#include "engine/kv_device/readback.h"
#include "engine/run/session_file.h"
#include "tests/device/golden.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"
#include <doctest/doctest.h>
#include <fstream>

using namespace kvrun;

namespace {

// Queries of the stream and of a vector of their own; softmax and sigmoid of experts, in groups; as wide as real ones.
const std::vector<Case> kLatent = {{"deepseek2_lite"}, {"deepseek2_v2"}, {"deepseek2_v3"}, {"deepseek2_wide"},
                                   {"deepseek32"},     {"glm_dsa"},      {"hy_v4"}};
const std::vector<Case> kTwo = {{"deepseek2_v3"}, {"deepseek2_wide"}};

// The file as programs before 2025-04 made it: attn_kv_b in place of attn_k_b and attn_v_b, lengths of heads.
std::vector<std::byte> with_kv_b(const Gguf& g, uint32_t n_heads, const Latent& t) {
	GgufBuilder b;
	const std::string key = std::string(g.text("general.architecture")) + ".";
	for (const GgufEntry& e : g.entries()) {
		std::string value(reinterpret_cast<const char*>(e.bytes.data()), e.bytes.size());
		if (e.type == GgufType::Array) value = b.raw(uint32_t(e.element)) + b.raw(e.count) + value;
		if (e.type == GgufType::String) value = b.raw(e.count ? uint64_t(e.bytes.size()) : 0) + value;
		b.set(std::string(e.key), e.type, value);
	}
	b.erase(key + "attention.key_length_mla").erase(key + "attention.value_length_mla");
	b.u32(key + "attention.key_length", t.nope_dim + t.rope_dim).u32(key + "attention.value_length", t.v_dim);
	b.u32(key + "attention.head_count_kv", n_heads);
	const auto data = [&](const GgufTensor& of) {
		std::string s(of.bytes, 0);
		g.read(of, 0, std::as_writable_bytes(std::span(s)));
		return s;
	};
	for (const GgufTensor& of : g.tensors()) {
		const std::string name(of.name);
		const size_t k_b = name.find(".attn_k_b.");
		if (name.find(".attn_v_b.") != name.npos) continue;
		if (k_b == name.npos) {
			b.tensor(name, of.type, {of.shape, of.shape + of.n_dims}, data(of));
			continue;
		}
		const std::string before = name.substr(0, k_b), keys = data(of),
		                  values = data(*g.find_tensor(before + ".attn_v_b.weight"));
		REQUIRE(of.type == DType::F16);
		std::string all;
		for (uint32_t h = 0; h < n_heads; ++h) {
			for (uint32_t k = 0; k < t.nope_dim; ++k)
				for (uint32_t r = 0; r < t.rank; ++r)
					all += keys.substr(((size_t(h) * t.rank + r) * t.nope_dim + k) * 2, 2);
			all += values.substr(size_t(h) * t.v_dim * t.rank * 2, size_t(t.v_dim) * t.rank * 2);
		}
		b.tensor(before + ".attn_kv_b.weight", of.type, {t.rank, n_heads * (t.nope_dim + t.v_dim)}, all);
	}
	return b.bytes();
}

} // namespace

TEST_CASE("latent: a file with attn_kv_b gives the bits of one with attn_k_b and attn_v_b") {
	const TempFolder folder;
	each_row(std::vector<Case>{{"deepseek2_lite"}, {"deepseek2_wide"}}, [&](Backend&, const Case& c,
	                                                                        const TestRow& row) {
		const Golden g(c.name);
		const Model model = open_model(g.model);
		const std::string path = folder.path / (row.device + c.name + ".gguf");
		const std::vector<std::byte> bytes = with_kv_b(model.file, model.config.n_heads, model.config.layers[0].latent);
		std::ofstream(path, std::ios::binary)
		    .write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
		const auto split = open_engine(row.device, g.model, 64), whole = open_engine(row.device, path, 64);
		Session a(*split, with("fp16", 64)), b(*whole, with("fp16", 64));
		const Floats want = prompt_logits(a, g.tokens);
		check_same_bits(row, prompt_logits(b, g.tokens), want);
		CHECK(g.error(0, want) < logits_tolerance(split->backend(), c.name, /*decode=*/false));
	});
}

TEST_CASE("latent: any cut of a prompt has the same bits, decode steps between turns the right logits") {
	each_row(kLatent, [](Backend&, const Case& c, const TestRow& row) {
		check_cuts(c.name, row);
		check_blocks(c.name, row.device);
	});
}

TEST_CASE("latent: the expanded form of prompts") {
	const std::vector<Case> all = {{"deepseek2_lite"}, {"deepseek2_v2"}, {"deepseek2_v3"}, {"deepseek2_wide"}};
	each_row(all, [](Backend&, const Case& c, const TestRow& row) {
		const Golden g(c.name);
		const auto open = [&](LatentForm form, uint32_t ubatch, uint32_t block) {
			EngineOptions o;
			o.model = g.model, o.backend = select_test_device(row.device), o.latent_form = form;
			o.ubatch = ubatch, o.prefill_block = block;
			return Engine::open(o);
		};
		const auto engine = open(LatentForm::Expanded, 64, 0), absorbed = open(LatentForm::Absorbed, 64, 0);
		const double most = logits_tolerance(engine->backend(), c.name, /*decode=*/false);
		Session a(*engine, with("fp16", 64)), b(*absorbed, with("fp16", 64));
		const Floats want = prompt_logits(a, g.tokens);
		CHECK(g.error(0, want) < most);
		const Floats other = prompt_logits(b, g.tokens);
		CHECK(relative_error(other, want) < most);
		CHECK(other != want); // another computation
		for (const uint32_t ubatch : {1u, 7u}) {
			const auto cut = open(LatentForm::Expanded, ubatch, 0);
			Session s(*cut, with("fp16", 64));
			check_same_bits({row.device, row.number, fmt::format("{}, {} rows at a time", c.name, ubatch)},
			                prompt_logits(s, g.tokens), want);
		}
		const auto blocks = open(LatentForm::Expanded, 4, 7); // older and new tokens would be longer than a block
		Session s(*blocks, with("fp16", 64));
		CHECK(g.error(0, prompt_logits(s, g.tokens)) < most);
		a.reset(), b.reset();
		CHECK(g.error(0, prompt_logits(a, g.part(0, 9))) < most);
		const Floats rest = prompt_logits(a, g.part(9)); // behind nine older tokens
		CHECK(g.error(9, rest) < most);
		prompt_logits(b, g.part(0, 9));
		CHECK(prompt_logits(b, g.part(9)) != rest);
	});
}

TEST_CASE("latent: the expanded form behind packed tokens") {
	each_row(std::vector<Case>{{"deepseek2_v3"}, {"deepseek2_wide"}}, [](Backend&, const Case& c, const TestRow& row) {
		const Golden g(c.name);
		const auto open = [&](LatentForm form, uint32_t ubatch) {
			EngineOptions o;
			o.model = g.model, o.backend = select_test_device(row.device), o.latent_form = form, o.ubatch = ubatch;
			return Engine::open(o);
		};
		const auto engine = open(LatentForm::Expanded, 64), absorbed = open(LatentForm::Absorbed, 64),
		           cut = open(LatentForm::Expanded, 7);
		const double most = logits_tolerance(engine->backend(), c.name, /*decode=*/false);
		const Tokens first = random_tokens(50, engine->config().vocab, 3),
		             more = random_tokens(20, engine->config().vocab, 4),
		             step = random_tokens(4, engine->config().vocab, 5);
		for (const char* policy :
		     {"turbo4,recent_keep=0,flush=32,group=32,sinks=0", "rtn8,recent_keep=0,flush=32,sinks=0",
		      "kivi4,group=32,recent_keep=8,flush=32", "streaming,sinks=4,recent=33"}) {
			CAPTURE(policy);
			Session x(*engine, with(policy, 90)), y(*absorbed, with(policy, 90)), z(*cut, with(policy, 90));
			// Tokens are packed from the latents, whatever the form.
			CHECK(relative_error(prompt_logits(x, first), prompt_logits(y, first)) < most);
			prompt_logits(z, first);
			const Floats want = prompt_logits(y, more), got = prompt_logits(x, more);
			CHECK(relative_error(got, want) < 3 * most);
			CHECK(got != want); // another computation
			check_same_bits({row.device, row.number, fmt::format("{} {}, 7 rows at a time", c.name, policy)},
			                prompt_logits(z, more), got);
			CHECK(relative_error(fed(x, step), fed(y, step)) < 3 * most); // decode steps go on from either
		}
	});
}

TEST_CASE("latent: tokens are ranked in the expanded form as in the absorbed one") {
	each_row(kTwo, [](Backend&, const Case& c, const TestRow& row) {
		const Golden g(c.name);
		for (const std::string policy :
		     {"zipcache,group=32,flush=25,recent_keep=8", "h2o,recent_keep=8,flush=16,budget=40"}) {
			CAPTURE(policy);
			std::vector<uint8_t> absorbed_tiers;
			Floats expanded;
			for (const auto& [form, ubatch] :
			     {std::pair{LatentForm::Absorbed, 64u}, {LatentForm::Expanded, 64u}, {LatentForm::Expanded, 7u}}) {
				EngineOptions o;
				o.model = g.model, o.backend = select_test_device(row.device), o.latent_form = form, o.ubatch = ubatch;
				const auto engine = Engine::open(o);
				Session s(*engine, with(policy, 300));
				Floats got = keep(s.prefill(random_tokens(150, engine->config().vocab, 3)));
				const Floats more =
				    prompt_logits(s, random_tokens(40, engine->config().vocab, 4)); // behind ranked ones
				got.insert(got.end(), more.begin(), more.end());
				const std::vector<uint8_t> tiers = s.tiers(0, 0);
				if (form == LatentForm::Absorbed) {
					absorbed_tiers = tiers;
					continue;
				}
				REQUIRE(tiers.size() == absorbed_tiers.size());
				size_t same = 0; // but for tokens whose attention is nearly the same
				for (size_t i = 0; i < tiers.size(); ++i) same += tiers[i] == absorbed_tiers[i];
				CHECK(same >= tiers.size() * 95 / 100);
				if (expanded.empty()) expanded = got;
				check_same_bits({row.device, row.number, fmt::format("{} {}, {} rows", c.name, policy, ubatch)}, got,
				                expanded);
			}
		}
	});
}

TEST_CASE("latent: unpack_latents gives the tokens of every format as rows") {
	each_row(kTwo, [](Backend&, const Case& c, const TestRow& row) {
		const Golden g(c.name);
		const auto engine = open_engine(row.device, g.model, 64);
		Backend& be = engine->backend();
		const Latent& t = engine->config().layers[0].latent;
		const std::string window = ",recent_keep=5,flush=32";
		for (const std::string policy :
		     {"fp16", "rtn2,group=32", "turbo3,param_bits=8,sinks=0,rope.bits=4", "rtn8,group=32", "kivi2,group=32",
		      "kivi1,group=32,param_bits=8", "turbo3,sinks=0", "turbo2,param_bits=16,mean=off,rotate=off", "turbo4",
		      "logquant", "mixed4/1", "xquant", "zipcache,group=32", "rtn4,group=32,recent_keep=5,flush=30",
		      "streaming,sinks=4,recent=33"}) {
			CAPTURE(policy);
			const bool bare = policy.find("flush") != policy.npos || policy == "fp16" || policy == "logquant" ||
			                  policy == "mixed4/1" || policy == "xquant" || policy.starts_with("streaming");
			Session s(*engine, with(bare ? policy : policy + window, 300));
			s.prefill(random_tokens(150, engine->config().vocab, 4));
			fed(s, random_tokens(7, engine->config().vocab, 5));
			const KvSequence& seq = s.seq();
			const std::vector<LayerValues> values = read_back(be, seq);
			const uint32_t capacity = seq.n_tokens() + 2;
			const Buffer k = be.alloc(size_t(capacity) * t.rank * 2, Mem::Device, "k"),
			             v = be.alloc(size_t(capacity) * t.rope_dim * 2, Mem::Device, "v");
			const KvRows to{view(k, 0, DType::F16, 1, capacity, t.rank),
			                view(v, 0, DType::F16, 1, capacity, t.rope_dim), 1}; // the first row stays
			for (uint32_t l = 0; l < engine->config().n_layers; ++l) {
				CAPTURE(l);
				be.at_layer(l);
				const std::vector<uint16_t> before_k(size_t(capacity) * t.rank, 0x3555),
				    before_v(size_t(capacity) * t.rope_dim, 0x3555);
				be.write(k, 0, std::as_bytes(std::span(before_k)));
				be.write(v, 0, std::as_bytes(std::span(before_v)));
				ReadPlan plan;
				StepTable table;
				Buffer words;
				const uint32_t n = plan.build_rows(l, seq, table);
				table.upload(be, words);
				be.unpack_latents(to, plan.read(seq.pool(), words, {}, 1));
				std::vector<uint16_t> got_k(before_k.size()), got_v(before_v.size());
				be.read(k, 0, std::as_writable_bytes(std::span(got_k)));
				be.read(v, 0, std::as_writable_bytes(std::span(got_v)));
				be.submit();
				be.wait();
				uint32_t r = 1;
				Floats latents, want_latents, keys, want_keys;
				for (const Tier tier : {Tier::F16, Tier::Salient, Tier::Regular})
					for (const uint32_t position : seq.cache().positions(l, tier, 0)) {
						if (position == kNone) continue;
						REQUIRE(r < capacity);
						for (uint32_t i = 0; i < t.rank; ++i) {
							latents.push_back(f16_to_f32(got_k[size_t(r) * t.rank + i]));
							want_latents.push_back(values[l].k[size_t(position) * t.rank + i]);
						}
						for (uint32_t i = 0; i < t.rope_dim; ++i) {
							keys.push_back(f16_to_f32(got_v[size_t(r) * t.rope_dim + i]));
							want_keys.push_back(values[l].v[size_t(position) * t.rope_dim + i]);
						}
						++r;
					}
				CHECK(r == n + 1);
				CHECK((policy.starts_with("streaming") ? n < 60 : n == seq.n_tokens()));
				CHECK(relative_error(latents, want_latents) < 5e-4); // of rounding to f16
				CHECK(relative_error(keys, want_keys) < 5e-4);
				for (const uint32_t untouched : {0u, r}) {
					CHECK(got_k[size_t(untouched) * t.rank] == 0x3555);
					CHECK(got_v[size_t(untouched) * t.rope_dim + t.rope_dim - 1] == 0x3555);
				}
			}
		}
	});
}

TEST_CASE("latent: a prompt is expanded where that takes fewer multiplications") {
	const Latent t{.rank = 512, .rope_dim = 64, .nope_dim = 128, .v_dim = 128, .q_rank = 0};
	CHECK_FALSE(expanding_pays(t, 150, 0, false));
	CHECK(expanding_pays(t, 160, 0, false));
	CHECK_FALSE(expanding_pays(t, 180, 4096, false)); // keys and values of older tokens
	CHECK(expanding_pays(t, 260, 4096, false));
	CHECK_FALSE(expanding_pays(t, 250, 0, /*ranked=*/true)); // queries of the absorbed form
	CHECK(expanding_pays(t, 300, 0, /*ranked=*/true));
	CHECK(can_expand(t));
	CHECK_FALSE(can_expand({.rank = 64, .rope_dim = 64, .nope_dim = 128, .v_dim = 128, .q_rank = 0}));
	CHECK_FALSE(can_expand({}));
}

TEST_CASE("latent: rows of one step have the bits each has alone; forks, undo and files too") {
	const TempFolder folder;
	each_row(kTwo, [&](Backend&, const Case& c, const TestRow& row) {
		const Golden g(c.name);
		const auto engine = open_engine(row.device, g.model, 16);
		const auto vocab = engine->config().vocab;
		for (const std::string policy : {"fp16", "turbo3,recent_keep=0,flush=32,group=32,sinks=0"}) {
			CAPTURE(policy);
			constexpr uint32_t kSequences = 3, kSteps = 3;
			std::vector<Tokens> next;
			std::vector<Floats> alone;
			std::vector<std::unique_ptr<Session>> sessions;
			for (uint32_t i = 0; i < kSequences; ++i) {
				const Tokens prompt = random_tokens(30 + 40 * i, vocab, 7 + i);
				next.push_back(random_tokens(kSteps, vocab, 70 + i));
				Session s(*engine, with(policy, 200));
				s.prefill(prompt);
				alone.push_back(fed(s, next[i]));
				sessions.push_back(std::make_unique<Session>(*engine, with(policy, 200)));
				sessions[i]->prefill(prompt);
			}
			const auto fork = sessions[0]->fork();
			const std::vector<Floats> got = fed_together(sessions, next);
			for (uint32_t i = 0; i < kSequences; ++i)
				check_same_bits({row.device, row.number, c.name}, got[i], alone[i]);
			check_same_bits({row.device, row.number, c.name + " fork"}, fed(*fork, next[0]), alone[0]);
			const std::string path = folder.path / (row.device + c.name + ".kvs");
			save_session(*sessions[1], path, {});
			const auto back = restore_session(*engine, path);
			const Tokens more = random_tokens(3, vocab, 5);
			const Floats want = fed(*sessions[1], more);
			check_same_bits({row.device, row.number, c.name + " file"}, fed(*back, more), want);
			const uint32_t to = sessions[1]->n_tokens() - 3;
			REQUIRE(sessions[1]->exact_position(to) == to);
			sessions[1]->truncate(to);
			check_same_bits({row.device, row.number, c.name + " undo"}, fed(*sessions[1], more), want);
		}
	});
}

TEST_CASE("latent: a token takes its latent and its rotated key, once") {
	each_row(kTwo, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, Golden(c.name).model, 16);
		const Config& cfg = engine->config();
		const Latent& t = cfg.layers[0].latent;
		const KvPlan plan = make_device_plan(parse_policy("fp16"), engine->kv_shape());
		CHECK(bytes_at(plan, 1000).f16 == size_t(1000) * cfg.n_layers * 2 * (t.rank + t.rope_dim));
		const KvPlan two = make_device_plan(parse_policy("rtn2,group=32"), engine->kv_shape());
		const LayerPlan& L = two.layers[0];
		CHECK(L.tier[int(Tier::Regular)].fmt.k.bits == 2);
		CHECK(L.tier[int(Tier::Regular)].fmt.v.bits == 8);
		const KvPlan four = make_device_plan(parse_policy("turbo3,rope.bits=4"), engine->kv_shape());
		CHECK(four.layers[0].tier[int(Tier::Regular)].fmt.v.bits == 4);
	});
}

TEST_CASE("latent: policies pack latents; more bits are nearer to f16") {
	each_row(kTwo, [](Backend&, const Case& c, const TestRow& row) {
		const Golden g(c.name);
		const auto engine = open_engine(row.device, g.model, 64);
		const Tokens prompt = random_tokens(150, engine->config().vocab, 4),
		             next = random_tokens(6, engine->config().vocab, 9);
		const auto answer = [&](const std::string& policy) {
			Session s(*engine, with(policy, 300));
			s.prefill(prompt);
			return fed(s, next);
		};
		const Floats exact = answer("fp16");
		const std::string window = ",recent_keep=0,flush=32";
		for (const std::string family :
		     {"rtn{},group=32,rope.bits=8", "kivi{},group=32", "turbo{},group=32,sinks=0",
		      "turbo{},group=32,sinks=0,param_bits=16,mean=off,rotate=off", "kivi{},group=32,param_bits=8"}) {
			double last = 1e9;
			for (const int bits : {2, 4}) {
				const std::string policy = fmt::format(fmt::runtime(family + window), bits);
				CAPTURE(policy);
				const double error = relative_error(answer(policy), exact);
				CHECK(error > 1e-5);
				CHECK(error < 0.7 * last);
				last = error;
			}
			CHECK(last < 0.12);
		}
		CHECK(relative_error(answer("rtn8,group=32" + window), exact) < 0.02);
		const auto rope = [&](int bits) { // of rotated keys, beside the same latents
			return relative_error(answer(fmt::format("rtn8,group=32,rope.bits={}", bits) + window), exact);
		};
		CHECK(rope(8) < 0.7 * rope(4));
		CHECK(answer("turbo3,group=32,rope.bits@0=8,rope.bits=4" + window) !=
		      answer("turbo3,group=32,rope.bits=4" + window));
		for (const std::string policy : {"mixed4/1", "logquant", "xquant", "asymkv1/1", "streaming"})
			CHECK(relative_error(answer(policy), exact) < 2);
	});
}

TEST_CASE("latent: tokens are ranked by the attention that they receive, in any cut of a prompt and in decode steps") {
	each_row(kTwo, [](Backend&, const Case& c, const TestRow& row) {
		const Golden g(c.name);
		const uint32_t n = 150;
		for (const std::string policy :
		     {"zipcache,group=32,flush=25,recent_keep=8", "h2o,recent_keep=8,flush=16,budget=40"}) {
			CAPTURE(policy);
			std::vector<std::vector<uint8_t>> tiers;
			Floats want;
			for (const uint32_t ubatch : {64u, 7u}) {
				const auto engine = open_engine(row.device, g.model, ubatch);
				const Tokens tokens = random_tokens(n, engine->config().vocab, 3);
				Session s(*engine, with(policy, 300));
				Floats got = keep(s.prefill(tokens));
				const Floats more = fed(s, random_tokens(40, engine->config().vocab, 4));
				got.insert(got.end(), more.begin(), more.end());
				if (want.empty()) want = got;
				check_same_bits({row.device, row.number, c.name + " " + policy}, got, want);
				tiers.push_back(s.tiers(0, 0));
				CHECK(tiers[0] == tiers.back());
				std::vector<size_t> of(3);
				for (const uint8_t t : tiers.back())
					if (t < 3) ++of[t];
				CHECK(of[size_t(Tier::F16)] >= 8);
				if (policy.starts_with("zipcache")) CHECK((of[1] > 20 && of[2] > 20));
			}
		}
	});
}

TEST_CASE("latent: what ranks tokens is what the cpu computes") {
	each_row(std::vector<Case>{{"deepseek2_v3"}}, [](Backend&, const Case& c, const TestRow& row) {
		for (const char* kv : {"h2o,recent_keep=4,flush=8,budget=12", "zipcache,recent_keep=8,flush=32,group=32"})
			check_sequence(row, c.name, kv, 20);
	});
}

TEST_CASE("latent: what is not there is refused by name") {
	each_row(std::vector<Case>{{"deepseek2_v3"}}, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, Golden(c.name).model, 16);
		for (const auto& [policy, why] : std::vector<std::pair<std::string, std::string>>{
		         {"mikv", "balances keys"}, {"rtn4,balance=on", "balances keys"}}) {
			const std::string kv = policy;
			CAPTURE(kv);
			CHECK_THROWS_WITH_AS(Session(*engine, with(policy, 64)), doctest::Contains(why.c_str()), Error);
		}
		CHECK_THROWS_WITH_AS(make_device_plan(parse_policy("turbo3,rope.bits=4"), KvShape{2, 2, 64}),
		                     doctest::Contains("rope.bits is of models with latent attention"), Error);
	});
}

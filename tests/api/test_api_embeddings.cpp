// libkvrun as an application uses it: vectors of texts, scores of documents, models that encode.
#include "objects.h"

#include <algorithm>

using namespace api;

namespace {

const std::string kEncoders = KVRUN_SOURCE_DIR "/tests/golden/encoder/";
using Vector = std::vector<float>;

kvrun_engine_info info_of(const Engine& e) {
	kvrun_engine_info i = KVRUN_ENGINE_INFO_INIT;
	REQUIRE(kvrun_engine_get_info(e.h, &i) == KVRUN_OK);
	return i;
}

struct Texts {
	std::vector<uint32_t> tokens;
	std::vector<size_t> counts;
	void add(const std::vector<uint32_t>& text) {
		tokens.insert(tokens.end(), text.begin(), text.end());
		counts.push_back(text.size());
	}
};

kvrun_status embed(const Engine& e, const Texts& t, Vector& out, kvrun_pooling pooling = KVRUN_POOL_MODEL,
                   const kvrun_generate_options* o = nullptr) {
	out.assign(t.counts.size() * info_of(e).vector_dim, 0);
	return kvrun_embed_texts(e.h, t.tokens.data(), t.counts.data(), t.counts.size(), pooling, o, out.data());
}

std::vector<uint32_t> some_tokens(uint32_t n, uint32_t seed) {
	std::vector<uint32_t> t;
	for (uint32_t i = 0; i < n; ++i) t.push_back(5 + (seed * 31 + i * i * 7 + i) % 150);
	return t;
}

const char* const kDocuments[] = {"the cat sat", "a dog", "hello world", "x"};

} // namespace

TEST_CASE("api: a model that encodes makes vectors of many texts at once, and has no sessions") {
	for (const char* name : {"bert", "gemma_embedding", "modernbert"}) {
		Engine e(kEncoders + name + ".gguf");
		const kvrun_engine_info i = info_of(e);
		CHECK(i.encodes == 1);
		CHECK(i.max_rows == 0);
		CHECK(i.kv_budget_bytes == 0);
		Texts all;
		for (uint32_t n : {3u, 40u, 1u, 17u}) all.add(some_tokens(n, n));
		Vector together;
		REQUIRE(embed(e, all, together) == KVRUN_OK);
		for (size_t t = 0, at = 0; t < all.counts.size(); at += all.counts[t++]) {
			Texts one;
			one.add({all.tokens.begin() + ptrdiff_t(at), all.tokens.begin() + ptrdiff_t(at + all.counts[t])});
			Vector alone;
			REQUIRE(embed(e, one, alone) == KVRUN_OK);
			CHECK(std::equal(alone.begin(), alone.end(), together.begin() + ptrdiff_t(t * i.vector_dim)));
		}
		CHECK(embed(e, {}, together) == KVRUN_OK);
		Vector first, last, mean;
		REQUIRE(embed(e, all, first, KVRUN_POOL_FIRST) == KVRUN_OK);
		REQUIRE(embed(e, all, last, KVRUN_POOL_LAST) == KVRUN_OK);
		REQUIRE(embed(e, all, mean, KVRUN_POOL_MEAN) == KVRUN_OK);
		CHECK((first != last && last != mean && first != mean));

		kvrun_session* s = nullptr;
		CHECK(kvrun_session_open(&s, e.h, nullptr) == KVRUN_EUNSUPPORTED);
		CHECK(said("encodes texts"));
		CHECK(kvrun_session_restore(&s, e.h, "nowhere.kv") == KVRUN_EUNSUPPORTED);
		kvrun_batch* b = nullptr;
		CHECK(kvrun_batch_new(&b, e.h) == KVRUN_EUNSUPPORTED);
		kvrun_host_memory_options memory = KVRUN_HOST_MEMORY_OPTIONS_INIT;
		memory.budget_bytes = 1 << 20;
		CHECK(kvrun_engine_set_host_memory(e.h, &memory) == KVRUN_OK);
		kvrun_plan p = KVRUN_PLAN_INIT;
		kvrun_plan_options po = KVRUN_PLAN_OPTIONS_INIT;
		const std::string path = kEncoders + name + ".gguf";
		po.model_path = path.c_str();
		CHECK(kvrun_plan_memory(&p, &po) == KVRUN_EUNSUPPORTED);
	}
}

TEST_CASE("api: a model that generates makes the vectors of its sessions") {
	Engine e;
	const kvrun_engine_info i = info_of(e);
	CHECK(i.encodes == 0);
	CHECK(i.vector_dim == i.dim);
	Texts all;
	const std::string texts[] = {kText, "A house", "x"};
	for (const std::string& t : texts) all.add(tokens_of(e, t));
	for (const kvrun_pooling how : {KVRUN_POOL_MODEL, KVRUN_POOL_MEAN, KVRUN_POOL_FIRST, KVRUN_POOL_LAST}) {
		Vector together;
		REQUIRE(embed(e, all, together, how) == KVRUN_OK);
		for (size_t t = 0; t < 3; ++t) {
			Session s(e);
			const auto tokens = tokens_of(e, texts[t]);
			Vector one(i.vector_dim);
			REQUIRE(kvrun_embed(s.h, tokens.data(), tokens.size(), how, nullptr, one.data()) == KVRUN_OK);
			CHECK(std::equal(one.begin(), one.end(), together.begin() + ptrdiff_t(t * i.vector_dim)));
		}
	}
}

TEST_CASE("api: a reranker scores documents, alone as among others") {
	for (const char* name : {"bert_reranker", "xlmr_reranker", "modernbert_reranker", "qwen3_reranker"}) {
		Engine e(kEncoders + name + ".gguf");
		CHECK(info_of(e).n_scores >= 1);
		Vector scores(4);
		size_t n_tokens = 0;
		REQUIRE(kvrun_score_texts(e.h, "hello", kDocuments, 4, nullptr, scores.data(), &n_tokens) == KVRUN_OK);
		CHECK(n_tokens > 8);
		size_t sum = 0;
		for (size_t d = 0; d < 4; ++d) {
			float alone = 0;
			size_t n = 0;
			REQUIRE(kvrun_score_texts(e.h, "hello", kDocuments + d, 1, nullptr, &alone, &n) == KVRUN_OK);
			CHECK(alone == scores[d]);
			sum += n;
		}
		CHECK(sum == n_tokens);
		CHECK(*std::ranges::max_element(scores) > *std::ranges::min_element(scores));
		float other = 0;
		REQUIRE(kvrun_score_texts(e.h, "the dog", kDocuments, 1, nullptr, &other, nullptr) == KVRUN_OK);
		CHECK(other != scores[0]);
		CHECK(kvrun_score_texts(e.h, "hello", nullptr, 0, nullptr, nullptr, nullptr) == KVRUN_OK);
		CHECK(kvrun_score_texts(e.h, nullptr, kDocuments, 4, nullptr, scores.data(), nullptr) == KVRUN_EINVALID);
		CHECK(kvrun_score_texts(e.h, "hello", nullptr, 4, nullptr, scores.data(), nullptr) == KVRUN_EINVALID);
		CHECK(kvrun_score_texts(e.h, "hello", kDocuments, 4, nullptr, nullptr, nullptr) == KVRUN_EINVALID);
	}
	Engine plain;
	float score = 0;
	CHECK(kvrun_score_texts(plain.h, "hello", kDocuments, 1, nullptr, &score, nullptr) == KVRUN_EUNSUPPORTED);
	CHECK(said("no classifier"));
}

TEST_CASE("api: texts that cannot be embedded, and callers who stop, get an error") {
	for (const std::string& model : {kEncoders + "bert.gguf", kModel}) {
		Engine e(model);
		const kvrun_engine_info i = info_of(e);
		Texts good;
		good.add(some_tokens(5, 1));
		Vector out;
		CHECK(embed(e, good, out, kvrun_pooling(9)) == KVRUN_EINVALID);
		CHECK(said("pooling is 9"));
		CHECK(kvrun_embed_texts(e.h, nullptr, good.counts.data(), 1, KVRUN_POOL_MODEL, nullptr, out.data()) ==
		      KVRUN_EINVALID);
		CHECK(kvrun_embed_texts(e.h, good.tokens.data(), nullptr, 1, KVRUN_POOL_MODEL, nullptr, out.data()) ==
		      KVRUN_EINVALID);
		CHECK(kvrun_embed_texts(e.h, good.tokens.data(), good.counts.data(), 1, KVRUN_POOL_MODEL, nullptr, nullptr) ==
		      KVRUN_EINVALID);
		Texts empty = good, foreign = good;
		empty.counts.push_back(0);
		CHECK(embed(e, empty, out) == KVRUN_EINVALID);
		CHECK(said("no tokens"));
		foreign.tokens.back() = i.vocab;
		CHECK(embed(e, foreign, out) == KVRUN_EINVALID);
		if (i.encodes) {
			Texts longer;
			longer.add(some_tokens(i.ctx_train + 1, 3));
			CHECK(embed(e, longer, out) == KVRUN_ECONTEXT);
		}
		kvrun_generate_options o = KVRUN_GENERATE_OPTIONS_INIT;
		o.on_prefill = [](double, double, void*) { return 1; };
		Texts two = good;
		two.add(some_tokens(7, 2));
		CHECK(embed(e, two, out, KVRUN_POOL_MODEL, &o) == KVRUN_EUSER);
		kvrun_canceller* c = nullptr;
		REQUIRE(kvrun_canceller_new(&c) == KVRUN_OK);
		kvrun_cancel(c);
		kvrun_generate_options cancelled = KVRUN_GENERATE_OPTIONS_INIT;
		cancelled.canceller = c;
		CHECK(embed(e, two, out, KVRUN_POOL_MODEL, &cancelled) == KVRUN_ECANCELLED);
		kvrun_canceller_free(c);
		CHECK(embed(e, two, out) == KVRUN_OK);
	}
}

TEST_CASE("api: many texts have one progress, and a stop between two of them ends the call") {
	struct Seen {
		double stop_at; // a share; 2: never
		std::vector<double> done = {};
	};
	const auto options = [](Seen& seen) {
		kvrun_generate_options o = KVRUN_GENERATE_OPTIONS_INIT;
		o.payload = &seen;
		o.on_prefill = [](double done, double left, void* payload) -> int {
			CHECK(left >= 0);
			Seen& s = *static_cast<Seen*>(payload);
			s.done.push_back(done);
			return done >= s.stop_at;
		};
		return o;
	};
	const auto has = [](const Seen& s, double share) { return std::ranges::count(s.done, share) > 0; };
	Engine e;
	Texts texts;
	for (uint32_t n : {5u, 7u, 4u}) texts.add(some_tokens(n, n));
	Vector want, out;
	REQUIRE(embed(e, texts, want) == KVRUN_OK);
	Seen all{2};
	kvrun_generate_options o = options(all);
	REQUIRE(embed(e, texts, out, KVRUN_POOL_MODEL, &o) == KVRUN_OK);
	CHECK(std::ranges::is_sorted(all.done));
	for (const double share : {5 / 16., 12 / 16., 1.}) CHECK(has(all, share));
	// short texts are read in one step each: the stop comes when there is nothing left of the text to be stopped
	Seen first{5 / 16.};
	o = options(first);
	CHECK(embed(e, texts, out, KVRUN_POOL_MODEL, &o) == KVRUN_EUSER);
	CHECK(has(first, 5 / 16.));
	CHECK(first.done.back() == 5 / 16.);
	Seen last{1}; // all is done
	o = options(last);
	CHECK(embed(e, texts, out, KVRUN_POOL_MODEL, &o) == KVRUN_OK);
	CHECK(out == want);
	Seen none{0};
	o = options(none);
	Engine reranker(kEncoders + "qwen3_reranker.gguf");
	Vector scores(4);
	CHECK(kvrun_score_texts(reranker.h, "hello", kDocuments, 4, &o, scores.data(), nullptr) == KVRUN_EUSER);
	CHECK(none.done.size() == 1);
}

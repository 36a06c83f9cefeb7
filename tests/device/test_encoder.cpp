// Text encoders and classifiers on every device, beside HF transformers (golden/encoder,
// tools/dev/make_encoder_models.py): vectors and scores of texts, whatever other texts are encoded beside them.
#include "engine/run/session.h"
#include "models/text_encoder.h"
#include "tests/device/outcome.h"
#include "tests/device/sequences.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"
#include <fstream>
#include <nlohmann/json.hpp>

using namespace kvrun;
using Json = nlohmann::json;

namespace {

const std::vector<Case> kEncoders{
    {"bert"},    {"xlmr"},         {"modernbert"},    {"gemma_embedding"}, {"nomic_bert"},
    {"jina_v3"}, {"eurobert"},     {"neobert"},       {"llama_embed"},     {"nomic_bert_moe"},
    {"jina_v2"}, {"jina_v2_code"}, {"jina_v2_plain"}, {"gemma_embedding2"}};
const std::vector<Case> kRerankers{{"xlmr_reranker"}, {"bert_reranker"}, {"modernbert_reranker"}};
const std::vector<Case> kCausal{{"qwen3_embedding"}, {"qwen3_reranker"}};

std::string file_of(const std::string& name) { return kGolden + "encoder/" + name + ".gguf"; }

struct Expected {
	std::vector<Tokens> texts;
	std::vector<uint32_t> second; // of each text: where its second part begins in `typed`; empty if there are none
	Floats results, typed;        // (texts, columns)
	size_t columns = 0;
	explicit Expected(const std::string& name) {
		std::ifstream in(kGolden + "encoder/" + name + ".json");
		const Json j = Json::parse(in);
		texts = j["texts"].get<std::vector<Tokens>>();
		const auto rows = [&](const Json& list) {
			Floats out;
			for (const Json& row : list) {
				const Floats r = row.get<Floats>();
				columns = r.size(), out.insert(out.end(), r.begin(), r.end());
			}
			return out;
		};
		results = rows(j.contains("scores") ? j["scores"] : j["embeddings"]);
		if (!j.contains("typed")) return;
		typed = rows(j["typed"]);
		for (const Json& t : j["types"]) {
			const Tokens types = t.get<Tokens>();
			second.push_back(uint32_t(std::ranges::find(types, 1u) - types.begin()));
		}
	}
	std::vector<EncoderText> all(bool typed_ones = false) const {
		std::vector<EncoderText> out;
		for (size_t i = 0; i < texts.size(); ++i) out.push_back({texts[i], typed_ones ? second[i] : UINT32_MAX});
		return out;
	}
};

std::unique_ptr<Engine> open_encoder(const std::string& device, const std::string& name) {
	EngineOptions o;
	o.backend = select_test_device(device), o.model = file_of(name), o.encoders = true;
	return Engine::open(o);
}

// Pooled states of an encoder as its file pools them, through what follows them.
Floats results_of(Engine& e, std::span<const EncoderText> texts) {
	const TextHead& h = e.config().text_head;
	const Floats pooled = e.text_encoder()->encode(texts, h.labels ? h.label_pooling : h.pooling);
	return h.labels ? e.pooled_head().scores(pooled) : e.pooled_head().vectors(pooled);
}

// A score is a small difference of large parts, so that rounding keys and values to f16 shows more.
double tolerance(Engine& e, const std::string& name) {
	return (e.config().text_head.labels ? 3 : 1) * logits_tolerance(e.backend(), name, /*decode=*/false);
}

std::vector<Case> all_encoders() {
	std::vector<Case> out = kEncoders;
	out.insert(out.end(), kRerankers.begin(), kRerankers.end());
	return out;
}

} // namespace

TEST_CASE("encoder: vectors and scores of texts are those of transformers") {
	each_row(all_encoders(), [](Backend&, const Case& c, const TestRow& row) {
		const auto e = open_encoder(row.device, c.name);
		const Expected want(c.name);
		CHECK_MESSAGE(relative_error(results_of(*e, want.all()), want.results) < tolerance(*e, c.name), c.name);
		if (want.second.empty()) return;
		CHECK_MESSAGE(relative_error(results_of(*e, want.all(true)), want.typed) < tolerance(*e, c.name), c.name);
		CHECK_MESSAGE(relative_error(want.typed, want.results) > 0.1, c.name);
	});
}

TEST_CASE("encoder: a text has the same bits alone and among others") {
	const std::vector<Case> some{
	    {"bert"}, {"modernbert"}, {"gemma_embedding"}, {"nomic_bert_moe"}, {"gemma_embedding2"}};
	each_row(some, [](Backend&, const Case& c, const TestRow& row) {
		const auto e = open_encoder(row.device, c.name);
		const Expected want(c.name);
		std::vector<EncoderText> many; // more rows than a projection takes at once
		while (many.size() * 20 < RowEncoder::kRows * 3 / 2)
			many.push_back(want.all()[many.size() % want.texts.size()]);
		const Floats together = results_of(*e, many);
		for (size_t i = 0; i < want.texts.size(); ++i) {
			const EncoderText one[] = {many[i]};
			const Floats alone = results_of(*e, one);
			for (size_t at = i; at < many.size(); at += want.texts.size() * 5)
				check_same_bits({row.device, row.number, fmt::format("{}, text {} at {}", c.name, i, at)}, alone,
				                {together.begin() + ptrdiff_t(at * alone.size()),
				                 together.begin() + ptrdiff_t((at + 1) * alone.size())});
		}
	});
}

TEST_CASE("encoder: where all layers have a window, sizes of heads of others do not matter") {
	const std::string arch = "gemma-embedding2";
	const TempFolder folder;
	const auto with_heads = [&](uint32_t channels) { // of layers without a window, of which there are none
		const Gguf g = Gguf::open(file_of("gemma_embedding2"));
		GgufBuilder b = GgufBuilder::copy_as(g, arch);
		for (const GgufTensor& t : g.tensors())
			if (t.name.starts_with("blk.5.")) b.erase_tensor(std::string(t.name));
		b.u32(arch + ".block_count", 5);
		b.numbers(arch + ".attention.head_count_kv", GgufType::U32, std::vector<uint32_t>(5, 2));
		b.numbers(arch + ".attention.sliding_window_pattern", GgufType::U32, std::vector<uint32_t>(5, 1));
		for (const char* key : {".attention.key_length", ".attention.value_length", ".rope.dimension_count"})
			b.u32(arch + key, channels);
		auto& inputs = b.find("per_layer_model_proj.weight");
		inputs.data.resize(inputs.data.size() / 6 * 5), inputs.dims[1] = inputs.dims[1] / 6 * 5;
		const std::string path = (folder.path / fmt::format("{}.gguf", channels)).string();
		const std::vector<std::byte> bytes = b.bytes();
		std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), long(bytes.size()));
		return path;
	};
	const std::string wide = with_heads(512), same = with_heads(16);
	each_row(std::vector<Case>{{"gemma_embedding2"}}, [&](Backend&, const Case& c, const TestRow& row) {
		const auto vectors = [&](const std::string& path) {
			EngineOptions o;
			o.backend = select_test_device(row.device), o.model = path, o.encoders = true;
			return results_of(*Engine::open(o), Expected(c.name).all());
		};
		check_same_bits({row.device, row.number, c.name}, vectors(wide), vectors(same));
	});
}

TEST_CASE("encoder: pooling takes the mean, the first or the last state") {
	each_row(std::vector<Case>{{"bert"}, {"gemma_embedding"}}, [](Backend&, const Case& c, const TestRow& row) {
		const auto e = open_encoder(row.device, c.name);
		const Expected want(c.name);
		const std::vector<EncoderText> texts = want.all();
		const Floats states = e->text_encoder()->states(texts), mean = e->text_encoder()->encode(texts, Pooling::Mean),
		             first = e->text_encoder()->encode(texts, Pooling::First),
		             last = e->text_encoder()->encode(texts, Pooling::Last);
		const size_t dim = e->config().dim;
		size_t at = 0;
		for (size_t t = 0; t < texts.size(); ++t) {
			const size_t n = texts[t].tokens.size();
			for (size_t d = 0; d < dim; ++d) {
				double sum = 0;
				for (size_t i = 0; i < n; ++i) sum += states[(at + i) * dim + d];
				CHECK(mean[t * dim + d] == doctest::Approx(sum / double(n)).epsilon(1e-5));
				CHECK(first[t * dim + d] == states[at * dim + d]);
				CHECK(last[t * dim + d] == states[(at + n - 1) * dim + d]);
			}
			at += n;
		}
	});
}

TEST_CASE("encoder: causal models, by their last state") {
	each_row(kCausal, [](Backend&, const Case& c, const TestRow& row) {
		const auto e = open_encoder(row.device, c.name);
		const Expected want(c.name);
		const TextHead& h = e->config().text_head;
		CHECK((h.labels ? h.label_pooling : h.pooling) == Pooling::Last);
		Floats pooled;
		for (const Tokens& t : want.texts) {
			Session s(*e, with("fp16", 64));
			PrefillHooks hooks;
			Floats last;
			hooks.all_states = [&](uint32_t, uint32_t, std::span<const float> states) {
				last.assign(states.end() - ptrdiff_t(e->config().dim), states.end());
			};
			s.prefill(t, hooks);
			pooled.insert(pooled.end(), last.begin(), last.end());
		}
		const Floats got = h.labels ? e->pooled_head().scores(pooled) : e->pooled_head().vectors(pooled);
		CHECK_MESSAGE(relative_error(got, want.results) < tolerance(*e, c.name), c.name);
	});
}

TEST_CASE("encoder: texts that it cannot take, and callers that need a session, get one line") {
	each_row(std::vector<Case>{{"bert"}}, [](Backend&, const Case& c, const TestRow& row) {
		const auto e = open_encoder(row.device, c.name);
		TextEncoder& encoder = *e->text_encoder();
		const auto refused = [&](const Tokens& t, Code code, const char* part) {
			const EncoderText text[] = {{t}};
			const Outcome o = outcome_of([&] { encoder.encode(text, Pooling::Mean); });
			CHECK(o.code == code);
			CHECK_MESSAGE(has(o.what, part), o.what);
		};
		refused({}, Code::Invalid, "no tokens");
		refused({3, e->config().vocab}, Code::Invalid, "does not exist");
		refused(Tokens(e->config().max_seq + 1, 5), Code::Context, "shorten or divide");
		const Outcome session = outcome_of([&] { Session s(*e, with("fp16", 64)); });
		CHECK(session.code == Code::Unsupported);
		CHECK_MESSAGE(has(session.what, "kvrun embed"), session.what);
		EngineOptions o;
		o.backend = select_test_device(row.device), o.model = file_of(c.name);
		const Outcome opened = outcome_of([&] { Engine::open(o); });
		CHECK(opened.code == Code::Unsupported);
		CHECK_MESSAGE(has(opened.what, "kvrun embed"), opened.what);
		for (const bool drafts : {true, false}) {
			EngineOptions more = o;
			more.encoders = true;
			(drafts ? more.draft_file : more.mmproj) = file_of("bert");
			const Outcome with = outcome_of([&] { Engine::open(more); });
			CHECK(with.code == Code::Unsupported);
			CHECK_MESSAGE(has(with.what, drafts ? "--draft" : "--mmproj"), with.what);
		}
	});
}

TEST_CASE("encoder: stops between layers") {
	each_row(std::vector<Case>{{"modernbert"}}, [](Backend&, const Case& c, const TestRow& row) {
		const auto e = open_encoder(row.device, c.name);
		const Expected want(c.name);
		const std::vector<EncoderText> texts = want.all();
		double last = -1;
		size_t calls = 0;
		const Floats none = e->text_encoder()->encode(texts, Pooling::Mean, [&](double share) {
			CHECK(share > last);
			last = share;
			return ++calls < 3;
		});
		CHECK(none.empty());
		CHECK(calls == 3);
		CHECK(relative_error(results_of(*e, texts), want.results) < tolerance(*e, c.name));
	});
}

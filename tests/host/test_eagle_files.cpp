// EAGLE-3 layers in files: what they say, which models they fit, and their errors.
#include "tests/host/draft_edits.h"
#include <algorithm>

using namespace kvrun;

namespace {

Bytes layer_of(const std::string& name) { return golden("../eagle/" + name); }

Config read(const std::string& name) {
	return read_draft_file(Gguf::parse("draft.gguf", layer_of(name)), config_of(golden(name)));
}

} // namespace

TEST_CASE("eagle: a file says which states are read, how they are joined, and what is the model's") {
	const Config few = read("qwen3moe"), own = read("gpt_oss"), shared = read("gemma4");
	CHECK(few.fusion.layers == std::vector<uint32_t>{0, 1, 1});
	CHECK(few.vocab == 120);
	CHECK(few.fusion.vocab == 300);
	CHECK((few.fusion.own_head && !few.fusion.own_embedding && !few.fusion.normed && !few.fusion.normed_residual));
	CHECK(own.fusion.layers == std::vector<uint32_t>{1, 3, 4});
	CHECK(own.dim == 24);
	CHECK(own.target_dim == 32);
	CHECK((own.fusion.own_head && own.fusion.own_embedding && own.fusion.normed && !own.fusion.normed_residual));
	CHECK(own.ropes[0].freqs.size() == 8);
	CHECK((!shared.fusion.own_head && !shared.fusion.own_embedding && shared.fusion.normed_residual));
	CHECK(draft_kind(Gguf::parse("draft.gguf", layer_of("gemma4"))) == DraftKind::Eagle);
	const std::vector<uint32_t>& ids = few.fusion.tokens;
	CHECK(ids.size() == 120);
	CHECK(std::ranges::is_sorted(ids));
	CHECK(ids.back() > 250);
	CHECK(own.fusion.tokens.empty());
}

TEST_CASE("T13: EAGLE-3 layers that are damaged, or made for another model, are refused by name") {
	const Bytes good = layer_of("qwen3moe"), model = golden("qwen3moe");
	CHECK(said(good, model) == "");
	CHECK(refusal(good).find("EAGLE-3 layers, which draft for another model; give the model with -m, and it with "
	                         "--draft") != std::string::npos);
	check_said(good, golden("qwen2"), "draft.gguf: drafts for a model of 32 channels, this one has 48");
	check_said(layer_of("gpt_oss"), golden("llama"), "key eagle3.target_layers has layer 3, the model has 2 layers");
	check_said(good, golden("gemma3n"), "drafts from one residual stream, this model has 4");
	check_said(with_u32(good, "eagle3.target_hidden_size", 33), model, "drafts for a model of 33 channels");
	check_said(with_u32(good, "eagle3.block_count", 2), model, "2 layers; kvrun runs EAGLE-3 with one");
	check_said(with_u32(good, "eagle3.embedding_length", 40), model, "is (");
	for (const char* name : {"fc.weight", "blk.0.attn_norm_2.weight", "blk.0.attn_q.weight", "output_norm.weight"}) {
		std::string other = name;
		other[1] = 'x';
		check_said(renamed(good, name, other), model, "tensor " + std::string(name) + " is missing");
	}
	const auto length = [](const char* name) { return std::string("\x0d\0\0\0\0\0\0\0", 8) + name; };
	check_said(renamed(good, length("output.weight"), length("outpux.weight")), model,
	           "tensor d2t is I64 of 1 x 120, expected 300 I64");
	check_said(renamed(good, "eagle3.target_layers", "eagle3.target_layerx"), model, "eagle3.target_layers");
	check_said(renamed(layer_of("gpt_oss"), "token_embd.weight", "token_embx.weight"), golden("gpt_oss"),
	           "tensor token_embd.weight is missing, and the model's has 32 channels, not 24");
	// A table that names a token the model does not have; an I64 tensor that is no such table.
	const GgufTensor table = *Gguf::parse("draft.gguf", good).find_tensor("d2t");
	for (const uint8_t high : {uint8_t(1), uint8_t(0x80)}) {
		Bytes wrong = good;
		wrong[size_t(table.at) + 8 * 5 + 7] = std::byte(high);
		check_said(wrong, model, "tensor d2t: element 5 is ");
	}
	check_said(renamed(good, "d2t", "d2x"), model, "tensor d2x has type I64");
}

// Assistants in files: what they say, which models they fit, and their errors.
#include "models/assistant.h"
#include "tests/host/draft_edits.h"

using namespace kvrun;

TEST_CASE("assistants: layers attend to the model's last layers of their kind that have keys and values") {
	for (const auto& row : {std::tuple("gemma4", 3u, 2u), {"gemma4_shared", 1u, 0u}}) {
		const auto& [name, full, window] = row;
		CAPTURE(std::get<0>(row));
		const Config of = config_of(golden(name));
		const Config c = read_assistant(Gguf::parse("a", golden("../assistant/" + std::string(name))), of);
		CHECK(c.target_dim == of.dim);
		CHECK(c.n_layers == 3);
		CHECK(c.dim == 24);
		for (uint32_t l = 0; l < 3; ++l) {
			CHECK(!has_own_kv(c, l));
			CHECK(bool(c.layers[l].window) == (l == 0));
			CHECK(layer_attended(of, c.layers[l]) == (c.layers[l].window ? window : full));
		}
	}
	CHECK(draft_kind(Gguf::parse("a", golden("../assistant/gemma4"))) == DraftKind::Assistant);
	CHECK(draft_kind(Gguf::parse("a", golden("gemma4"))) == DraftKind::None);
	CHECK(draft_kind(Gguf::parse("a", renamed(golden("llama"), "general.architecture", "general.architecturx"))) ==
	      DraftKind::None);
}

TEST_CASE("T13: assistants that are damaged, or made for another model, are refused by name") {
	const Bytes good = golden("../assistant/gemma4"), model = golden("gemma4");
	CHECK(said(good, model) == "");
	CHECK(refusal(good).find("an assistant, which drafts for a model of gemma4; give the model with -m, and it with "
	                         "--draft") != std::string::npos);
	check_said(good, golden("gemma3"), "draft.gguf: drafts for models of gemma4; this model is one of gemma3");
	check_said(good, golden("gemma4_shared"),
	           "layer 1 attends to 1 KV heads of 32 channels, which the last such layer");
	check_said(golden("../assistant/gemma4_shared"), model, "layer 1 attends to 2 KV heads of 32 channels");
	check_said(with_u32(good, "gemma4-assistant.embedding_length_out", 0), model, "drafts for a model of 0 channels");
	check_said(with_u32(good, "gemma4-assistant.embedding_length_out", 40), model, "nextn.pre_projection.weight is");
	check_said(with_u32(good, "gemma4-assistant.embedding_length_out", 0x80000020), model, "post_projection.weight is");
	check_said(with_u32(good, "gemma4-assistant.embedding_length", 32), model, "tensor token_embd.weight is");
	check_said(with_u32(good, "gemma4-assistant.block_count", 4), model, "has 3 elements, the model has 4 layers");
	for (const char* name : {"nextn.pre_projection.weight", "nextn.post_projection.weight", "blk.1.attn_q.weight",
	                         "blk.2.attn_q_norm.weight"}) {
		std::string other = name;
		other[1] = 'x';
		check_said(renamed(good, name, other), model, "tensor " + std::string(name) + " is missing");
	}
	CHECK(read_assistant(Gguf::parse("a", good), config_of(model)).tied_embedding);
}

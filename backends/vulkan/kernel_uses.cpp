// Every use of kernels by ops on a device.
#include "backends/vulkan/kernel_uses.h"
#include "engine/kv_host/plan.h"
#include "shared/experts.h"
#include "shared/push.h"
#include <algorithm>

namespace kvrun::vk {
namespace {

using Uses = std::vector<KernelUse>;

constexpr uint32_t kHeadDims[] = {64, 80, 96, 128, 256, 512}, kPages[] = {32, 64, 128};
constexpr uint8_t kBits[] = {1, 2, 3, 4, 8};

void add(Uses& out, const Choice& c, std::string what) {
	for (const KernelUse& known : out) // uses that need the same pipeline are listed once
		if (known.kernel == c.kernel && known.spec == c.spec) return;
	out.push_back({c.kernel, c.spec, std::move(what)});
}

void basic_uses(const Caps& c, Uses& out) {
	for (const DType t : kTensorTypes) add(out, choose_embed(t), dtype_info(t).name);
	for (const bool vec4_aligned : {false, true}) add(out, choose_rmsnorm(c, vec4_aligned), "");
	for (const bool biased : {false, true}) add(out, choose_layer_norm(c, biased), biased ? "bias" : "");
	for (const Choice& how : {choose_match_rms(c), choose_gaussian_top_k(c), choose_stream_sum(c), choose_stream_mix(c),
	                          choose_stream_gate(c), choose_stream_coefs(c), choose_stream_attend(c)})
		add(out, how, "");
	for (const auto& [flags, what] : {std::pair{ACTIVATE_GELU_TANH | ACTIVATE_TIMES, "gelu, times"},
	                                  {ACTIVATE_RELU2, "relu2"},
	                                  {ACTIVATE_SIGMOID | ACTIVATE_TIMES, "sigmoid, times"},
	                                  {ACTIVATE_XIELU, "xielu"},
	                                  {ACTIVATE_GELU_QUICK, "quick gelu"},
	                                  {ACTIVATE_CLAMP, "clamp"},
	                                  {ACTIVATE_SOFTPLUS | ACTIVATE_TIMES | ACTIVATE_EACH, "softplus, times, each"},
	                                  {ACTIVATE_RELU | ACTIVATE_TIMES, "relu, times"},
	                                  {ACTIVATE_GELU, "gelu by its integral"},
	                                  {ACTIVATE_ADD, "scale, add"},
	                                  {ACTIVATE_CAP, "cap"}})
		add(out, choose_activate(flags), what);
	for (const uint32_t d : kHeadDims) {
		for (const uint32_t f : {0u, ROPE_NEOX, ROPE_NEOX | ROPE_NORM_Q | ROPE_NORM_K})
			for (const bool vec4_aligned : {false, true})
				add(out, choose_rope_store(c, vec4_aligned, d, f),
				    fmt::format("head_dim {}{}{}", d, f & ROPE_NEOX ? ", neox" : "",
				                f & ROPE_NORM_Q ? ", head norm" : ""));
		if (d == 128)
			for (const bool vec4_aligned : {false, true})
				add(out, choose_rope_store(c, vec4_aligned, d, ROPE_NEOX | ROPE_NORM_Q | ROPE_NORM_K | ROPE_WEIGH_LAST),
				    "head_dim 128, neox, head norm last");
		add(out, choose_kv_store(c, d), fmt::format("head_dim {}", d));
	}
	add(out, choose_kv_load(), "");
	if (multiplies_in_int8(c, DType::Q8_0)) add(out, choose_round_rows(), "");
	if (uses_matrices(c)) add(out, choose_halve_rows(), "");
	if (projects_in_int8(c, DType::Q8_0))
		for (const bool norm : {false, true}) add(out, choose_round_vec(c, norm), norm ? "norm" : "");
}

void matmul_uses(const Caps& c, Uses& out) {
	Caps f32 = c; // KVRUN_PRECISION=f32, for all but matrices
	f32.int_dot = false;
	const auto use = [&](DType t, uint32_t rows, uint32_t cols, uint32_t tokens, uint32_t epilogue, bool decode,
	                     const char* what) {
		for (const Caps& caps : {c, f32})
			add(out, choose_matmul(caps, t, rows, cols, tokens, epilogue, decode),
			    fmt::format("{}, {}", dtype_info(t).name, what));
	};
	for (const DType t : kTensorTypes) {
		use(t, 4096, 4096, 1, MATMUL_STORE, true, "1 token");
		use(t, 8192, 4096, 1, MATMUL_SWIGLU, true, "1 token, swiglu");
		use(t, 4096, 4096, kMatvecTokens, MATMUL_ADD, true, "8 tokens, add");
		use(t, 8192, 4096, 512, MATMUL_SWIGLU, false, "prompt, swiglu");
		use(t, 192, 4096, 16, MATMUL_GATE, false, "prompt, narrow, gate");
		if (fuses_norm(c, t) && !projects_in_int8(c, t))
			add(out, choose_matmul(c, t, 8192, 4096, kMatvecTokens, MATMUL_SWIGLU, true, true),
			    fmt::format("{}, 8 tokens, norm, swiglu", dtype_info(t).name));
		if (!projects_in_int8(c, t)) continue;
		for (const bool norm : {false, true})
			add(out, choose_matmul(c, t, 32768, 4096, 1, MATMUL_STORE, true, norm),
			    fmt::format("{}, 1 token, many rows{}", dtype_info(t).name, norm ? ", norm" : ""));
		add(out, choose_matmul(c, t, 28672, 4096, 1, MATMUL_SWIGLU, true, true),
		    fmt::format("{}, 1 token, many rows, norm, swiglu", dtype_info(t).name));
		add(out, choose_matmul(c, t, 6144, 4096, kMatvecTokens, MATMUL_STORE, true, true),
		    fmt::format("{}, 8 tokens, norm", dtype_info(t).name));
		if (matvec_tokens(c, t) < kInt8Tokens) continue;
		add(out, choose_matmul(c, t, 4096, 4096, kInt8Tokens, MATMUL_ADD, true, false),
		    fmt::format("{}, 16 tokens, add", dtype_info(t).name));
		add(out, choose_matmul(c, t, 28672, 4096, kInt8Tokens, MATMUL_SWIGLU, true, true),
		    fmt::format("{}, 16 tokens, norm, swiglu", dtype_info(t).name));
	}
	if (uses_matrices(c))
		for (const DType t : {DType::F16, DType::Q8_0, DType::Q4_K}) {
			use(t, 4096, 4096, 64, MATMUL_STORE, false, "prompt of 64 tokens");
			Caps two = c;
			two.knobs[Knob::TileBuffers] = 2;
			add(out, choose_matmul(two, t, 8192, 4096, 512, MATMUL_SWIGLU, false),
			    fmt::format("{}, prompt, swiglu, 2 buffers", dtype_info(t).name));
		}
	use(DType::F32, 172, 172, 1, MATMUL_STORE, true, "1 token, odd columns");
	use(DType::F32, 172, 172, 64, MATMUL_STORE, false, "prompt, odd columns");
}

void expert_uses(const Caps& c, Uses& out) {
	for (const uint32_t n : {8u, 64u, 128u, 512u}) {
		for (const uint32_t flags :
		     {ROUTE_NORMALISED, ROUTE_SIGMOID | ROUTE_NORMALISED | ROUTE_BIAS, ROUTE_NEAR,
		      ROUTE_NORMALISED | ROUTE_EXPERT_SCALE, ROUTE_SOFTPLUS | ROUTE_NORMALISED | ROUTE_BIAS,
		      ROUTE_SOFTPLUS | ROUTE_NORMALISED | ROUTE_BY_TOKEN})
			add(out, choose_route(c, n, flags),
			    fmt::format("{} experts{}", n,
			                flags & ROUTE_SIGMOID        ? ", sigmoid, bias"
			                : flags & ROUTE_NEAR         ? ", near"
			                : flags & ROUTE_EXPERT_SCALE ? ", factors"
			                : flags & ROUTE_BY_TOKEN     ? ", by token"
			                : flags & ROUTE_SOFTPLUS     ? ", softplus, bias"
			                                             : ""));
		add(out, choose_sort_slots(c, n), fmt::format("{} experts", n));
	}
	add(out, choose_expert_sum(c), "");
	Caps f32 = c; // KVRUN_PRECISION=f32, for all but matrices
	f32.int_dot = false;
	const auto use = [&](DType t, uint32_t rows, uint32_t cols, uint32_t slots, uint32_t epilogue, bool decode,
	                     const char* what) {
		for (const Caps& caps : {c, f32})
			add(out, choose_expert_matmul(caps, t, rows, cols, slots, 128, epilogue, decode),
			    fmt::format("{}, {}", dtype_info(t).name, what));
	};
	for (const DType t : kTensorTypes) {
		use(t, 1536, 2048, 8, MATMUL_SWIGLU, true, "swiglu");
		use(t, 2048, 768, 8, MATMUL_STORE, true, "");
		use(t, 1536, 2048, 1024, MATMUL_SWIGLU, false, "short prompt, swiglu");
		use(t, 2048, 768, 1024, MATMUL_STORE, false, "short prompt");
		use(t, 1536, 2048, 8192, MATMUL_SWIGLU, false, "prompt, swiglu");
		use(t, 2048, 768, 8192, MATMUL_STORE, false, "prompt");
	}
}

void state_uses(const Caps& c, Uses& out) {
	add(out, choose_short_conv(c, 4, CONV_SILU), "4 taps");
	add(out, choose_short_conv(c, 4, CONV_SILU | CONV_BIAS), "4 taps, bias");
	add(out, choose_short_conv(c, 3, 0), "3 taps, linear");
	add(out, choose_short_conv(c, 4, CONV_GATES), "4 taps, gates");
	add(out, choose_short_conv(c, 10, CONV_SILU), "10 taps");
	add(out, choose_short_conv(c, 2, CONV_MIXES), "mixes");
	add(out, choose_pool_blocks(0), "");
	add(out, choose_pool_blocks(POOL_OVERLAP), "overlapping");
	for (const uint32_t d : {64u, 128u})
		add(out, choose_delta_rule(c, d, d, {}), fmt::format("states of {} x {}", d, d));
	for (const bool bounded : {false, true})
		add(out, choose_delta_rule(c, 128, 128, {true, bounded}),
		    fmt::format("states of 128 x 128, by channel{}", bounded ? ", bounded" : ""));
	for (const uint32_t d : {64u, 128u})
		add(out, choose_delta_rule(c, d, d, {true, true, true}), fmt::format("states of {} x {}, removal", d, d));
	add(out, choose_ssm_scan(c, 128, 64), "states of 128 x 64");
	add(out, choose_ssm_scan(c, 256, 64), "states of 256 x 64");
	add(out, choose_selective_scan(16), "states of 16");
}

struct FormatUse {
	Format fmt;
	uint32_t page; // tokens
	bool operator==(const FormatUse&) const = default;
};

std::string quant_text(const Quant& q) {
	if (q.bits == 16) return "f16";
	const char* norm = q.prescale == Prescale::Balance   ? ", balanced"
	                   : q.prescale == Prescale::SqrtMax ? ", factors"
	                                                     : "";
	if (q.scale == Scale::Codebook)
		return fmt::format("{} bit{} and norms of {} bit{}", q.bits, q.rotate ? ", rotated" : "", q.param_bits,
		                   q.mean ? ", means" : "");
	const char* bytes = q.param_bits == 8 ? ", parameters in bytes" : "";
	if (q.scale == Scale::PerChannel) return fmt::format("{} bit per channel{}{}", q.bits, norm, bytes);
	return fmt::format("{} bit per {} channels{}{}", q.bits, q.group, norm, bytes);
}

void add_format(std::vector<FormatUse>& all, const FormatUse& u) {
	if (std::ranges::find(all, u) == all.end()) all.push_back(u);
}

// The formats that policies store: those of the table, and those that their options give.
std::vector<FormatUse> formats_of_policies(uint32_t head_dim) {
	std::vector<FormatUse> all;
	for (const KvPolicy& p : policy_samples()) try {
			const KvPlan plan = make_plan(p, {32, 8, head_dim});
			for (const PageFormat& f : plan.formats)
				if (f.page) add_format(all, {f.fmt, f.page});
		} catch (const Error& e) { // a group size given by an option need not fit every head
			if (e.code != Code::Invalid) throw;
		}
	return all;
}

// Every width of K with every width of V, keys per channel and per token.
std::vector<FormatUse> all_formats() {
	std::vector<FormatUse> all;
	for (const uint8_t k : {1, 2, 3, 4, 8, 16})
		for (const Scale scale : {Scale::PerChannel, Scale::PerToken})
			for (const uint8_t v : {1, 2, 3, 4, 8, 16}) {
				Format f{{.bits = k}, {.bits = v}};
				if (k < 16) f.k.scale = scale;
				add_format(all, {f, k < 16 && scale == Scale::PerChannel ? 32u : 128u});
			}
	return all;
}

// Scores with a cap and heads with a sink: shapes of the families that have them, over the formats that policies store.
void softmax_uses(const Caps& c, Uses& out) {
	struct Family {
		uint32_t head_dim, share;
		bool softcap, sinks;
	};
	for (const Family& m : {Family{256, 2, true, false}, {128, 2, true, false}, {64, 8, false, true}}) {
		const uint32_t d = m.head_dim;
		const std::string heads = fmt::format("head_dim {}, {} heads{}{}", d, m.share, m.softcap ? ", softcap" : "",
		                                      m.sinks ? ", sinks" : "");
		const uint32_t cap = m.softcap ? ATTEND_SOFTCAP : 0;
		for (const FormatUse& u : formats_of_policies(d)) {
			const std::string format =
			    fmt::format("{}, K {}, V {}, pages of {}", heads, quant_text(u.fmt.k), quant_text(u.fmt.v), u.page);
			add(out, choose_attend(c, m.share, u.fmt, d, u.page, false, cap | (m.sinks ? ATTEND_SINKS : 0)), format);
			add(out, choose_attend(c, m.share, u.fmt, d, u.page, true, cap), format + ", rows of a prompt");
			if (m.softcap && u.fmt.k.bits != 3 && u.fmt.k.scale != Scale::Codebook) // as in attend_uses()
				add(out, choose_weigh(c, u.fmt.k, d, m.share, u.page, cap),
				    fmt::format("{}, K {}, pages of {}", heads, quant_text(u.fmt.k), u.page));
		}
		const uint32_t prompt = (m.softcap ? PROMPT_SOFTCAP : 0) | (m.sinks ? PROMPT_SINKS : 0);
		for (const uint32_t window : {0u, uint32_t(PROMPT_WINDOW)})
			add(out, choose_attend_prompt(c, m.share, d, prompt | window), heads + (window ? ", window" : ""));
		if (m.sinks) add(out, choose_attend_merge(c, d, MERGE_SINKS), heads);
		if (m.softcap) add(out, choose_score_prompt(c, d, m.share, 8, {}, true), heads);
	}
}

void attend_uses(const Caps& c, Uses& out) {
	const auto use = [&](uint32_t d, uint32_t share, const FormatUse& u, bool prompt) {
		add(out, choose_attend(c, share, u.fmt, d, u.page, prompt),
		    fmt::format("head_dim {}, {} heads, K {}, V {}, pages of {}{}", d, share, quant_text(u.fmt.k),
		                quant_text(u.fmt.v), u.page, prompt ? ", rows of a prompt" : ""));
	};
	for (const uint32_t d : kHeadDims) {
		for (const uint32_t share : {1u, 4u, 8u}) {
			if (d > 256 && share < 8) continue; // only Gemma 4 has these
			for (const FormatUse& u : formats_of_policies(d)) {
				for (const bool prompt : {false, true}) use(d, share, u, prompt);
				if (u.fmt.k.bits == 3 || u.fmt.k.scale == Scale::Codebook) continue; // not used with fetching: KvPlan
				add(out, choose_weigh(c, u.fmt.k, d, share, u.page),
				    fmt::format("head_dim {}, {} heads, K {}, pages of {}", d, share, quant_text(u.fmt.k), u.page));
			}
			const std::pair<uint32_t, const char*> ways[] = {
			    {0, ""}, {PROMPT_STATE, ", state"}, {PROMPT_LSE, ", lse"}, {PROMPT_WINDOW, ", window"}};
			for (const auto& [flags, text] : ways)
				add(out, choose_attend_prompt(c, share, d, flags),
				    fmt::format("head_dim {}, {} heads{}", d, share, text));
		}
		add(out, choose_attend_merge(c, d, 0), fmt::format("head_dim {}", d));
		add(out, choose_attend_merge(c, d, MERGE_LSE), fmt::format("head_dim {}, lse", d));
	}
	for (const FormatUse& u : all_formats()) use(128, 4, u, false);
	softmax_uses(c, out);
	add(out, choose_attend_prompt(c, 5, 128, PROMPT_WINDOW | PROMPT_CHUNKS),
	    "head_dim 128, 5 heads, chunks");                                           // Llama 4
	add(out, choose_attend_prompt(c, 1, 64, PROMPT_SLOPES), "head_dim 64, slopes"); // Jina Embeddings v2
	// Behind an indexer:
	for (const FormatUse& u : formats_of_policies(256))
		add(out, choose_attend_sparse(c, 8, u.fmt, 256, u.page),
		    fmt::format("head_dim 256, 8 heads, K {}, V {}, pages of {}, few live", quant_text(u.fmt.k),
		                quant_text(u.fmt.v), u.page));
	for (const uint32_t d : {128u, 256u})
		for (const uint32_t flags : {uint32_t(PROMPT_LSE), uint32_t(PROMPT_STATE)})
			add(out, choose_attend_prompt(c, 8, d, PROMPT_SEEN | flags),
			    fmt::format("head_dim {}, 8 heads, seen tokens{}", d, flags == PROMPT_LSE ? ", lse" : ", state"));
}

// Heads on one latent: DeepSeek V2 Lite's and V3's, GLM-4.7-Flash's.
void latent_uses(const Caps& c, Uses& out) {
	constexpr uint32_t kRank = 512, kRope = 64;
	for (const uint32_t heads : {16u, 20u, 128u}) {
		const LatentShape shape{heads, kRank, kRope};
		const std::string what = fmt::format("latents, {} heads", heads);
		for (const KvPolicy& p : policy_samples()) try {
				for (const PageFormat& f : make_plan(p, {32, 1, kRank, kRope}).formats) {
					if (!f.page) continue;
					const std::string text = fmt::format("{}, K {}, V {}, pages of {}", what, quant_text(f.fmt.k),
					                                     quant_text(f.fmt.v), f.page);
					for (const bool prompt : {false, true})
						add(out, choose_attend_latent(c, shape, f.fmt, f.page, prompt),
						    text + (prompt ? ", rows of a prompt" : ""));
					if (heads == 128) // behind an indexer
						add(out, choose_attend_latent(c, shape, f.fmt, f.page, /*prompt=*/false, /*sparse=*/true),
						    text);
					if (heads == 16) add(out, choose_unpack_latent(c, kRank, kRope, f.fmt, f.page), text);
					if (f.fmt.k.bits != 3 && f.fmt.k.scale != Scale::Codebook) // as in attend_uses()
						add(out, choose_weigh_latent(c, shape, f.fmt, f.page, 0), text);
				}
			} catch (const Error& e) { // policies that do not apply to latents
				if (e.code != Code::Invalid && e.code != Code::Unsupported) throw;
			}
		std::vector<uint32_t> all_flags = {0, PROMPT_STATE, PROMPT_LSE};
		if (heads == 128) all_flags.insert(all_flags.end(), {PROMPT_SEEN | PROMPT_STATE, PROMPT_SEEN | PROMPT_LSE});
		for (const uint32_t flags : all_flags)
			add(out, choose_attend_latent_prompt(c, shape, flags), fmt::format("{}, flags {}", what, flags));
	}
	const LatentShape hunyuan{32, kRank, kRope};
	add(out, choose_attend_latent_prompt(c, hunyuan, PROMPT_SINKS | PROMPT_LSE), "latents, 32 heads, sinks");
	add(out, choose_attend_merge(c, kRank, MERGE_SINKS), "latents, sinks");
	for (const uint32_t flags : {0u, PROMPT_LSE}) // the expanded form
		add(out, choose_attend_prompt(c, 1, 128 + kRope, flags), fmt::format("heads of latents, flags {}", flags));
	for (const uint32_t flags : {0u, uint32_t(JOIN_B), uint32_t(JOIN_OUT_HALVES),
	                             uint32_t(JOIN_OUT_HALVES | JOIN_B | JOIN_B_HALVES), uint32_t(JOIN_A_HALVES)})
		add(out, choose_join_heads(flags), fmt::format("flags {}", flags));
	for (const bool seen : {false, true})
		add(out, choose_score_latent(c, kRank, kRope, false, seen), seen ? "latents, seen tokens" : "latents");
	for (const uint32_t page : kPages)
		add(out, choose_score_latent_slots(c, kRank, kRope, page, false), fmt::format("latents, pages of {}", page));
	add(out, choose_rope_store(c, /*vec4_aligned=*/false, kRope, ROPE_OF_VALUES), "latents");
	add(out, choose_rope_store(c, /*vec4_aligned=*/false, 512, ROPE_BACK), "head_dim 512, back");
	add(out, choose_kv_store(c, kRank, kRope), "latents");
}

void pack_uses(const Caps& c, Uses& out) {
	const std::pair<uint32_t, const char*> channels[] = {{0, ""},
	                                                     {PACK_K_BLOCK, ", in blocks"},
	                                                     {PACK_K_BALANCE, ", balanced"},
	                                                     {PACK_K_BYTES, ", parameters in bytes"}};
	const std::pair<uint32_t, const char*> tokens[] = {{0, "keys"},
	                                                   {PACK_T_BALANCE, "balanced keys"},
	                                                   {PACK_T_VALUES, "values"},
	                                                   {PACK_T_VALUES | PACK_T_FACTORS, "values with factors"}};
	for (const uint32_t d : {64u, 80u, 96u, 128u})
		for (const uint8_t bits : kBits)
			for (const uint32_t page : kPages) {
				const std::string shape = fmt::format("head_dim {}, {} bit, pages of {}", d, bits, page);
				const Quant q{.bits = bits, .group = uint16_t(d % 32 ? d : 32)};
				for (const auto& [flags, text] : channels)
					add(out, choose_pack_channels(q, d, page, flags), shape + text);
				if (page == 32 && bits <= 4) add(out, choose_pack_runs(q, d, page), shape);
				if (page != 64)
					for (const auto& [flags, text] : tokens)
						add(out, choose_pack_tokens(c, q, d, page, flags), fmt::format("{}, {}", shape, text));
			}
	for (const uint32_t d : {64u, 80u, 128u, 256u, 512u})
		for (const uint8_t bits : {1, 2, 3, 4})
			for (const bool values : {false, true}) {
				const Quant q{.bits = bits,
				              .scale = Scale::Codebook,
				              .group = 128,
				              .rotate = true,
				              .mean = !values,
				              .param_bits = 8};
				add(out, choose_pack_pages(q, values, d, 128), fmt::format("head_dim {}, {}", d, quant_text(q)));
			}
	for (const uint8_t bits : kBits)
		for (const bool balanced : {false, true})
			add(out, choose_kv_block(c, bits, balanced), fmt::format("{} bit{}", bits, balanced ? ", balanced" : ""));
}

void score_uses(const Caps& c, Uses& out) {
	const auto heads = [](bool matter, uint32_t share) { return matter ? fmt::format(", {} heads", share) : ""; };
	for (const uint32_t d : kHeadDims)
		for (const uint32_t share : {1u, 4u, 8u}) {
			add(out, choose_score_prompt(c, d, share, 8),
			    fmt::format("head_dim {}{}", d, heads(reads_texels(c) || scores_by_matrices(c, d), share)));
			for (const uint32_t page : kPages)
				add(out, choose_score_slots(c, d, share, 1, page),
				    fmt::format("head_dim {}{}, pages of {}", d, heads(reads_texels(c), share), page));
		}
	for (const uint32_t d : {128u, 256u})
		add(out, choose_score_prompt(c, d, 8, 8, {}, /*softcap=*/false, /*seen=*/true),
		    fmt::format("head_dim {}, 8 heads, seen tokens", d));
	add(out, choose_channel_max(c), "");
	add(out, choose_top_k(c), "");
	add(out, choose_block_max(), "");
	add(out, choose_candidates(c), "");
	add(out, choose_scatter(c), "");
	add(out, choose_part_share(c), "");
	add(out, choose_kv_balance(c), "");
	for (const uint32_t d : {64u, 128u})
		for (const uint32_t flags : {0u, INDEX_WEIGHTS})
			add(out, choose_index_score(c, d, flags), fmt::format("keys of {}{}", d, flags ? ", weights" : ""));
	add(out, choose_index_score(c, 128, INDEX_POOL), "keys of 128, several to a score");
	add(out, choose_index_pick(c), "");
	add(out, choose_index_live(), "");
}

} // namespace

std::vector<KernelUse> kernel_uses(const Caps& c) {
	Uses out;
	basic_uses(c, out);
	matmul_uses(c, out);
	expert_uses(c, out);
	state_uses(c, out);
	attend_uses(c, out);
	pack_uses(c, out);
	score_uses(c, out);
	latent_uses(c, out);
	return out;
}

} // namespace kvrun::vk

// Audio encoders as llama.cpp's mmproj files describe them.
#include "models/audio.h"
#include "engine/core/round.h"
#include "engine/core/utf8.h"
#include "models/encoder_keys.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <xxhash.h>

namespace kvrun {
namespace {

constexpr Step exact_gelu() { return {.kind = Step::Activate, .function = Activation::Gelu}; }

constexpr AudioProjector kProjectors[] = {
    // arXiv:2507.13264
    {.name = "voxtral",
     .apart = true,
     .whole = true,
     .steps = {{{Step::LayerNorm, "a.post_ln"},
                {Step::Stack},
                {Step::Matrix, "mm.a.mlp.1"},
                exact_gelu(),
                {Step::Matrix, "mm.a.mlp.2"}}},
     .begin = "[BEGIN_AUDIO]"},
    {.name = "ultravox",
     .apart = true,
     .bare = true,
     .steps = {{{Step::LayerNorm, "a.post_ln"},
                {Step::Stack},
                {Step::RmsNorm, "mm.a.norm_pre"},
                {Step::Halves, "mm.a.mlp.1"},
                {Step::RmsNorm, "mm.a.norm_mid"},
                {Step::Matrix, "mm.a.mlp.2"}}},
     .step_eps = 1e-6f},
    // GLM-ASR
    {.name = "glma",
     .apart = true,
     .filled = true,
     .rotated = true,
     .steps = {{{Step::LayerNorm, "mm.a.norm_pre"},
                {Step::Stack},
                {Step::Matrix, "mm.a.mlp.1"},
                exact_gelu(),
                {Step::Matrix, "mm.a.mlp.2"}}},
     .begin = "<|begin_of_audio|>",
     .end = "<|end_of_audio|>"},
    // Audio Flamingo 3, arXiv:2507.08128
    {.name = "musicflamingo",
     .apart = true,
     .mean = 2,
     .steps =
         {{{Step::LayerNorm, "a.post_ln"}, {Step::Matrix, "mm.a.mlp.1"}, exact_gelu(), {Step::Matrix, "mm.a.mlp.2"}}}},
    // arXiv:2407.10759
    {.name = "qwen2a",
     .apart = true,
     .mean = 2,
     .steps = {{{Step::LayerNorm, "a.post_ln"}, {Step::Matrix, "mm.a.fc"}}},
     .begin = "<|audio_bos|>",
     .end = "<|audio_eos|>"},
    // arXiv:2503.20215
    {.name = "qwen2.5o",
     .part = 200,
     .seen = 1,
     .mean = 2,
     .steps = {{{Step::LayerNorm, "a.post_ln"}, {Step::Matrix, "mm.a.fc"}}},
     .begin = "<|audio_bos|>",
     .end = "<|audio_eos|>"},
    // arXiv:2509.17765
    {.name = "qwen3a",
     .convolutions = Convolutions::Planes,
     .piece = 3200,
     .part = 100,
     .alike = true,
     .seen = 8,
     .steps =
         {{{Step::LayerNorm, "a.post_ln"}, {Step::Matrix, "mm.a.mlp.1"}, exact_gelu(), {Step::Matrix, "mm.a.mlp.2"}}},
     .begin = "<|audio_start|>",
     .end = "<|audio_end|>"},
    // arXiv:2505.08699
    {.name = "granite_speech",
     .features = Features::Log10MelPairs,
     .convolutions = Convolutions::Matrix,
     .layers = AudioLayers::Blocks,
     .piece = 12000, // the convolutions of its rows end there, which those of the model do not
     .asked = true,
     .steps = {{{Step::Matrix, "a.proj_linear"}}}},
    {.name = "gemma4a",
     .features = Features::LogMel,
     .convolutions = Convolutions::Normed,
     .layers = AudioLayers::Conformer,
     .apart = true,
     .steps = {{{Step::Matrix, "a.pre_encode.out"}, {Step::UnitNorm}, {Step::Matrix, "mm.a.input_projection"}}},
     .begin = "<|audio>",
     .end = "<audio|>"},
    // The 12B model's reads samples.
    {.name = "gemma4ua",
     .features = Features::Samples,
     .convolutions = Convolutions::None,
     .layers = AudioLayers::None,
     .steps = {{{Step::UnitNorm}, {Step::Matrix, "mm.a.input_projection"}}},
     .begin = "<|audio>",
     .end = "<audio|>"},
};

std::string projector_names() {
	std::string all;
	for (const AudioProjector& p : kProjectors) all += fmt::format("{}{}", all.empty() ? "" : ", ", p.name);
	return all;
}

constexpr uint32_t kMostBins = 512;

Config transformer_of(const Gguf& g, const AudioProjector& p) {
	Config c;
	c.arch = "clip", c.encodes = true;
	c.norm = p.layers == AudioLayers::Conformer ? NormKind::Rms : NormKind::LayerBiased;
	c.norm_eps = norm_epsilon(g, "clip.audio.attention.layer_norm_epsilon");
	c.dim = sized(g, "clip.audio.embedding_length", kMostEncoderDim);
	if (p.layers == AudioLayers::None) { // the least that heads may be, which nothing reads
		c.n_heads = c.n_kv_heads = 1, c.head_dim = 8;
		c.ropes = {{.dim = c.head_dim}};
		return c;
	}
	c.n_layers = sized(g, "clip.audio.block_count", kMostEncoderLayers);
	c.n_heads = c.n_kv_heads = sized(g, "clip.audio.attention.head_count", kMostEncoderHeads);
	c.head_dim = c.dim / c.n_heads;
	c.hidden_dim = sized(g, "clip.audio.feed_forward_length", kMostEncoderDim);
	if (c.head_dim == 0 || c.head_dim % 8 != 0 || c.head_dim > kMostEncoderHeadDim || c.head_dim * c.n_heads != c.dim ||
	    c.hidden_dim % 4 != 0)
		fail(Code::Unsupported,
		     "{}: {} channels in {} heads and {} in the MLP; kvrun runs heads of multiples of 8 up to {} channels, and "
		     "MLPs of multiples of 4",
		     g.name(), c.dim, c.n_heads, c.hidden_dim, kMostEncoderHeadDim);
	c.ropes = {{.dim = p.rotated ? c.head_dim / 2 : c.head_dim, .rotates = p.rotated, .neox = !p.rotated}};
	Layer layer;
	layer.n_heads = layer.n_kv_heads = c.n_heads, layer.head_dim = c.head_dim, layer.hidden_dim = c.hidden_dim;
	layer.mlp = MlpKind::Plain;
	layer.activation = Activation::Gelu;
	for (uint32_t l = 0; l < c.n_layers; ++l) {
		layer.kv_layer = l;
		c.layers.push_back(layer);
	}
	return c;
}

// Of a convolution of three places that moves by two.
uint32_t halved(uint32_t n) { return n ? (n - 1) / 2 + 1 : 0; }

} // namespace

std::span<const AudioProjector> audio_projectors() { return kProjectors; }

uint32_t AudioConfig::shortened(uint32_t frames) const {
	switch (projector->convolutions) {
	case Convolutions::None:
	case Convolutions::Matrix: break;
	case Convolutions::Lines: return halved(frames);
	case Convolutions::Planes: return halved(halved(halved(frames)));
	case Convolutions::Normed: return halved(halved(frames));
	}
	return frames;
}

uint32_t AudioConfig::transformer_rows(uint32_t frames) const {
	return frames / part() * shortened(part()) + shortened(frames % part());
}

uint32_t AudioConfig::rows(uint32_t frames) const {
	const uint32_t n = transformer_rows(frames) / projector->mean;
	if (window) return (n + window - 1) / window * queries;
	return projector->filled ? n / stack : (n + stack - 1) / stack;
}

// Sizes of AudioLayers::Blocks and AudioProjector::asked.
static void read_blocks(const Gguf& g, AudioConfig& a) {
	constexpr uint32_t kMostBlock = 1 << 12;
	if (a.bins % 4 != 0)
		fail(Code::Format, "{}: key clip.audio.num_mel_bins is {}, expected a multiple of 4; the file is damaged",
		     g.name(), a.bins);
	if (g.find("clip.audio.feature_layer"))
		fail(Code::Unsupported,
		     "{}: key clip.audio.feature_layer: rows of several layers side by side (Granite Speech Plus) are not "
		     "supported; take another model's file",
		     g.name());
	a.block = sized(g, "clip.audio.chunk_size", kMostBlock);
	a.farthest = sized(g, "clip.audio.max_pos_emb", kMostEncoderDim);
	if (a.farthest + 1 < a.block)
		fail(Code::Format, "{}: key clip.audio.max_pos_emb is {}, but blocks have {} rows; the file is damaged",
		     g.name(), a.farthest, a.block);
	a.window = sized(g, "clip.audio.projector.window_size", kMostBlock);
	a.queries = a.window / sized(g, "clip.audio.projector.downsample_rate", a.window);
	a.query_heads = sized(g, "clip.audio.projector.head_count", kMostEncoderHeads);
	if (a.transformer.dim % a.query_heads != 0)
		fail(Code::Format,
		     "{}: key clip.audio.projector.head_count is {}, no divisor of {} channels; the file is damaged", g.name(),
		     a.query_heads, a.transformer.dim);
}

bool has_audio(const Gguf& g) {
	return g.text("general.architecture", "") == "clip" && g.flag("clip.has_audio_encoder", false);
}

const AudioProjector& audio_projector_of(const Gguf& g) {
	const std::string_view type = g.text("clip.audio.projector_type", g.text("clip.projector_type", ""));
	const auto p =
	    std::ranges::find(kProjectors, type, [](const AudioProjector& x) { return std::string_view(x.name); });
	if (p == std::end(kProjectors))
		fail(Code::Unsupported, "{}: audio projector '{}' is not supported; kvrun runs {}", g.name(), one_line(type),
		     projector_names());
	return *p;
}

AudioConfig read_audio(const Gguf& g, const Config& model) {
	AudioConfig a;
	const AudioProjector* p = a.projector = &audio_projector_of(g);
	a.transformer = transformer_of(g, *p);
	a.bins = p->features == Features::Samples ? a.transformer.dim : sized(g, "clip.audio.num_mel_bins", kMostBins);
	if (p->steps[1].kind == Step::Stack) {
		a.stack = sized(g, "clip.audio.projector.stack_factor", 64);
		if (a.joined_dim() > kMostEncoderDim)
			fail(Code::Unsupported, "{}: {} rows of {} channels become one; kvrun runs up to {} channels", g.name(),
			     a.stack, a.transformer.dim, kMostEncoderDim);
	}
	if (p->layers == AudioLayers::Blocks) read_blocks(g, a);
	a.limited = g.find_tensor("a.blk.0.attn_q.input_min") != nullptr;
	a.out_dim = sized(g, "clip.audio.projection_dim", kMostEncoderDim);
	for (const Step& s : p->steps) // some files have other numbers under the key
		if (s.kind == Step::Matrix)
			if (const GgufTensor* t = g.find_tensor(std::string(s.tensor) + ".weight"))
				a.out_dim = uint32_t(std::min<uint64_t>(t->rows(), kMostEncoderDim));
	if (a.out_dim != model.dim)
		fail(Code::Unsupported,
		     "{}: rows of its sounds have {} channels, the model's {}; take the mmproj file of this model", g.name(),
		     a.out_dim, model.dim);
	return a;
}

std::vector<AudioPiece> cut_audio(const AudioConfig& c, std::span<const float> samples) {
	const AudioProjector& p = *c.projector;
	if (samples.size() > kMostSamples)
		fail(Code::Invalid, "a sound of {} s; kvrun reads up to {} s", samples.size() / kSampleRate,
		     kMostSamples / kSampleRate);
	const uint64_t step = p.features == Features::Samples ? c.bins : kFrameStep;
	// Convolutions read so many frames behind those of the sound.
	constexpr uint32_t kBehind = 4;
	const bool behind = p.convolutions == Convolutions::Lines && !p.part && !p.bare;
	std::vector<AudioPiece> out;
	const auto add = [&](std::span<const float> part, uint32_t frames) {
		const uint32_t n = p.whole || p.filled ? p.piece : behind ? std::min(frames + kBehind, p.piece) : frames;
		if (c.rows(p.whole ? n : frames) > 0)
			out.push_back({spectrogram(p.features, part, c.bins, n, p.bare), p.whole ? n : frames});
	};
	if (p.apart) {
		for (size_t at = 0; at < samples.size(); at += p.piece * step) {
			const std::span<const float> part =
			    samples.subspan(at, std::min<size_t>(p.piece * step, samples.size() - at));
			add(part, p.bare ? uint32_t(part.size() / kFrameStep) : frames_of(p.features, part.size(), c.bins));
		}
	} else {
		const uint32_t frames = frames_of(p.features, samples.size(), c.bins);
		Spectrogram all = spectrogram(p.features, samples, c.bins, frames);
		for (uint32_t at = 0; at < frames; at += p.piece) {
			const uint32_t n = std::min(p.piece, frames - at);
			if (c.rows(n) == 0) break;
			const auto from = all.values.begin() + ptrdiff_t(size_t(at) * c.bins);
			AudioPiece piece{{n, c.bins, {from, from + ptrdiff_t(size_t(n) * c.bins)}}, n};
			if (p.alike && frames > p.part) {
				piece.spectrogram.frames = align_up(n, p.part);
				piece.spectrogram.values.resize(size_t(piece.spectrogram.frames) * c.bins);
			}
			out.push_back(std::move(piece));
		}
	}
	if (out.empty())
		fail(Code::Invalid, "a sound of {} samples ({} ms) is too short for the model's encoder", samples.size(),
		     samples.size() * 1000 / kSampleRate);
	return out;
}

uint64_t audio_hash(std::span<const float> samples, uint64_t encoder) {
	const uint64_t about[] = {encoder, samples.size(), 0xa0d10};
	return XXH3_64bits_withSeed(samples.data(), samples.size_bytes(), XXH3_64bits(about, sizeof about));
}

} // namespace kvrun

// Runs an audio encoder on a backend.
#include "engine/run/audio_encoder.h"
#include "engine/run/arena.h"
#include "engine/run/conformer.h"
#include "engine/run/convolve.h"
#include "engine/run/rope_table.h"
#include "engine/run/row_encoder.h"
#include "engine/run/row_steps.h"
#include "engine/run/window_queries.h"
#include <algorithm>

namespace kvrun {
namespace {

// That the layers read.
uint32_t frames_read(const AudioConfig& c, const AudioPiece& piece) {
	return c.projector->filled ? piece.spectrogram.frames : piece.frames;
}

// Attention among the rows of AudioProjector::seen parts.
class AttentionRun : public EncoderRun {
 public:
	AttentionRun(AudioEncoder& e, const AudioPiece& piece) : AttentionRun(e, e.embedded(piece), piece.frames) {}
	bool done() const override { return layer_ == encoder_.config().transformer.n_layers; }
	void step() override { rows_.run(layer_++, groups_); }
	TileRows finish() override {
		std::vector<float> rows = read_view(encoder_.backend(), rows_.x());
		if (encoder_.config().projector->filled)
			rows.resize(size_t(encoder_.config().rows(frames_)) * encoder_.config().joined_dim());
		return encoder_.projected(std::move(rows));
	}

 private:
	AttentionRun(AudioEncoder& e, const std::vector<float>& x, uint32_t frames)
	    : encoder_(e), frames_(frames),
	      rows_(e.backend(), e.config().transformer, e.weights().transformer,
	            uint32_t(x.size() / e.config().transformer.dim), e.config().transformer.dim, 1, RowEncoder::kRows) {
		const Config& c = e.config().transformer;
		std::vector<float> rotations;
		RopeTable table(c.ropes[0], rows_.n());
		for (uint32_t i = 0; i < rows_.n(); ++i) table.append(i, rotations);
		write_view(e.backend(), rows_.rope(0), rotations);
		write_view(e.backend(), rows_.x(), x);
		std::vector<uint32_t> begins = {0};
		const uint32_t seen = e.config().projector->seen * e.config().part();
		for (uint32_t at = seen; seen && at < frames; at += seen) begins.push_back(e.config().transformer_rows(at));
		begins.push_back(rows_.n());
		groups_ = rows_.write_groups(std::move(begins));
	}
	AudioEncoder& encoder_;
	uint32_t frames_; // of the sound
	RowEncoder rows_;
	RowGroups groups_;
	uint32_t layer_ = 0; // the next
};

// Of an encoder without layers.
class NoRun : public EncoderRun {
 public:
	NoRun(AudioEncoder& e, const AudioPiece& piece) : encoder_(e), rows_(e.embedded(piece)) {}
	bool done() const override { return true; }
	void step() override {}
	TileRows finish() override { return encoder_.projected(rows_); }

 private:
	AudioEncoder& encoder_;
	std::vector<float> rows_;
};

// Means of so many neighbouring rows; the rest is dropped.
std::vector<float> means(const std::vector<float>& rows, uint32_t dim, uint32_t n) {
	if (n == 1) return rows;
	std::vector<float> out(rows.size() / (size_t(dim) * n) * dim);
	for (size_t i = 0; i < out.size(); ++i) {
		float sum = 0;
		for (size_t k = 0; k < n; ++k) sum += rows[(i / dim * n + k) * dim + i % dim];
		out[i] = sum / float(n);
	}
	return out;
}

} // namespace

AudioEncoder::AudioEncoder(Backend& be, const Gguf& file, AudioConfig config)
    : be_(be), config_(std::move(config)), weights_(load_audio(file, config_, be)) {}

double AudioEncoder::work(const AudioPiece& piece) const {
	const Config& c = config_.transformer;
	const double n = config_.transformer_rows(frames_read(config_, piece)), dim = c.dim;
	const double seen = config_.block ? config_.block : n; // rows, by a row
	double convolutions = 0,
	       places = double(piece.frames) * (config_.projector->convolutions == Convolutions::Lines ? 1 : config_.bins);
	for (const ConvolutionWeights& w : weights_.convolutions) {
		places /= w.step * (w.plane ? w.step : 1);
		convolutions += places * 2 * w.columns() * w.out;
	}
	return convolutions + c.n_layers * n * (2 * dim * (4 * dim + 2. * c.hidden_dim) + 4 * dim * seen);
}

std::vector<float> AudioEncoder::embedded(const AudioPiece& piece) {
	const Spectrogram& s = piece.spectrogram;
	const uint32_t dim = config_.transformer.dim, part = config_.part(), frames = frames_read(config_, piece);
	const StepWeights in{.kind = Step::Matrix, .w = weights_.in, .bias = weights_.in_bias, .rows = dim};
	if (weights_.convolutions.empty() && !weights_.in) return s.values;
	if (weights_.convolutions.empty()) return run_steps(be_, {&in, 1}, s.values, s.bins, kUnlimited);
	std::vector<float> out;
	for (uint32_t first = 0; first < frames; first += part) {
		const uint32_t n = std::min(part, s.frames - first), rows = config_.shortened(std::min(part, frames - first));
		const bool plane = weights_.convolutions[0].plane;
		const auto from = s.values.begin() + ptrdiff_t(size_t(first) * s.bins);
		Plane x{n, plane ? s.bins : 1, plane ? 1 : s.bins, {from, from + ptrdiff_t(size_t(n) * s.bins)}};
		for (const ConvolutionWeights& w : weights_.convolutions) x = convolve(be_, w, x, config_.transformer.norm_eps);
		x.values.resize(size_t(rows) * x.bins * x.channels);
		if (weights_.in) x.values = run_steps(be_, {&in, 1}, x.values, x.bins * x.channels, kUnlimited);
		for (size_t i = 0; i < x.values.size() && !weights_.positions.empty(); ++i)
			x.values[i] += weights_.positions[i];
		out.insert(out.end(), x.values.begin(), x.values.end());
	}
	return out;
}

TileRows AudioEncoder::projected(std::vector<float> rows) {
	const uint32_t dim = config_.transformer.dim;
	rows = means(rows, dim, config_.projector->mean);
	if (config_.projector->asked) rows = ask_windows(be_, config_, weights_.asked, std::move(rows));
	if (!weights_.before.empty()) rows = run_steps(be_, weights_.before, rows, dim, kUnlimited);
	rows.resize(align_up(rows.size(), size_t(config_.joined_dim())));
	return {run_steps(be_, weights_.projector, rows, config_.joined_dim(), kUnlimited)};
}

std::unique_ptr<EncoderRun> AudioEncoder::begin(const AudioPiece& piece) {
	switch (config_.projector->layers) {
	case AudioLayers::Attention: return std::make_unique<AttentionRun>(*this, piece);
	case AudioLayers::Conformer:
	case AudioLayers::Blocks: return std::make_unique<ConformerRun>(*this, piece);
	case AudioLayers::None: break;
	}
	return std::make_unique<NoRun>(*this, piece);
}

TileRows AudioEncoder::encode(const AudioPiece& piece) {
	const auto run = begin(piece);
	while (!run->done()) run->step();
	return run->finish();
}

uint64_t AudioEncoder::bytes(const AudioConfig& a) {
	const uint32_t n = a.transformer_rows(a.projector->piece);
	return RowEncoder::bytes(a.transformer, n, a.transformer.dim, 1) + (uint64_t(96) << 20); // of the convolutions
}

} // namespace kvrun

// Makes a vector of each text with a model whose tokens see each other.
#include "engine/run/text_encoder.h"
#include "engine/run/arena.h"
#include "engine/run/rope_table.h"
#include "engine/run/usable.h"
#include "models/text_encoder.h"
#include <algorithm>
#include <cmath>

namespace kvrun {
namespace {

// Elements of a row that holds a query, and before the first layer what is added to an embedding.
uint32_t row_room(const Config& c) { return std::max(widest(c).q, c.dim); }

uint32_t n_tokens(std::span<const EncoderText> texts) {
	uint64_t n = 0;
	for (const EncoderText& t : texts) n += t.tokens.size();
	KV_ASSERT(n <= UINT32_MAX);
	return uint32_t(n);
}

void check_finite(std::span<const float> states, size_t dim) {
	for (size_t at = 0; at < states.size(); at += dim)
		if (!has_norm(states.subspan(at, dim)))
			fail(Code::Device, "the state of a text is not finite in f32: weights of the model are damaged; "
			                   "KVRUN_CHECK=1 names the operation");
}

void softmax(std::span<float> x) {
	const double most = std::ranges::max(x);
	double sum = 0;
	for (const float v : x) sum += std::exp(v - most);
	for (float& v : x) v = float(std::exp(v - most) / sum);
}

} // namespace

TextEncoder::TextEncoder(Backend& be, const Config& c, const Weights& w, const Loras* loras)
    : be_(be), config_(c), weights_(w), loras_(loras) {
	KV_ASSERT(c.encodes);
}

void TextEncoder::check(std::span<const EncoderText> texts) const {
	for (const EncoderText& t : texts) {
		const size_t number = size_t(&t - texts.data()) + 1;
		const std::string name = texts.size() == 1 ? "a text" : fmt::format("text {} of {}", number, texts.size());
		if (t.tokens.empty()) fail(Code::Invalid, "{} has no tokens", name);
		if (t.tokens.size() > config_.max_seq)
			fail(Code::Context, "{} has {} tokens, the model takes {}; shorten or divide it", name, t.tokens.size(),
			     config_.max_seq);
		for (const uint32_t token : t.tokens)
			if (token >= config_.vocab)
				fail(Code::Invalid, "token {} does not exist, the model has {} tokens", token, config_.vocab);
	}
}

// The rows of tokens, and what encoders add to them: positions, types of the parts of a pair, a norm.
void TextEncoder::embed(RowEncoder& rows, std::span<const EncoderText> texts) {
	std::vector<uint32_t> ids, places, types;
	std::vector<float> ropes[kMostRopes];
	const RopeTables tables(config_, config_.max_seq);
	for (const EncoderText& t : texts) {
		ids.insert(ids.end(), t.tokens.begin(), t.tokens.end());
		for (uint32_t i = 0; i < t.tokens.size(); ++i) {
			places.push_back(i), types.push_back(i >= t.second ? 1 : 0);
			for (size_t r = 0; r < config_.ropes.size(); ++r) tables[r].append(i, ropes[r]);
		}
	}
	for (size_t r = 0; r < config_.ropes.size(); ++r) write_view(be_, rows.rope(r), ropes[r]);
	write_view(be_, rows.ids(), ids);
	be_.at_layer(0);
	rows.runner().embed(rows.x(), 0, {rows.ids()}, /*decode=*/false);
	const TextWeights& w = weights_.text;
	const View added = shaped(rows.att(), rows.n(), config_.dim);
	const auto add = [&](const View& table, const std::vector<uint32_t>& numbers) {
		if (!table) return;
		write_view(be_, rows.ids(), numbers);
		be_.embed(added, table, rows.ids());
		be_.activate(rows.x(), added, {}, {.add = true});
	};
	add(w.positions, places);
	if (config_.text_input.types < 2) std::ranges::fill(types, 0);
	add(w.types, types);
	if (w.norm.w) rows.runner().norm(rows.x(), rows.x(), w.norm);
}

bool TextEncoder::run(RowEncoder& rows, std::span<const EncoderText> texts,
                      const std::function<bool(uint32_t)>& go_on) {
	std::vector<uint32_t> begins = {0};
	for (const EncoderText& t : texts) begins.push_back(begins.back() + uint32_t(t.tokens.size()));
	const RowGroups groups = rows.write_groups(std::move(begins));
	for (uint32_t l = 0; l < config_.n_layers; ++l) {
		if (go_on && !go_on(l)) return false;
		if (l == 0) embed(rows, texts);
		rows.run(l, groups);
		be_.wait(); // no more work is queued than that of a layer, so that others and cancellers get their turn
	}
	if (!weights_.final_norm.w) return true;
	check_finite(read_view(be_, rows.x()), config_.dim); // a norm hides what is not finite
	rows.runner().norm_states(rows.x(), rows.x());
	return true;
}

std::vector<float> TextEncoder::encode(std::span<const EncoderText> texts, Pooling pooling,
                                       const std::function<bool(double)>& go_on) {
	check(texts);
	const size_t dim = config_.dim;
	std::vector<float> out(texts.size() * dim);
	const double all = n_tokens(texts);
	double done = 0;
	for (size_t first = 0; first < texts.size();) {
		size_t n = 1;
		uint32_t tokens = uint32_t(texts[first].tokens.size());
		while (first + n < texts.size() && tokens + texts[first + n].tokens.size() <= kTokens)
			tokens += uint32_t(texts[first + n++].tokens.size());
		const std::span<const EncoderText> batch = texts.subspan(first, n);
		RowEncoder rows(be_, config_, weights_, tokens, row_room(config_), 1, RowEncoder::kRows, loras_);
		const auto at_layer = [&](uint32_t l) {
			return !go_on || go_on((done + double(tokens) * l / config_.n_layers) / all);
		};
		if (!run(rows, batch, at_layer)) return {};
		float* const to = &out[first * dim];
		if (pooling == Pooling::Mean) {
			const std::vector<float> states = read_view(be_, rows.x());
			size_t row = 0;
			for (size_t t = 0; t < n; ++t) {
				const size_t m = batch[t].tokens.size();
				for (size_t d = 0; d < dim; ++d) {
					double sum = 0;
					for (size_t i = 0; i < m; ++i) sum += states[(row + i) * dim + d];
					to[t * dim + d] = float(sum / double(m));
				}
				row += m;
			}
		} else {
			uint32_t row = 0;
			for (size_t t = 0; t < n; ++t) {
				const uint32_t m = uint32_t(batch[t].tokens.size());
				const View one = kvrun::rows(rows.x(), pooling == Pooling::First ? row : row + m - 1, 1);
				be_.read(*one.buf, one.at, std::as_writable_bytes(std::span(to + t * dim, dim)));
				row += m;
			}
			be_.submit();
			be_.wait();
		}
		first += n, done += tokens;
	}
	check_finite(out, dim);
	return out;
}

std::vector<float> TextEncoder::states(std::span<const EncoderText> texts) {
	check(texts);
	RowEncoder rows(be_, config_, weights_, n_tokens(texts), row_room(config_), 1, RowEncoder::kRows, loras_);
	run(rows, texts, {});
	std::vector<float> out = read_view(be_, rows.x());
	check_finite(out, config_.dim);
	return out;
}

std::vector<float> PooledHead::through(std::vector<float> values, uint32_t widest,
                                       const std::function<View(View from, const NextRoom&)>& apply) const {
	const uint32_t n = uint32_t(values.size() / config_.dim);
	KV_ASSERT(n > 0);
	Buffer memory;
	std::array<View, 2> rooms;
	allocate(be_, memory, "vectors", [&](Arena& a) {
		for (View& room : rooms) room = a.take(DType::F32, n, widest);
	});
	be_.at_layer(0);
	const View from = shaped(rooms[0], n, config_.dim);
	write_view(be_, from, values);
	size_t at = 0;
	return read_view(be_, apply(from, [&](uint32_t columns) { return shaped(rooms[at ^= 1], n, columns); }));
}

std::vector<float> PooledHead::vectors(std::vector<float> pooled) const {
	const TextHead& h = config_.text_head;
	if (!h.dense[0] && !h.dense[1]) return pooled;
	const uint32_t widest = std::max({config_.dim, h.dense[0], h.dense[1]});
	return through(std::move(pooled), widest, [&](View from, const NextRoom& next) {
		for (size_t i = 0; i < 2; ++i) {
			if (!h.dense[i]) continue;
			const Proj dense[] = {{next(h.dense[i]), weights_.dense[i], {}}};
			be_.matmul(dense, from, Epilogue::None, /*decode=*/false);
			from = dense[0].out;
		}
		return from;
	});
}

std::vector<float> PooledHead::scores(std::vector<float> pooled) const {
	const TextHead& h = config_.text_head;
	KV_ASSERT(h.labels);
	const uint32_t widest = std::max(config_.dim, h.labels);
	std::vector<float> out = through(std::move(pooled), widest, [&](View from, const NextRoom& next) {
		if (h.hidden) {
			const Proj hidden[] = {{next(config_.dim), weights_.hidden, weights_.hidden_b}};
			be_.matmul(hidden, from, Epilogue::None, /*decode=*/false);
			from = hidden[0].out;
			const bool tanh = h.activation == Activation::None;
			be_.activate(from, from, {}, {.function = h.activation, .cap = tanh ? 1.f : 0});
			if (h.normed) be_.layer_norm(from, from, weights_.hidden_norm, {}, config_.norm_eps);
		}
		const Proj classifier[] = {{next(h.labels), weights_.classifier, weights_.classifier_b}};
		be_.matmul(classifier, from, Epilogue::None, /*decode=*/false);
		return classifier[0].out;
	});
	if (h.softmax)
		for (size_t at = 0; at < out.size(); at += h.labels) softmax(std::span(out).subspan(at, h.labels));
	return out;
}

} // namespace kvrun

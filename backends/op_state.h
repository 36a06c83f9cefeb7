// Rows of the operation table: recurrent layers, whose state takes the place of keys and values.
#pragma once
#include "backends/op_cache.h"

namespace kvrun {

namespace op {

// The words from the first to the last state that rows replace, `words` each.
std::vector<WrittenWords> written_states(const StateRows&, uint32_t words, std::string_view rule, const WordReader&);
void check_state_rows(const StateRows&, uint32_t words);

void state_views(auto& rows, auto& f) {
	f(input("work", U32, {rows.work.shape[0], STATE_WORDS}), rows.work);
	f(memory("from", F32), rows.from);
	f(memory("to", F32).stores(), rows.to);
}

// out (T, channels) = f(bias[c] + sum over j < taps of w[c][j] * x[t - (taps - 1) + j][c]), w (channels, taps); f is
// silu or nothing. The rows before a sequence's first row are its state: (taps - 1, channels), the oldest row first.
// With gates: out[t][c] = sum over j of softmax_j(gates[t - (taps - 1) + j][c] + w[j][c]) * x[t - (taps - 1) + j][c], w
// (taps, channels); the state then has as many rows of gates behind those of x.
// With mixes: out (mixes, T, channels) = x[t] + w[i][c] * (x[t - 1] - x[t]), w (mixes, channels).
struct ShortConv {
	View out, x, w;
	StateRows rows;
	ConvArgs how;

	const char* name() const { return "short_conv"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	uint32_t channels() const { return w.shape[how.gates || how.mixes ? 1 : 0]; }
	uint32_t taps() const { return how.mixes ? 2 : w.shape[how.gates ? 0 : 1]; }
	uint32_t state_words() const { return (taps() - 1) * channels() * (how.gates ? 2 : 1); }
	std::vector<WrittenWords> written(const WordReader& r) const {
		return written_states(rows, state_words(), "short_conv", r);
	}
	static void views(auto& o, auto& f) {
		const uint64_t T = o.x.shape[0], channels = o.x.row_elements();
		f(input("x", F32, {T, channels}), o.x);
		const bool across = o.how.gates || o.how.mixes;
		const ViewRow w =
		    across ? input("w", F32, {o.w.shape[0], channels}) : input("w", F32, {channels, o.w.shape[1]});
		f(w.uploaded().undumped(), o.w);
		f(input("bias", F32, {channels}).optional().undumped(), o.how.bias);
		f(input("gates", F32, {T, channels}).optional(), o.how.gates);
		state_views(o.rows, f);
		f(output("out", F32, {o.how.mixes ? o.how.mixes * T : T, channels}, "short_conv").slots(), o.out);
	}
};

// Entries of blocks. The channels of a row of x (T, w) and gates (T, w) are one set, w = dim, or two, w = 2 * dim, of
// which the first one is for the next block. Row t of a sequence is token i = t % block of a block. Of each channel:
//   shares (of the rows of the block so far, and with two sets of all rows of the block before) = softmax of
//     gates[t][c] + places[i][c], those of the block before by the first set
//   out (T, dim) = sum of shares * x, by the same sets
// So a block's last row has its entry. The state is a count of rows in the block, then sums of the block, and with two
// sets those of the block before and of the first set: the largest gate, the sum of shares and that of x; each (dim).
struct PoolBlocks {
	View out, x, gates, places; // places (block, w)
	StateRows rows;

	const char* name() const { return "pool_blocks"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	uint32_t dim() const { return uint32_t(out.row_elements()); }
	bool overlaps() const { return x.row_elements() != out.row_elements(); }
	static constexpr uint32_t state_words(uint32_t dim, bool overlaps) { return dim * (overlaps ? 10 : 4); }
	std::vector<WrittenWords> written(const WordReader& r) const {
		return written_states(rows, state_words(dim(), overlaps()), "pool_blocks", r);
	}
	static void views(auto& o, auto& f) {
		const uint64_t T = o.x.shape[0], w = o.x.row_elements();
		f(input("x", F32, {T, w}), o.x);
		f(input("gates", F32, {T, w}), o.gates);
		f(input("places", F32, {o.places.shape[0], w}).uploaded().undumped(), o.places);
		state_views(o.rows, f);
		f(output("out", F32, {T, o.dim()}, "pool_blocks").slots(), o.out);
	}
};

struct DeltaPlaces {                   // of queries, keys and values in DeltaRule::x, in elements
	uint32_t key_stride, value_stride; // from a row to the next
	uint32_t k, v;                     // from the first row's queries to its keys and values
};

// The gated delta rule. A row of x (T, channels) is queries and keys (n_key_heads, k_dim) and values (n_heads, v_dim).
// q and k are divided by their lengths, sqrt(sum of squares + eps), q also by sqrt(k_dim). For each head, whose state S
// is (k_dim, v_dim), and each row in order:
//   S = decay * S;  S += k (outer) sigmoid(beta) * (v - k . S);  out (T, n_heads, v_dim) = q . S
// decay is a number per head, or (DeltaArgs::by_channel, Kimi delta attention) a number per row of S.
// With DeltaGates::removal (RWKV-7) decay and beta (T, n_heads * k_dim) are numbers per row, q and k stay as long as
// they are, n_key_heads is n_heads, and what is forgotten is found by a key r = k * removal, divided by its length, or
// by eps if that is more. With a = sigmoid(beta) and k' = k * (1 + (a - 1) * taken):
//   S = decay * S - (a * r) (outer) (r . S) + k' (outer) v;  out = q . S;  own (T, n_heads, v_dim) = (q . (k' * bonus))
//   v
struct DeltaRule {
	View out, x;
	DeltaGates gates;
	StateRows rows;
	DeltaArgs how;
	View own = {};

	const char* name() const { return "delta_rule"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	uint32_t state_words() const { return out.shape[1] * how.k_dim * out.shape[2]; }
	DeltaPlaces places() const {
		const uint32_t keys = how.n_key_heads * how.k_dim, values = out.shape[1] * out.shape[2], T = out.shape[0];
		if (how.apart) return {keys, values, T * keys, 2 * T * keys};
		return {2 * keys + values, 2 * keys + values, keys, 2 * keys};
	}
	std::vector<WrittenWords> written(const WordReader& r) const {
		return written_states(rows, state_words(), "delta_rule", r);
	}
	static void views(auto& o, auto& f) {
		const uint64_t T = o.x.shape[0], heads = o.out.shape[1], v_dim = o.out.shape[2];
		const uint64_t channels = 2 * uint64_t(o.how.n_key_heads) * o.how.k_dim + heads * v_dim;
		const uint64_t decays = o.how.by_channel ? heads * o.how.k_dim : heads;
		const bool removes = bool(o.gates.removal);
		f(input("x", F32, {T, channels}), o.x);
		f(input("beta", F32, {T, removes ? decays : heads}), o.gates.beta);
		f(input("alpha", F32, {T, decays}), o.gates.alpha);
		f(input("rate", F32, {heads}).undumped(), o.gates.rate);
		f(input("shift", F32, {decays}).undumped(), o.gates.shift);
		for (auto* v : {&o.gates.removal, &o.gates.taken, &o.gates.bonus})
			f(input("factors of keys", F32, {decays}).optional().undumped(), *v);
		state_views(o.rows, f);
		f(output("out", F32, {T, heads, v_dim}, "delta_rule").slots(), o.out);
		f(output("own", F32, {T, heads, v_dim}, "delta_rule").slots().only_if(removes), o.own);
	}
};

// The scan of a state-space layer (Mamba-2). A row of x (T, channels) is values (n_heads, v_dim), what they are written
// at, B (n_groups, k_dim), and what the state is read at, C (n_groups, k_dim). For each head, whose state S is (k_dim,
// v_dim), and each row in order, with step = softplus(step + shift):
//   S = exp(rate * step) * S + B (outer) (step * value);  out (T, n_heads, v_dim) = C . S + skip * value
struct SsmScan {
	View out, x;
	ScanGates gates;
	StateRows rows;
	ScanArgs how;

	const char* name() const { return "ssm_scan"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	uint32_t state_words() const { return out.shape[1] * how.k_dim * out.shape[2]; }
	std::vector<WrittenWords> written(const WordReader& r) const {
		return written_states(rows, state_words(), "ssm_scan", r);
	}
	static void views(auto& o, auto& f) {
		const uint64_t T = o.x.shape[0], heads = o.out.shape[1], v_dim = o.out.shape[2];
		const uint64_t channels = 2 * uint64_t(o.how.n_groups) * o.how.k_dim + heads * v_dim;
		f(input("x", F32, {T, channels}), o.x);
		f(input("step", F32, {T, heads}), o.gates.step);
		f(input("rate", F32, {heads}).undumped(), o.gates.rate);
		f(input("shift", F32, {heads}).undumped(), o.gates.shift);
		f(input("skip", F32, {heads}).undumped(), o.gates.skip);
		state_views(o.rows, f);
		f(output("out", F32, {T, heads, v_dim}, "ssm_scan").slots(), o.out);
	}
};

// The selective scan (Mamba 1). Each channel has a state S (k_dim), whose elements decay at rates of their own; all
// channels share what a row is written at, b, and what the state is read at, c. For each row in order, with step =
// softplus(step + shift):
//   S[k] = exp(rate[k] * step) * S[k] + b[k] * (step * x);  out (T, channels) = c . S + skip * x
// In memory a state is (k_dim, channels).
struct SelectiveScan {
	View out, x;
	SelectiveGates gates;
	StateRows rows;

	const char* name() const { return "selective_scan"; }
	std::string text() const;
	void check() const;
	double bytes() const;
	uint32_t k_dim() const { return gates.b.shape[1]; }
	uint32_t state_words() const { return k_dim() * out.shape[1]; }
	std::vector<WrittenWords> written(const WordReader& r) const {
		return written_states(rows, state_words(), "selective_scan", r);
	}
	static void views(auto& o, auto& f) {
		const uint64_t T = o.out.shape[0], channels = o.out.shape[1], k_dim = o.gates.b.shape[1];
		f(input("x", F32, {T, channels}), o.x);
		f(input("step", F32, {T, channels}), o.gates.step);
		f(input("b", F32, {T, k_dim}), o.gates.b);
		f(input("c", F32, {T, k_dim}), o.gates.c);
		f(input("rate", F32, {channels, k_dim}).undumped(), o.gates.rate);
		f(input("shift", F32, {channels}).undumped(), o.gates.shift);
		f(input("skip", F32, {channels}).undumped(), o.gates.skip);
		state_views(o.rows, f);
		f(output("out", F32, {T, channels}, "selective_scan").slots(), o.out);
	}
};

} // namespace op
} // namespace kvrun

// The k-th largest of many ranks, by a whole workgroup, in four passes of 8 bits. Each pass makes a histogram of the
// next 8 bits of all ranks that agree with the bits found so far.
//
// The including file defines LOCAL_X and supplies uint rank(uint i), the rank of element i; 0: it does not count.
const uint AHEAD = 8;              // loads in flight
const uint BINS = 256, CHUNK = 16; // bins of a histogram; bins summed together
shared uint count_s[BINS], chunk_s[BINS / CHUNK];
shared uint bits_s, wanted_s;

uint rank(uint i);

// Ranks of elements first, first + step, ...; 0 from `end` on. first < end. No branch around a load, so that all loads
// are in flight together.
void load_ranks(uint first, uint step, uint end, out uint x[AHEAD]) {
	[[unroll]] for (uint i = 0; i < AHEAD; i++) x[i] = rank(min(first + i * step, end - 1));
	[[unroll]] for (uint i = 0; i < AHEAD; i++)
		if (first + i * step >= end) x[i] = 0u;
}

// Over elements 0 .. n - 1. If fewer than k count, the smallest that counts. equals: how many elements of this rank are
// among the k largest; 0 if none counts, and then the result has no meaning.
uint kth_largest(uint n, uint k, out uint equals) {
	const uint lane = gl_LocalInvocationIndex;
	uint bits = 0, mask = 0;
	for (uint pass = 0; pass < 4; pass++) {
		const uint shift = 24 - 8 * pass;
		for (uint i = lane; i < BINS; i += LOCAL_X) count_s[i] = 0;
		barrier();
		for (uint first = lane; first < n; first += LOCAL_X * AHEAD) {
			uint x[AHEAD];
			load_ranks(first, LOCAL_X, n, x);
			[[unroll]] for (uint i = 0; i < AHEAD; i++)
				if (x[i] != 0u && (x[i] & mask) == bits) atomicAdd(count_s[x[i] >> shift & 255u], 1u);
		}
		barrier();
		for (uint c = lane; c < BINS / CHUNK; c += LOCAL_X) {
			uint sum = 0;
			for (uint i = 0; i < CHUNK; i++) sum += count_s[c * CHUNK + i];
			chunk_s[c] = sum;
		}
		barrier();
		if (lane == 0) {
			if (pass == 0) {
				uint all = 0;
				for (uint c = 0; c < BINS / CHUNK; c++) all += chunk_s[c];
				wanted_s = min(k, all);
			}
			// From the top: find the chunk, then the bin, that holds the wanted rank.
			uint left = wanted_s, c = BINS / CHUNK - 1, b = BINS;
			if (left > 0) {
				for (; c > 0 && chunk_s[c] < left; c--) left -= chunk_s[c];
				for (b = c * CHUNK + CHUNK - 1; b > c * CHUNK && count_s[b] < left; b--) left -= count_s[b];
			}
			wanted_s = left;
			bits_s = bits | b << shift;
		}
		barrier();
		bits = bits_s;
		mask |= 255u << shift;
		barrier();
	}
	equals = wanted_s;
	return bits;
}

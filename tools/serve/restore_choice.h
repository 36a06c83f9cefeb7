// Whether a conversation continues from its file or its prompt is read again: whichever is faster by what this server
// has measured. Storage of another machine can be slower than the device reads a prompt: f16 keys and values of an 8B
// model take 128 KiB per token.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kvrun::serve {

class RestoreChoice {
 public:
	void restored(uint64_t bytes, double seconds) {
		if (bytes >= kLarge && seconds > 0) add(bytes_per_s_, double(bytes) / seconds);
	}
	void read(uint64_t tokens, double seconds) {
		if (tokens >= kLong && seconds > 0) add(tokens_per_s_, double(tokens) / seconds);
	}
	// Whether to restore a file of `bytes` instead of reading a prompt of `tokens`. Small files are always restored.
	bool restores(uint64_t bytes, uint64_t tokens) {
		if (bytes < kLarge || bytes_per_s_ == 0 || tokens_per_s_ == 0) return true;
		if (double(bytes) / bytes_per_s_ <= double(tokens) / tokens_per_s_) return true;
		bytes_per_s_ *= 1.25; // so that the storage is measured again after a few conversations
		return false;
	}

 private:
	static constexpr uint64_t kLarge = uint64_t(8) << 20; // bytes; the time of smaller files is mostly latency
	static constexpr uint64_t kLong = 256;                // tokens; shorter prompts do not show the device's speed
	static void add(double& mean, double rate) { mean = mean == 0 ? rate : (mean + rate) / 2; }

	double bytes_per_s_ = 0, tokens_per_s_ = 0; // 0: not measured
};

} // namespace kvrun::serve

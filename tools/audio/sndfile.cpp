// Sound files, by libsndfile; libsamplerate changes the number of samples in a second.
#include "tools/api_call.h"
#include "tools/audio/decode.h"
#include "tools/text.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <samplerate.h>
#include <sndfile.h>

namespace kvrun {
namespace {

constexpr size_t kBlock = 4096;                      // frames read at once
constexpr int kMostChannels = 8;                     // beyond, and outside these rates, files are no recordings
constexpr int kLowestRate = 1000, kHighest = 192000; // samples in a second

// ---- a file in memory, as libsndfile reads it

struct Memory {
	std::span<const std::byte> bytes;
	sf_count_t at = 0;
	sf_count_t size() const { return sf_count_t(bytes.size()); }
};

sf_count_t file_size(void* p) { return static_cast<Memory*>(p)->size(); }
sf_count_t file_at(void* p) { return static_cast<Memory*>(p)->at; }

sf_count_t seek_file(sf_count_t offset, int whence, void* p) {
	Memory& m = *static_cast<Memory*>(p);
	const sf_count_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? m.at : m.size();
	m.at = from + std::clamp(offset, -from, m.size() - from);
	return m.at;
}

sf_count_t read_file(void* to, sf_count_t n, void* p) {
	Memory& m = *static_cast<Memory*>(p);
	n = std::clamp<sf_count_t>(n, 0, m.size() - m.at);
	if (n > 0) std::memcpy(to, m.bytes.data() + m.at, size_t(n));
	m.at += n;
	return n;
}

using Opened = std::unique_ptr<SNDFILE, int (*)(SNDFILE*)>;

Opened open_file(Memory& memory, SF_INFO& info, const std::string& name) {
	static std::mutex mutex; // the library keeps the reason of a failure in a variable of the process
	const std::lock_guard lock(mutex);
	SF_VIRTUAL_IO io{file_size, seek_file, read_file, nullptr, file_at};
	Opened file(sf_open_virtual(&io, SFM_READ, &info, &memory), sf_close);
	if (file) return file;
	damaged_audio(name, sf_strerror(nullptr));
}

// ---- its samples, as one channel

class Mono {
 public:
	Mono(std::span<const std::byte> bytes, const std::string& name) : name_(name), memory_{bytes} {
		file_ = open_file(memory_, info_, name);
		if (info_.channels < 1 || info_.channels > kMostChannels)
			fail_status(KVRUN_EUNSUPPORTED, "{}: the sound has {} channels, at most {} are read", name, info_.channels,
			            kMostChannels);
		if (info_.samplerate < kLowestRate || info_.samplerate > kHighest)
			fail_status(KVRUN_EUNSUPPORTED, "{}: the sound has {} samples in a second, {} to {} are read", name,
			            info_.samplerate, kLowestRate, kHighest);
		if (info_.frames != SF_COUNT_MAX && info_.frames > most()) long_audio(name); // else their number is unknown
		frames_.resize(kBlock * size_t(info_.channels));
	}
	int rate() const { return info_.samplerate; }
	// The next block; empty at the end.
	std::span<const float> next() {
		const sf_count_t n = sf_readf_float(file_.get(), frames_.data(), sf_count_t(kBlock));
		if (n <= 0) {
			if (const int code = sf_error(file_.get())) damaged_audio(name_, sf_error_number(code));
			return {};
		}
		n_ += n;
		if (n_ > most()) long_audio(name_);
		const size_t channels = size_t(info_.channels);
		block_.resize(size_t(n));
		for (size_t i = 0; i < block_.size(); ++i) {
			float sum = 0;
			for (size_t c = 0; c < channels; ++c) sum += frames_[i * channels + c];
			block_[i] = sum / float(channels);
			if (!std::isfinite(block_[i])) damaged_audio(name_, "it has a sample that is not finite");
		}
		return block_;
	}

 private:
	sf_count_t most() const { return sf_count_t(kMostAudioSeconds) * info_.samplerate; }
	const std::string& name_;
	Memory memory_;
	SF_INFO info_{};
	Opened file_{nullptr, sf_close};
	std::vector<float> frames_, block_;
	sf_count_t n_ = 0; // frames so far
};

std::vector<float> with_rate(Mono& in, uint32_t rate, const std::string& name) {
	int error = 0;
	const std::unique_ptr<SRC_STATE, SRC_STATE* (*)(SRC_STATE*)> state(src_new(SRC_SINC_MEDIUM_QUALITY, 1, &error),
	                                                                   src_delete);
	const auto check = [&](int e) {
		if (e) fail_status(KVRUN_ENOMEM, "{}: libsamplerate: {}", name, src_strerror(e));
	};
	check(error);
	std::vector<float> out, room(kBlock);
	const float none = 0;
	SRC_DATA d{};
	d.src_ratio = double(rate) / in.rate();
	do {
		const std::span<const float> block = in.next();
		d.data_in = block.empty() ? &none : block.data(), d.input_frames = long(block.size());
		d.end_of_input = block.empty();
		do {
			d.data_out = room.data(), d.output_frames = long(room.size());
			check(src_process(state.get(), &d));
			out.insert(out.end(), room.begin(), room.begin() + d.output_frames_gen);
			d.data_in += d.input_frames_used, d.input_frames -= d.input_frames_used;
		} while (d.output_frames_gen > 0);
	} while (!d.end_of_input);
	return out;
}

} // namespace

std::vector<float> decode_sndfile(std::span<const std::byte> file, const std::string& name, uint32_t rate) {
	Mono in(file, name);
	std::vector<float> out;
	if (uint32_t(in.rate()) != rate)
		out = with_rate(in, rate, name);
	else
		for (std::span<const float> block = in.next(); !block.empty(); block = in.next())
			out.insert(out.end(), block.begin(), block.end());
	if (out.empty()) damaged_audio(name, "it has no samples");
	return out;
}

} // namespace kvrun

// How fast a device's ops read weights.
#include "backends/read_rates.h"
#include "backends/driver_memory.h"
#include "engine/core/log.h"
#include "engine/core/split.h"
#include "engine/core/system/files.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>

namespace kvrun {
namespace {

constexpr uint32_t kCols = 4096;

double rate_number(std::string_view text) {
	double v = 0;
	const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
	return error == std::errc() && end == text.data() + text.size() && std::isfinite(v) && v > 0 ? v : 0;
}

// What the caps say of all devices, or of this one.
ReadRates rates_in(const std::string& caps, size_t listed) {
	ReadRates r;
	for (const std::string_view word : split(caps, ',')) {
		const size_t eq = std::min(word.find('='), word.size());
		const std::string_view key = word.substr(0, eq), value = word.substr(std::min(eq + 1, word.size()));
		const std::string n = std::to_string(listed);
		if (key == "rate" || key == "rate" + n) r.device = rate_number(value);
		if (key == "bus" || key == "bus" + n) r.bus = rate_number(value);
	}
	return r;
}

// "300:25" is 300 and 25 GB/s.
ReadRates rates_of(std::string_view text) {
	const std::vector<std::string_view> both = split(text, ':');
	return {rate_number(both[0]) * 1e9, both.size() > 1 ? rate_number(both[1]) * 1e9 : 0};
}

std::string entry_name(const DeviceReport& r) { return "rates of " + r.info.name; }

double measure_rate(Backend& be, Mem mem, size_t bytes) try {
	const uint32_t rows = uint32_t(bytes / (kCols * 2));
	const Buffer w = be.alloc(rows * be.weight_row_bytes(DType::F16, kCols), mem, "weights to be measured"),
	             x = be.alloc(kCols * 4, Mem::Device, "a row to be measured"),
	             y = be.alloc(size_t(rows) * 4, Mem::Device, "products to be measured");
	const Proj proj[] = {{view(y, 0, DType::F32, 1, rows), view(w, 0, DType::F16, rows, kCols), {}}};
	const auto seconds_of = [&](uint32_t n) {
		const auto start = std::chrono::steady_clock::now();
		for (uint32_t i = 0; i < n; ++i) be.matmul(proj, view(x, 0, DType::F32, 1, kCols), Epilogue::None, true);
		be.submit();
		be.wait();
		return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
	};
	(void)seconds_of(1); // its pipeline is made
	constexpr double kEnough = 0.02;
	for (uint32_t n = 1;; n *= 2) {
		double s = seconds_of(n);
		if (s < kEnough && n < 1024) continue;
		if (s < 4 * kEnough) s = std::min({s, seconds_of(n), seconds_of(n)}); // other programs may have disturbed it
		return double(n) * double(bytes) / s;
	}
} catch (const Error& e) {
	if (e.code != Code::OutOfMemory) throw;
	return 0;
}

} // namespace

ReadRates known_rates(const DeviceReport& r, const BackendOptions& o, size_t listed) {
	ReadRates rates;
	if (!r.build.empty() && o.test_caps.empty()) {
		const DriverMemory memory(sys::path_of(o.cache_dir));
		if (const std::string* text = memory.find(entry_name(r), r.build)) rates = rates_of(*text);
	}
	const ReadRates given = rates_in(o.test_caps, listed);
	return {given.device > 0 ? given.device : rates.device, given.bus > 0 ? given.bus : rates.bus};
}

ReadRates read_rates(Backend& be, const DeviceReport& r, const BackendOptions& o, size_t listed) {
	const ReadRates before = known_rates(r, o, listed);
	if (o.check || !o.dump.empty()) return before;
	ReadRates rates = before;
	const DeviceInfo d = be.info();
	// More than a card's caches hold; less where the processor does the work.
	const auto bytes = [&](size_t most, size_t free_bytes) {
		return std::clamp<size_t>(free_bytes / 16, 1 << 20, most);
	};
	const size_t most = d.is_cpu ? size_t(4) << 20 : size_t(128) << 20;
	if (!rates.device) rates.device = measure_rate(be, Mem::Device, bytes(most, d.free_bytes));
	if (!rates.bus && d.mapped_bytes) rates.bus = measure_rate(be, Mem::Mapped, bytes(most / 4, d.mapped_bytes));
	if (rates.device == before.device && rates.bus == before.bus) return rates;
	log_at(1, "# {}: reads {:.3g} GB/s, over the bus {:.3g} GB/s", one_line(r.info.name), rates.device / 1e9,
	       rates.bus / 1e9);
	if (r.build.empty() || !o.test_caps.empty()) return rates;
	DriverMemory memory(sys::path_of(o.cache_dir));
	memory.add(entry_name(r), r.build, fmt::format("{:.4g}:{:.4g}", rates.device / 1e9, rates.bus / 1e9));
	memory.save();
	return rates;
}

} // namespace kvrun

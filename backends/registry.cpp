// The list of backends, the devices they find, and opening a device.
#include "backends/registry.h"
#include "backends/checked_backend.h"
#include "backends/cpu/open_cpu.h"
#include "backends/cuda/open_cuda.h"
#include "backends/driver_memory.h"
#include "backends/self_test.h"
#include "backends/vulkan/open_vulkan.h"
#include "engine/core/log.h"
#include "engine/core/system/files.h"
#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>

namespace kvrun {
namespace {

std::vector<BackendRow>& table() {
	static std::vector<BackendRow> rows = {
	    {"vulkan", /*automatic=*/true, vk::find_devices},
	    {"cpu", /*automatic=*/false, find_cpu_device},
#ifdef KVRUN_CUDA
	    {"cuda", /*automatic=*/false, cuda::find_cuda_devices},
#endif
	};
	return rows;
}

std::string lower(std::string s) {
	for (char& c : s) c = char(std::tolower(static_cast<unsigned char>(c)));
	return s;
}

// A whole number, or SIZE_MAX.
size_t to_index(std::string_view s) {
	size_t n = 0;
	const char* end = s.data() + s.size();
	const auto [last, ec] = std::from_chars(s.data(), end, n);
	return ec == std::errc() && last == end && !s.empty() ? n : SIZE_MAX;
}

// Whether devices are tested at their first use. Options that replace kernels, clamp limits or compare every op skip
// the test.
bool is_tested(const BackendOptions& o) {
	return !o.cache_dir.empty() && o.shaders.empty() && o.test_caps.empty() && !o.check && o.dump.empty();
}

using Wrong = std::map<std::string, std::string>; // why results are wrong, by DeviceReport::build

struct Found { // the devices of all backends, one list
	std::vector<std::unique_ptr<DeviceSet>> sets;
	struct Entry {
		const BackendRow* row;
		DeviceSet* set;
		size_t index; // in the set
		const DeviceReport& report() const { return set->reports()[index]; }
		bool usable() const { return report().refused.empty(); }
	};
	std::vector<Entry> all;
	std::vector<std::string> bad_matrices; // builds that compute wrongly, with matrices
	bool bad_tuning = false;               // a device computes wrongly with its measured choices

	// If only an automatic device can be chosen, no other backend loads its driver. `wrong`: devices to refuse.
	Found(const BackendOptions& o, bool automatic_only, const Wrong& wrong = {}) {
		std::optional<DriverMemory> memory; // read if a device has a driver
		for (const BackendRow& row : table()) {
			if (!o.backend.empty() && o.backend != row.name) continue;
			if (automatic_only && !row.automatic) continue;
			sets.push_back(row.find(o));
			for (size_t i = 0; i < sets.back()->reports().size(); ++i) {
				all.push_back({&row, sets.back().get(), i});
				const DeviceReport& r = all.back().report();
				if (r.build.empty() || !r.refused.empty()) continue;
				if (!memory) memory.emplace(sys::path_of(is_tested(o) ? o.cache_dir : ""));
				const std::string* before = memory->find(r.info.name, r.build);
				const bool bad = wrong.contains(r.build) || (before && !before->empty());
				bad_tuning |= bad && !r.tuned.values.empty();
				if (bad && r.info.half_matmul) bad_matrices.push_back(r.build);
				if (const auto now = wrong.find(r.build); now != wrong.end())
					sets.back()->refuse(i, now->second);
				else if (before && !before->empty())
					sets.back()->refuse(i, *before + " (remembered; `kvrun devices --retry` tests it again)");
			}
		}
	}
	// All reasons why devices are refused, in one line.
	std::string refusals() const {
		std::string s;
		for (const Entry& e : all) {
			const DeviceReport& r = e.report();
			if (r.refused.empty()) continue;
			if (!s.empty()) s += "; ";
			s += r.info.name.empty() ? r.refused : r.info.name + ": " + r.refused;
		}
		return s;
	}
	// A CPU device that was not requested is the last choice: logs why the others cannot be used.
	void explain_fallback(const BackendOptions& o, const Entry& chosen) const {
		if (!o.device.empty() || !chosen.report().info.is_cpu) return;
		if (const std::string why = refusals(); !why.empty())
			warn_once(fmt::format("no GPU is used, but {}; refused: {}", chosen.report().info.name, why));
	}
	static std::string short_name(const Entry& e) {
		if (e.row->automatic) return e.report().info.name;
		return e.index ? fmt::format("{}:{}", e.row->name, e.index) : e.row->name;
	}
	std::string names() const {
		std::string s;
		for (size_t i = 0; i < all.size(); ++i)
			if (all[i].usable()) s += fmt::format("{}{} {}", s.empty() ? "" : ", ", i, short_name(all[i]));
		return s;
	}

	[[noreturn]] void fail_absent(const std::string& device) const {
		const std::string usable = names(), why = refusals();
		fail(Code::Device, "there is no device {}; there {}{}{}", device, usable.empty() ? "is none" : "are ", usable,
		     why.empty() ? "" : "; refused: " + why);
	}

	const Entry& choose(const BackendOptions& o) const {
		if (o.device.empty()) {
			const Entry* best = nullptr; // of the best type, the one with the most free memory
			for (const Entry& e : all)
				if (e.usable() && (e.row->automatic || !o.backend.empty()) &&
				    (!best || (e.row == best->row && e.report().info.type == best->report().info.type &&
				               e.report().info.free_bytes > best->report().info.free_bytes)))
					best = &e;
			if (best) return *best;
			const std::string why = refusals();
			fail(Code::Device, "no usable {} device{}{}; `--device cpu` runs the slow reference",
			     o.backend == "cuda" ? "CUDA" : "Vulkan", why.empty() ? "" : ": ", why);
		}
		const std::string want = lower(o.device);
		const size_t colon = want.find(':');
		const std::string backend = want.substr(0, colon);
		for (const BackendRow& row : table()) { // "cpu", "vulkan:1"
			if (backend != row.name) continue;
			const size_t index = colon == std::string::npos ? 0 : to_index(std::string_view(want).substr(colon + 1));
			for (const Entry& e : all)
				if (e.row == &row && e.index == index) return e;
			fail_absent(o.device);
		}
		if (const size_t index = to_index(o.device); index != SIZE_MAX) {
			if (index < all.size()) return all[index];
			fail_absent(o.device);
		}
		for (const bool whole : {true, false}) // "RTX 3080" is not "RTX 3080 Ti" where both are there
			for (const bool usable : {true, false})
				for (const Entry& e : all) {
					const std::string name = lower(e.report().info.name);
					if (e.usable() == usable && (whole ? name == want : name.find(want) != name.npos)) return e;
				}
		const std::string why = refusals();
		fail(Code::Device, "no device is called '{}'; there are {}{}{}", o.device, names(),
		     why.empty() ? "" : "; refused: ", why);
	}
};

// Only the requested backend looks for devices: `cpu` does not touch a driver.
BackendOptions narrowed(BackendOptions o) {
	const bool known = std::ranges::any_of(table(), [&](const BackendRow& r) { return o.backend == r.name; });
	if (!o.backend.empty() && !known) {
		std::string names;
		for (const BackendRow& r : table()) names += fmt::format("{}{}", names.empty() ? "" : " or ", r.name);
		fail(Code::Invalid, "the backend is '{}', expected {}", o.backend, names);
	}
	const std::string want = lower(o.device);
	for (const BackendRow& r : table())
		if (want == r.name || want.starts_with(std::string(r.name) + ":")) o.backend = r.name;
	return o;
}

} // namespace

std::span<const BackendRow> backend_table() { return table(); }
void add_backend(const BackendRow& row) { table().push_back(row); }

// A device whose results are wrong with measured choices, or with matrices, is found again without them.
static Found find_all(BackendOptions& o, bool automatic_only, const Wrong& wrong = {}) {
	Found found(o, automatic_only, wrong);
	if (found.bad_tuning) {
		o.tuned = false;
		found = Found(o, automatic_only, wrong);
	}
	if (found.bad_matrices.empty()) return found;
	o.no_matrices = found.bad_matrices;
	return Found(o, automatic_only, wrong);
}

std::vector<DeviceReport> list_devices(const BackendOptions& given) {
	BackendOptions o = narrowed(given);
	const Found found = find_all(o, /*automatic_only=*/false);
	std::vector<DeviceReport> out;
	for (const Found::Entry& e : found.all) out.push_back(e.report());
	return out;
}

DeviceReport find_device(const BackendOptions& given) {
	BackendOptions o = narrowed(given);
	const Found found = find_all(o, /*automatic_only=*/o.device.empty() && o.backend.empty());
	const Found::Entry& chosen = found.choose(o);
	DeviceReport r = chosen.report();
	r.index = chosen.index;
	if (!r.refused.empty()) fail(Code::Device, "{}: {}", r.info.name, r.refused);
	return r;
}

// Why this device's results are wrong; empty if they are right or assumed to be.
static std::string test_once(const BackendOptions& o, const DeviceReport& r, Backend& device) {
	if (!is_tested(o) || r.build.empty()) return "";
	DriverMemory memory(sys::path_of(o.cache_dir));
	if (memory.find(r.info.name, r.build)) return ""; // tested before and found good; Found refuses those found bad
	const std::string why = self_test(device, *make_cpu_backend());
	memory.add(r.info.name, r.build, why);
	memory.save();
	return why;
}

std::unique_ptr<Backend> open_backend(const BackendOptions& given) {
	BackendOptions o = narrowed(given);
	for (Wrong wrong;;) {
		const Found found = find_all(o, /*automatic_only=*/o.device.empty() && o.backend.empty(), wrong);
		const Found::Entry& e = found.choose(o);
		found.explain_fallback(o, e);
		std::unique_ptr<Backend> b = e.set->open(e.index); // throws if it is refused
		if (o.check || !o.dump.empty())
			return make_checked_backend(std::move(b), o.check ? make_cpu_backend(o.poison) : nullptr, o.dump,
			                            o.check ? o.compared : nullptr);
		const std::string why = test_once(o, e.report(), *b);
		if (why.empty()) return b;
		const bool tuned = !e.report().tuned.values.empty();
		if (o.device.empty() || e.report().info.half_matmul || tuned)
			warn_once(fmt::format("{} is not used{}: {}", e.report().info.name,
			                      tuned                         ? " with its measured choices"
			                      : e.report().info.half_matmul ? " with its matrices"
			                                                    : "",
			                      why));
		wrong[e.report().build] = why;
	}
}

} // namespace kvrun

#include "tests/support/kept_devices.h"
#include <cstdlib>
#include <map>
#include <tuple>

namespace kvrun {
namespace {

using Key = std::tuple<std::string, std::string, std::string, std::string, std::string, double, bool, bool, bool, bool>;

struct Kept {
	DeviceReport report;
	std::shared_ptr<Backend> backend; // null until it is opened, and after it has failed
};
struct KeptDevices {
	std::map<Key, Kept> all;
	BackendOptions asked; // by kept_device(); the registry hands on options that name another device
};
KeptDevices& kept() {
	static KeptDevices devices;
	return devices;
}

// Leaves a kept device idle, or closed where it has failed, when an engine that uses it is closed.
class Borrowed final : public Backend {
 public:
	explicit Borrowed(Kept& owner) : owner_(owner), b_(owner.backend) {}
	~Borrowed() override {
		try {
			b_->time_ops(false);
			b_->submit();
			b_->wait();
		} catch (const Error&) {
			if (owner_.backend == b_) owner_.backend = nullptr;
		}
	}
	const char* name() const override { return b_->name(); }
	DeviceInfo info() const override { return b_->info(); }
	Buffer alloc(size_t bytes, Mem mem, const char* label) override { return b_->alloc(bytes, mem, label); }
	void free(uint32_t) noexcept override {} // buffers belong to b_
	void write(const Buffer& dst, size_t at, std::span<const std::byte> src) override { b_->write(dst, at, src); }
	void read(const Buffer& src, size_t at, std::span<std::byte> dst) override { b_->read(src, at, dst); }
	bool pins() const override { return b_->pins(); }
	std::span<std::byte> host_bytes(const Buffer& b) override { return b_->host_bytes(b); }
	uint64_t transfer(View dst, View src) override { return b_->transfer(dst, src); }
	bool arrive(uint64_t transfer) override { return b_->arrive(transfer); }
	size_t weight_row_bytes(DType t, uint32_t cols) const override { return b_->weight_row_bytes(t, cols); }
	bool arrange_weight(DType t, uint32_t cols, const WeightRows& src, std::span<std::byte> dst) const override {
		return b_->arrange_weight(t, cols, src, dst);
	}
	void write_weight(const View& w, uint32_t row, uint32_t n, const WeightRows& src,
	                  std::span<const std::byte> arranged) override {
		b_->write_weight(w, row, n, src, arranged);
	}
	void run(const Op& op) override { b_->run(op); }
	bool norms_in_matmul(const op::NormMatmul& o) const override { return b_->norms_in_matmul(o); }
	void at_layer(uint32_t layer) override { b_->at_layer(layer); }
	void submit() override { b_->submit(); }
	void wait() override { b_->wait(); }
	uint64_t mark() override { return b_->mark(); }
	void wait_for(uint64_t mark) override { b_->wait_for(mark); }
	bool done(uint64_t mark) override { return b_->done(mark); }
	std::vector<OpTime> op_times(bool reset) override { return b_->op_times(reset); }
	void time_ops(bool on) override { b_->time_ops(on); }

 private:
	Kept& owner_;
	std::shared_ptr<Backend> b_;
};

constexpr const char* kName = "kept";

class KeptSet final : public DeviceSet {
 public:
	explicit KeptSet(const BackendOptions& given) {
		if (given.backend != kName) return; // somebody lists all devices
		options_ = kept().asked;
		options_.backend = "vulkan";
		options_.poison = given.poison, options_.transfers = given.transfers, options_.test_caps = given.test_caps;
		options_.tuned = given.tuned, options_.submit_ms = given.submit_ms;
		options_.check = false, options_.compared = {}, options_.dump.clear();
		options_.f32_matmul = false;
		find();
		const DeviceInfo& info = kept_->report.info;
		if (given.f32_matmul && (info.half_matmul || info.int8_attend || info.int8_matmul)) { // it makes a difference
			options_.f32_matmul = true;
			find();
		}
		reports_.push_back(kept_->report);
	}
	std::unique_ptr<Backend> open(size_t) override {
		if (!kept_->backend) kept_->backend = open_backend(options_);
		return std::make_unique<Borrowed>(*kept_);
	}

 private:
	void find() {
		const char* icd = std::getenv("VK_DRIVER_FILES");
		const BackendOptions& o = options_;
		kept_ = &kept().all[{icd ? icd : "", o.device, o.validate, o.shaders, o.test_caps, o.submit_ms, o.poison,
		                     o.f32_matmul, o.transfers, o.tuned}];
		if (!kept_->backend) kept_->report = find_device(options_), kept_->report.build.clear();
	}
	BackendOptions options_;
	Kept* kept_ = nullptr;
};

} // namespace

BackendOptions kept_device(const BackendOptions& o) {
	static const bool added = [] {
		add_backend({kName, false, [](const BackendOptions& given) -> std::unique_ptr<DeviceSet> {
			             return std::make_unique<KeptSet>(given);
		             }});
		return true;
	}();
	(void)added;
	kept().asked = o;
	BackendOptions r = o;
	r.device = kName;
	return r;
}

void close_kept_devices() { kept().all.clear(); }

} // namespace kvrun

// SplitBackend: the layers of a model divided over several devices, of any backends, as one backend.
#pragma once
#include "backends/backend.h"
#include "backends/holders.h"
#include "backends/id_table.h"
#include "backends/op_walk.h"
#include <list>
#include <map>

namespace kvrun {

struct SplitPart {
	std::unique_ptr<Backend> backend;
	uint32_t n_layers; // consecutive layers; parts are in the order of layers
};

// A buffer of alloc_part() lies on one device: weights and pages of its layers. Every other buffer exists on all
// devices, and Holders says which of them have its current bytes. An op runs on the device of its buffers of
// alloc_part(); if it has none, on the device of the current layer, or on all if it only moves bytes that all have.
// What an op reads and its device does not have is copied there first, through host memory: in a model, the rows that
// one layer hands to the next. hand_over() begins that copy early. So each op computes what it would compute if its
// device ran the whole model.
class SplitBackend final : public Backend {
 public:
	static constexpr uint32_t kMostParts = 16;

	explicit SplitBackend(std::vector<SplitPart> parts); // 2 to kMostParts, each with at least one layer

	const char* name() const override { return "split"; }
	DeviceInfo info() const override;
	uint32_t n_parts() const override { return uint32_t(parts_.size()); }
	uint32_t part_of(uint32_t layer) const override;

	Buffer alloc(size_t bytes, Mem mem, const char* label) override;
	Buffer alloc_part(uint32_t part, size_t bytes, Mem mem, const char* label) override;
	void hand_over(const View&, uint32_t part) override;
	void free(uint32_t id) noexcept override;
	void write(const Buffer& dst, size_t at, std::span<const std::byte> src) override;
	void read(const Buffer& src, size_t at, std::span<std::byte> dst) override;
	size_t weight_row_bytes(DType, uint32_t cols) const override; // the largest of all devices
	bool arrange_weight(DType, uint32_t cols, const WeightRows& src, std::span<std::byte> dst) const override;
	void write_weight(const View& w, uint32_t row, uint32_t n, const WeightRows& src,
	                  std::span<const std::byte> arranged) override;
	bool pins() const override { return false; } // pinned memory belongs to one device; weights in Mem::Mapped do too
	std::span<std::byte> host_bytes(const Buffer&) override { fail(Code::Internal, "a split pins no memory"); }
	uint64_t transfer(View dst, View src) override; // on one device
	bool arrive(uint64_t) override;

	void run(const Op&) override;
	bool norms_in_matmul(const op::NormMatmul&) const override;

	void at_layer(uint32_t layer) override;
	void submit() override;
	void wait() override;
	uint64_t mark() override;
	void wait_for(uint64_t mark) override;
	bool done(uint64_t mark) override;
	std::vector<OpTime> op_times(bool reset) override;
	void time_ops(bool on) override;

	// Bytes copied from one device to another so far, by ops that needed them.
	uint64_t handed_over() const { return handed_over_; }
	// How many hand_over() calls came while both devices were at work: the one that gives, and the one that takes, with
	// what it was given before.
	uint64_t worked_together() const { return worked_together_; }

 private:
	static constexpr uint32_t kAll = UINT32_MAX;
	struct Place { // one allocation of the caller
		uint32_t part = kAll;
		std::vector<Buffer> on; // by device; only on[part] exists unless part is kAll
		Holders holders{0};     // of buffers on all devices
	};
	struct Weight { // rows written by write_weight(); a device may need fewer bytes for a row than weight_row_bytes()
		size_t end;
		DType type;
		uint32_t cols;
		bool operator==(const Weight&) const = default;
	};

	struct HandOver { // of hand_over(): on its way
		uint32_t id;  // of the buffer
		size_t at;
		uint32_t from, to; // devices
		uint64_t mark;     // of `from`: bytes are there when it has been waited for
		std::vector<std::byte> bytes;
		bool stale = false; // overwritten or freed since
		size_t end() const { return at + bytes.size(); }
	};

	// f(backend of the device); its errors name the device.
	template <class F> auto on_device(uint32_t d, F f) {
		try {
			return f(*parts_[d].backend);
		} catch (const Error& e) {
			if (std::string_view(e.what()).find(names_[d]) != std::string_view::npos) throw;
			throw Error(e.code, names_[d] + ": " + e.what());
		}
	}
	template <class F> void on_each(F f) {
		for (uint32_t d = 0; d < parts_.size(); ++d) on_device(d, f);
	}
	const Place& place(const Buffer& b) const { return places_[b.id()]; }
	Place& place(const Buffer& b) { return places_[b.id()]; }
	View on(uint32_t part, const ViewRow&, const View&) const; // the same view on that device
	View weight_on(uint32_t part, const View&) const;
	uint32_t device_of(const Op&) const; // kAll: every device
	void bring(uint32_t part, const Op&);
	void take(uint32_t part, const View&); // what is on its way there
	void place_weight(uint32_t id, size_t at, const Weight&);
	void outdate(uint32_t id, size_t from, size_t to) noexcept;
	void run_on(uint32_t part, const Op&);

	std::list<HandOver> coming_; // before parts_, whose reads fill it
	std::vector<SplitPart> parts_;
	std::vector<std::string> names_;                        // by device
	std::vector<uint32_t> part_of_;                         // by layer
	bool arranges_ = false;                                 // every device takes rows in the same arrangement
	uint32_t layer_part_ = 0;                               // device of the current layer
	IdTable<Place> places_;                                 // by buffer id
	std::map<std::pair<uint32_t, size_t>, Weight> weights_; // by buffer id, first byte
	std::map<uint64_t, std::vector<uint64_t>> marks_;       // marks of the devices
	uint64_t last_mark_ = 0, handed_over_ = 0, worked_together_ = 0;
};

// Layers for each device, at least one each. A token passes all of them in turn, so its time is least if the device
// that reads fastest has as many as fit, then the next. layer_bytes: what must fit for each layer. In proportion to
// free memory where the layers do not all fit, a rate or layer_bytes is unknown, or the rates are about the same.
std::vector<uint32_t> share_layers(std::span<const DeviceInfo> devices, uint32_t n_layers,
                                   std::span<const ReadRates> rates = {}, uint64_t layer_bytes = 0);
// What the devices are together when they divide the layers so: free_bytes is what weights and caches may take if each
// layer takes the same share.
DeviceInfo joined(std::span<const DeviceInfo> devices, std::span<const uint32_t> layers);

} // namespace kvrun

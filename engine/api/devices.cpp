// Devices and memory plans of the C API: information that is available before a model is loaded.
#include "engine/api/objects.h"
#include "engine/kv_host/plan.h"
#include "models/config.h"

namespace kvrun::api {

BackendOptions backend_options(const kvrun_device_options* given) {
	constexpr kvrun_device_options defaults = KVRUN_DEVICE_OPTIONS_INIT;
	const kvrun_device_options o =
	    read_options(given, defaults, "kvrun_device_options", offsetof(kvrun_device_options, split));
	if (!(o.submit_ms > 0)) refuse(KVRUN_EINVALID, "submit_ms is {}, expected more than 0", o.submit_ms);
	BackendOptions b;
	b.backend = text_or_empty(o.backend);
	b.device = text_or_empty(o.device);
	b.split = text_or_empty(o.split);
	b.cache_dir = text_or_empty(o.cache_dir);
	b.validate = text_or_empty(o.validate);
	b.dump = text_or_empty(o.dump);
	b.shaders = text_or_empty(o.shaders);
	b.test_caps = text_or_empty(o.test_caps);
	b.check = o.check;
	b.poison = o.poison;
	b.f32_matmul = o.f32_matmul;
	b.submit_ms = o.submit_ms;
	b.probe = text_or_empty(o.probe);
	if (o.set_driver_files)
		b.set_driver_files = [f = o.set_driver_files, payload = o.payload](const std::string& files) {
			f(files.c_str(), payload);
		};
	return b;
}

void fill_text(const std::string& text, char* out, size_t capacity, size_t* out_length) {
	check_pointer(out_length, "out_length");
	*out_length = text.size();
	if (text.size() >= capacity)
		refuse(KVRUN_EBUFFER, "{} bytes and a zero do not fit a buffer of {}", text.size(), capacity);
	check_pointer(out, "out");
	std::memcpy(out, text.c_str(), text.size() + 1);
}

} // namespace kvrun::api

using namespace kvrun;
using namespace kvrun::api;

kvrun_status kvrun_devices_list(kvrun_devices** out, const kvrun_device_options* options) {
	if (out) *out = nullptr;
	return guard([&] {
		check_pointer(out, "out");
		auto list = std::make_shared<DevicesObject>();
		list->reports = list_devices(backend_options(options));
		*out = device_lists().add(std::move(list));
	});
}

size_t kvrun_devices_count(const kvrun_devices* devices) {
	size_t n = 0;
	quietly([&] { n = device_lists().get(devices)->reports.size(); });
	return n;
}

kvrun_status kvrun_devices_get(const kvrun_devices* devices, size_t index, kvrun_device_info* out) {
	return guard([&] {
		const auto list = device_lists().get(devices);
		if (index >= list->reports.size()) refuse(KVRUN_EINVALID, "device {} of {}", index, list->reports.size());
		const DeviceReport& r = list->reports[index];
		kvrun_device_info info = KVRUN_DEVICE_INFO_INIT;
		info.usable = r.refused.empty();
		info.is_cpu = r.info.is_cpu;
		info.backend = r.backend.c_str();
		info.name = r.info.name.c_str();
		info.driver = r.info.driver.c_str();
		info.type = r.info.type.c_str();
		info.refused = r.refused.c_str();
		info.memory_bytes = r.info.memory_bytes;
		info.free_bytes = r.info.free_bytes;
		info.max_buffer_bytes = r.info.max_buffer_bytes;
		write_result(out, info, "kvrun_device_info");
	});
}

void kvrun_devices_free(kvrun_devices* devices) {
	quietly([&] { device_lists().take(devices); });
}

// ---- cancellers

kvrun_status kvrun_canceller_new(kvrun_canceller** out) {
	if (out) *out = nullptr;
	return guard([&] {
		check_pointer(out, "out");
		*out = new kvrun_canceller;
	});
}
void kvrun_cancel(kvrun_canceller* c) {
	static_assert(std::atomic<bool>::is_always_lock_free); // so that a signal handler may use it
	if (c) c->set.store(true, std::memory_order_relaxed);
}
void kvrun_canceller_reset(kvrun_canceller* c) {
	if (c) c->set.store(false, std::memory_order_relaxed);
}
int kvrun_canceller_is_set(const kvrun_canceller* c) { return c && c->set.load(std::memory_order_relaxed); }
void kvrun_canceller_free(kvrun_canceller* c) { delete c; }

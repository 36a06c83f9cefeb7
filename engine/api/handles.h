// Handles: numbers that are never reused and are looked up at every call, so that a freed or foreign handle gives an
// error instead of a crash.
#pragma once
#include "engine/api/status.h"
#include <memory>
#include <mutex>
#include <unordered_map>

namespace kvrun::api {

constexpr uintptr_t kHandleKinds = 16; // low bits of a handle tell its kind

// H: the opaque C type; T: the object of a handle; kind: 1 .. kHandleKinds - 1, distinct for each H.
template <class H, class T, uintptr_t kind> class Handles {
 public:
	explicit Handles(const char* name) : name_(name) {}
	// Objects that exist when the process ends are not destroyed: their drivers may be unloaded already.
	~Handles() {
		if (!objects_->empty()) (void)objects_.release();
	}

	H* add(std::shared_ptr<T> object) {
		std::lock_guard lock(mutex_);
		const uintptr_t id = next_ * kHandleKinds + kind;
		objects_->emplace(id, std::move(object));
		++next_;
		return reinterpret_cast<H*>(id);
	}
	std::shared_ptr<T> get(const H* h) {
		std::lock_guard lock(mutex_);
		return find(h)->second;
	}
	// Returns null for NULL.
	std::shared_ptr<T> take(const H* h) {
		if (!h) return {};
		std::lock_guard lock(mutex_);
		const auto at = find(h);
		std::shared_ptr<T> object = std::move(at->second);
		objects_->erase(at);
		return object;
	}

 private:
	using Map = std::unordered_map<uintptr_t, std::shared_ptr<T>>;
	typename Map::iterator find(const H* h) {
		if (!h) refuse(KVRUN_EINVALID, "the {} is NULL", name_);
		const auto at = objects_->find(reinterpret_cast<uintptr_t>(h));
		if (at == objects_->end()) refuse(KVRUN_EINVALID, "this is not an open {}; has it been freed?", name_);
		return at;
	}
	const char* name_;
	std::mutex mutex_;
	uintptr_t next_ = 1;
	std::unique_ptr<Map> objects_ = std::make_unique<Map>();
};

} // namespace kvrun::api

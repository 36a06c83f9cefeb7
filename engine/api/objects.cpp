// The objects behind the handles of the C API.
#include "engine/api/objects.h"

namespace kvrun::api {

void FairMutex::lock() {
	std::unique_lock lock(mutex_);
	const uint64_t mine = next_++;
	turn_.wait(lock, [&] { return serving_ == mine; });
}

void FairMutex::unlock() {
	{
		std::lock_guard lock(mutex_);
		++serving_;
	}
	turn_.notify_all();
}

SessionObject::~SessionObject() {
	const SharedTurn turn(engine->turn);
	session.reset();
}

InUse::InUse(std::shared_ptr<SessionObject> s) {
	if (s->used.exchange(true)) refuse(KVRUN_EBUSY, "the session is in use by another call or a batch");
	session_ = std::move(s);
}
InUse::InUse(kvrun_session* s) : InUse(sessions().get(s)) {}
InUse::~InUse() {
	if (session_) session_->used = false;
}

Handles<kvrun_engine, EngineObject, 1>& engines() {
	static Handles<kvrun_engine, EngineObject, 1> all("kvrun_engine");
	return all;
}
Handles<kvrun_session, SessionObject, 2>& sessions() {
	static Handles<kvrun_session, SessionObject, 2> all("kvrun_session");
	return all;
}
Handles<kvrun_batch, BatchObject, 3>& batches() {
	static Handles<kvrun_batch, BatchObject, 3> all("kvrun_batch");
	return all;
}
Handles<kvrun_devices, DevicesObject, 4>& device_lists() {
	static Handles<kvrun_devices, DevicesObject, 4> all("kvrun_devices");
	return all;
}

Handles<kvrun_grammar, GrammarObject, 6>& grammars() {
	static Handles<kvrun_grammar, GrammarObject, 6> all("kvrun_grammar");
	return all;
}

} // namespace kvrun::api

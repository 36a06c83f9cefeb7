// Functions that set defaults of the C API's structs, for languages without macros.
#include "engine/kvrun.h"
#include <algorithm>
#include <cstring>

namespace {

// Bytes after the fields that this library knows become 0, which read_options() accepts.
template <class S> void fill(S* out, size_t struct_size, const S& defaults) {
	if (!out) return;
	std::memset(out, 0, struct_size);
	std::memcpy(out, &defaults, std::min(struct_size, sizeof(S)));
	const auto size = uint32_t(struct_size);
	std::memcpy(out, &size, std::min(struct_size, sizeof size));
}

} // namespace

#define KVRUN_DEFINE_INIT(type, defaults)                                                                              \
	void type##_init(type* out, size_t struct_size) {                                                                  \
		static constexpr type values = defaults;                                                                       \
		fill(out, struct_size, values);                                                                                \
	}
KVRUN_DEFINE_INIT(kvrun_device_options, KVRUN_DEVICE_OPTIONS_INIT)
KVRUN_DEFINE_INIT(kvrun_device_info, KVRUN_DEVICE_INFO_INIT)
KVRUN_DEFINE_INIT(kvrun_engine_options, KVRUN_ENGINE_OPTIONS_INIT)
KVRUN_DEFINE_INIT(kvrun_engine_info, KVRUN_ENGINE_INFO_INIT)
KVRUN_DEFINE_INIT(kvrun_host_memory_options, KVRUN_HOST_MEMORY_OPTIONS_INIT)
KVRUN_DEFINE_INIT(kvrun_weight_options, KVRUN_WEIGHT_OPTIONS_INIT)
KVRUN_DEFINE_INIT(kvrun_chat_options, KVRUN_CHAT_OPTIONS_INIT)
KVRUN_DEFINE_INIT(kvrun_chat_features, KVRUN_CHAT_FEATURES_INIT)
KVRUN_DEFINE_INIT(kvrun_reply_part, KVRUN_REPLY_PART_INIT)
KVRUN_DEFINE_INIT(kvrun_policy_info, KVRUN_POLICY_INFO_INIT)
KVRUN_DEFINE_INIT(kvrun_session_options, KVRUN_SESSION_OPTIONS_INIT)
KVRUN_DEFINE_INIT(kvrun_session_info, KVRUN_SESSION_INFO_INIT)
KVRUN_DEFINE_INIT(kvrun_fetch_info, KVRUN_FETCH_INFO_INIT)
KVRUN_DEFINE_INIT(kvrun_restore_options, KVRUN_RESTORE_OPTIONS_INIT)
KVRUN_DEFINE_INIT(kvrun_grammar_options, KVRUN_GRAMMAR_OPTIONS_INIT)
KVRUN_DEFINE_INIT(kvrun_generate_options, KVRUN_GENERATE_OPTIONS_INIT)
KVRUN_DEFINE_INIT(kvrun_generate_result, KVRUN_GENERATE_RESULT_INIT)
KVRUN_DEFINE_INIT(kvrun_plan_options, KVRUN_PLAN_OPTIONS_INIT)
KVRUN_DEFINE_INIT(kvrun_plan, KVRUN_PLAN_INIT)

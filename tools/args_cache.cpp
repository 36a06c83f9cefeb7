// Options that choose the policy of the KV cache.
#include "tools/args_cache.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "engine/kv_host/policy.h"
#include "tools/terminal.h"

namespace kvrun {

void add_cache_policy(Command& c, std::string& kv, const char* type, const std::string& help, const char* group) {
	struct Types {
		std::string k, v;
	};
	const auto types = std::make_shared<Types>();
	const Option* policy = add_text(c, "--kv", kv, type, help)->group(group);
	add_text(c, "--cache-type-k,-ctk", types->k, "TYPE",
	         "store keys as f16, q8_0, q4_0, q2 or q1, rounded per token; short for a policy. Other types become the "
	         "next larger one; with one of -ctk and -ctv alone, the other is q8_0")
	    ->group(group);
	add_text(c, "--cache-type-v,-ctv", types->v, "TYPE", "the same for values")->group(group);
	c.before_run.push_back([policy, types, &kv] {
		if (types->k.empty() && types->v.empty()) return;
		if (policy->count)
			fail(Code::Invalid, "--kv {} and -ctk/-ctv both choose the policy; give one of them", one_line(kv));
		std::string notice;
		kv = policy_from_types(types->k, types->v, &notice).text;
		if (!notice.empty()) say_stats(notice);
	});
}

} // namespace kvrun

// Expected results of a call in a fuzzer: it succeeds, or throws a one-line error that is not a defect of kvrun.
#pragma once
#include "engine/core/error.h"
#include <cstdlib>
#include <string_view>

namespace kvrun {

template <class F> void expect_errors_only(F&& f) {
	try {
		f();
	} catch (const Error& e) {
		if (e.code == Code::Internal) std::abort(); // a violated invariant of kvrun is a finding
		if (std::string_view(e.what()).find('\n') != std::string_view::npos) std::abort();
	}
}

} // namespace kvrun

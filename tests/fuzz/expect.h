// What fuzzers expect of a call: it succeeds, or throws an error of one line that is no defect of kvrun.
#pragma once
#include "engine/core/error.h"
#include <cstdlib>
#include <string_view>

namespace kvrun {

template <class F> void expect_errors_only(F&& f) {
	try {
		f();
	} catch (const Error& e) {
		if (e.code == Code::Internal) std::abort(); // a broken rule of kvrun's own is a finding
		if (std::string_view(e.what()).find('\n') != std::string_view::npos) std::abort();
	}
}

} // namespace kvrun

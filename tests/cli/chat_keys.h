// Types on the terminal of a chat.
#pragma once
#include "tests/cli/program.h"
#include <doctest/doctest.h>
#include <string>
#include <termios.h>
#include <unistd.h>
#include <vector>

namespace kvrun {

struct Key { // typed when the output since the previous key contains `after`
	std::string after, keys;
};
// Types on the chat's terminal. whole: it may not end before the last key.
inline Ran type(RunSpec spec, std::vector<Key> script, bool whole = true) {
	if (!spec.terminal) spec.terminal = Terminal{};
	spec.input = std::nullopt;
	size_t next = 0, seen = 0;
	spec.watch = [&](int, int fd, const std::string& out) {
		while (next < script.size()) {
			const size_t at = out.find(script[next].after, seen);
			if (at == std::string::npos) return;
			seen = at + script[next].after.size();
			// the editor sets the keyboard mode after it has written its prompt
			termios mode{};
			for (int i = 0; i < 500 && spec.terminal->term != "dumb" && script[next].after.ends_with(' ') &&
			                script[next].after != "reading ";
			     ++i) {
				if (tcgetattr(fd, &mode) == 0 && !(mode.c_lflag & ICANON)) break;
				usleep(10000);
			}
			const std::string& keys = script[next++].keys;
			CHECK(write(fd, keys.data(), keys.size()) == ssize_t(keys.size()));
		}
	};
	const Ran r = run_program(spec);
	CAPTURE(r.out);
	CHECK_MESSAGE((next == script.size() || !whole), "keys that were typed: " << next);
	return r;
}

} // namespace kvrun

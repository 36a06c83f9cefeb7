// What a hub says a file's content is: SHA-256, or the SHA-1 of a git object.
#pragma once
#include "tools/hub/names.h"
#include <memory>
#include <span>
#include <string>

namespace kvrun {

class Checksum {
 public:
	explicit Checksum(const HubFile&);
	~Checksum();
	void add(std::span<const std::byte>);
	bool is_right(); // after the last byte; once

 private:
	struct State;
	std::unique_ptr<State> state_;
};

// The name of a file's content: its hash in hex. Empty: the hub gives none.
std::string content_name(const HubFile&);

} // namespace kvrun

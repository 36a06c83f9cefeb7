// Checks a file's content against the hub's hash: SHA-256, or the SHA-1 of a git object.
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
	bool is_right(); // call once, after the last byte

 private:
	struct State;
	std::unique_ptr<State> state_;
};

// The hash of a file's content in hex; empty: the hub gives none.
std::string content_name(const HubFile&);

} // namespace kvrun

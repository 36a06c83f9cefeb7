// What kvrun doctor finds; the parts that look at the system have a file of POSIX and one of Windows.
#pragma once
#include <string>
#include <vector>

namespace kvrun {

struct Finding {
	std::string state; // "ok", "note", "bad"
	std::string about, text;
};

class Checkup {
 public:
	void ok(const std::string& about, const std::string& text) { all_.push_back({"ok", about, text}); }
	void note(const std::string& about, const std::string& text) { all_.push_back({"note", about, text}); }
	void bad(const std::string& about, const std::string& text) { all_.push_back({"bad", about, text}); }
	const std::vector<Finding>& all() const { return all_; }

 private:
	std::vector<Finding> all_;
};

extern const char* const kWhereDriversComeFrom;
void look_at_loader(Checkup&);
void look_at_layers(Checkup&);
void look_at_permissions(Checkup&);
std::string gpu_time_limits(); // after which the system resets a GPU; empty: unknown
void look_at_limits(Checkup&); // of this process

} // namespace kvrun

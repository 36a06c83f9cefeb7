// Checks of the program's output.
#pragma once
#include "tests/cli/program.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace kvrun {

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
inline size_t lines(const std::string& s) { return size_t(std::count(s.begin(), s.end(), '\n')); }
// A Markdown table without the spaces that align its columns.
inline std::string unaligned(const std::string& table) {
	std::string out;
	for (const char c : table)
		if (c != ' ' || !out.ends_with(' ')) out += c;
	return out;
}

// The file has the mode of any new file there, by the umask.
inline void check_mode(const std::filesystem::path& file) {
	const std::filesystem::path beside = file.string() + ".beside";
	std::ofstream(beside) << "new";
	CHECK(int(std::filesystem::status(file).permissions()) == int(std::filesystem::status(beside).permissions()));
	std::filesystem::remove(beside);
}

// Without the line that Mesa 25's RADV itself prints for each GPU that is only named (`devices --shaders --family`).
inline std::string without_radv_line(std::string err) {
	const std::string line = "ac_compute_device_uuid's output is based on invalid pci bus info.\n";
	for (size_t at; (at = err.find(line)) != err.npos;) err.erase(at, line.size());
	return err;
}

// One line on stderr that begins with "error: " and contains all parts; nothing on stdout.
inline void check_error(const std::vector<std::string>& args, int code, const std::vector<std::string>& parts) {
	Ran r = run_program(args);
	if (std::ranges::find(args, "--family") != args.end()) r.err = without_radv_line(r.err);
	std::string shown;
	for (const std::string& a : args) shown += a + " ";
	CAPTURE(shown);
	CAPTURE(r.err);
	CHECK(r.code == code);
	CHECK(r.out == "");
	CHECK(r.err.rfind("error: ", 0) == 0);
	CHECK(lines(r.err) == 1);
	for (const std::string& p : parts) CHECK(contains(r.err, p));
}

} // namespace kvrun

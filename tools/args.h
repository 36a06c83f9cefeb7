// Options of a command line: strict numbers that name flag, value and range.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

// The entry of `words` a typing slip away from `word`; empty when none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& words);

// Each adds one option that may be given once. A bad value throws Error{Invalid}: `-n is 'x', expected ...`.
// `value` keeps its content when the option is absent.
CLI::Option* add_integer(CLI::App&, const std::string& flags, int64_t& value, int64_t lowest, int64_t highest,
                         const std::string& help);
CLI::Option* add_real(CLI::App&, const std::string& flags, double& value, double lowest, double highest,
                      const std::string& help);
CLI::Option* add_text(CLI::App&, const std::string& flags, std::string& value, const std::string& type,
                      const std::string& help);
// The same, any number of times.
CLI::Option* add_texts(CLI::App&, const std::string& flags, std::vector<std::string>& values, const std::string& type,
                       const std::string& help);
// Comma-separated integers: 0,2048.
CLI::Option* add_integers(CLI::App&, const std::string& flags, std::vector<int64_t>& values, int64_t lowest,
                          int64_t highest, const std::string& help);
// One of a few words.
CLI::Option* add_choice(CLI::App&, const std::string& flags, std::string& value,
                        const std::vector<std::string>& choices, const std::string& help);
// A number of bytes, with an optional K, M or G (powers of 1024); 0 stays 0.
CLI::Option* add_bytes(CLI::App&, const std::string& flags, uint64_t& value, const std::string& help);

} // namespace kvrun

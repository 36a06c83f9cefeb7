// Errors of the library, worded for users of a window instead of a command line.
#pragma once
#include <string>

namespace kvrun::desktop {

// The text with names of options replaced by the corresponding settings.
std::string window_words(std::string text);
// What nlohmann::json says about a fault, without the name of its exception.
std::string json_fault(std::string what);
std::string human_size(unsigned long long bytes); // "1.5 MiB"
std::string human_count(unsigned long long n);    // "32 768", with narrow spaces

} // namespace kvrun::desktop

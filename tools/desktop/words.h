// Errors of the library in the words of a window, whose user has no command line.
#pragma once
#include <string>

namespace kvrun::desktop {

// The text with names of options replaced by the settings that do the same.
std::string window_words(std::string text);
std::string human_size(unsigned long long bytes); // "1.5 MiB"
std::string human_count(unsigned long long n);    // "32 768", with narrow spaces

} // namespace kvrun::desktop

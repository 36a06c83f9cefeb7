// Characters and parts of texts: operations of Python's str, on UTF-8.
#pragma once
#include "models/jinja/run.h"

namespace kvrun::jinja {

// All texts are valid UTF-8: input is checked, and no function here splits a character.
char32_t next_char(std::string_view s, size_t& at); // the character at s[at]; moves `at` behind it
size_t char_count(std::string_view s);
size_t char_offset(std::string_view s, size_t n); // bytes before character n; s.size() if there are fewer characters
void append_char(std::string& out, char32_t c);

bool is_space(char32_t);
bool is_alpha(char32_t);
bool is_decimal(char32_t);
bool is_numeric(char32_t);
bool is_upper(char32_t);
bool is_lower(char32_t);
bool is_word(char32_t);      // may be part of a name
bool is_printable(char32_t); // repr() does not escape it

// First position of `what` at or after `from`; npos: none. Time is linear in both lengths.
size_t find_text(std::string_view s, std::string_view what, size_t from = 0);
size_t rfind_text(std::string_view s, std::string_view what); // last position

// Case is changed per character; of the mappings to several characters only that of ß is supported.
Value to_upper(Run&, const Value&);
Value to_lower(Run&, const Value&);
Value swap_case(Run&, const Value&);
Value capitalize(Run&, const Value&);    // first character upper, the others lower
Value title_words(Run&, const Value&);   // words begin after white space and -({[<: Jinja's filter
Value title_letters(Run&, const Value&); // words are runs of letters: Python's method

enum class Side : uint8_t { Both, Left, Right };
Value strip(const Value& t, Side);                           // white space
Value strip(Run&, const Value& t, Side, const Value* chars); // chars: a Text, or null for white space
Value replace(Run&, const Value& t, std::string_view what, const Value& with, int64_t count);
std::vector<Value> split(Run&, const Value& t, const Value* separator, int64_t max, bool from_right);
std::vector<Value> split_lines(Run&, const Value& t, bool keep_ends);
Value escape_html(Run&, const Value& t);
Value pad(Run&, const Value& t, int64_t width, Side text_at, const Value& fill); // Both: centered, as Python's center

} // namespace kvrun::jinja

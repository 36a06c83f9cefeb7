// Formulas in LaTeX, which Markdown would read as its own marks: \(E=mc^2\) would lose its backslashes.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace kvrun::desktop {

// A text whose formulas have been replaced by marks that Markdown leaves as they are.
class Maths {
 public:
	explicit Maths(std::string_view markdown);
	const std::string& text() const { return text_; }
	// The formula that a mark at the beginning of `s` stands for, and the mark's length; nullptr: there is no mark.
	struct Formula {
		std::string source;
		bool plain = false; // an escaped space outside a formula
	};
	const Formula* at(std::string_view s, size_t& length) const;
	std::string restored(std::string_view s) const; // with the source text in place of marks

 private:
	void keep(std::string_view source, bool plain);
	std::string text_;
	std::vector<Formula> formulas_;
};

} // namespace kvrun::desktop

// The basics of markdown: an answer as blocks of styled words.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace kvrun::desktop {

enum class Style { Plain, Bold, Italic, Code };

struct Span {
	Style style = Style::Plain;
	std::string text;
	bool operator==(const Span&) const = default;
};

enum class BlockKind { Paragraph, Heading, Item, Quote, Code, Rule };

struct Block {
	BlockKind kind = BlockKind::Paragraph;
	int level = 0;           // of a heading, 1 to 6; of an item, its depth
	std::string mark;        // of an item: "-" or "3."; of code: its language
	std::vector<Span> spans; // of a code block: one, its lines
	bool operator==(const Block&) const = default;
};

// Any text has blocks: what is no markdown is a paragraph. A code block that has not ended yet goes to the end.
std::vector<Block> parse_markdown(std::string_view text);

} // namespace kvrun::desktop

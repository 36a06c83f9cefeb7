// Model families: how each differs from the plainest one. One row per architecture that files name.
#pragma once
#include "models/config.h"
#include <span>
#include <string_view>

namespace kvrun {

struct Family {
	const char* arch;                  // general.architecture
	bool neox = false;                 // how RoPE pairs channels
	bool partial_rotary = false;       // RoPE may leave channels of a head alone
	bool strips_after_special = false; // white space behind a control token belongs to it; SentencePiece vocabularies
	Layer layer = {};                  // every layer, but for the sizes, which a file says
};

std::span<const Family> families();
const Family* find_family(std::string_view arch);         // null: not known
std::string family_names(std::string_view between = " "); // in the order of the table
// Sets c.layers: c.n_layers times `layer` with the sizes of c.
void describe_layers(Config& c, Layer layer);

} // namespace kvrun

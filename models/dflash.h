// DFlash and DSpark: files with a few layers that guess a block of tokens at once. Keys and values of a text are made
// of the model's residual streams in front of some layers: g = norm(fc . (a | b | ..)), k = wk . g, v = wv . g. Behind
// it stand the text's next token and masks, which see the text and, unless the file says otherwise, each other; the
// output at a mask is the guess of its position, with DSpark also that at the token, of the position behind it. DSpark
// adds to logits what follows from the token before alone: w2 . w1[token].
#pragma once
#include "models/fusion.h"

namespace kvrun {

constexpr const char *kMarkovIn = "markov_w1.weight", *kMarkovOut = "markov_w2.weight";

void read_dflash_keys(const ConfigKeys&, Config&); // after read_fusion()
void see_dflash_traits(const ConfigKeys&, Layer&);
void add_dflash_specs(std::vector<TensorSpec>&, const Config&);

} // namespace kvrun

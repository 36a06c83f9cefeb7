// JSON types of the values that a schema allows.
#pragma once
#include "models/grammar/schema_merge.h"
#include <cstdint>

namespace kvrun::grammar {

// A set of types; integers are numbers, too.
using Types = uint8_t;
constexpr Types kObjects = 1, kArrays = 2, kStrings = 4, kFractions = 8, kIntegers = 16, kBooleans = 32, kNulls = 64,
                kAllTypes = 127;

// `whole`: the document in which $ref is resolved. kAllTypes: the schema does not say, or cannot be followed.
Types allowed_types(const Json& schema, const Json& whole);
bool has_type(const Json& value, Types);

} // namespace kvrun::grammar

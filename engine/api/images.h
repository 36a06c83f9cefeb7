// Images of an engine, for the C API.
#pragma once
#include "engine/api/objects.h"

namespace kvrun::api {

ImageStore& images_of(const EngineObject&); // throws Failure{EUNSUPPORTED} without a vision encoder

} // namespace kvrun::api

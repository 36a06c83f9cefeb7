// Learned queries ask windows of an audio encoder's rows (a Q-Former, arXiv:2301.12597).
#pragma once
#include "models/audio_weights.h"

namespace kvrun {

// rows: (n, dim); zeros fill the last window up. (windows * queries, dim). Waits for the device.
std::vector<float> ask_windows(Backend&, const AudioConfig&, const WindowQueries&, std::vector<float> rows);

} // namespace kvrun

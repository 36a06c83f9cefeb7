// Ids in a history that are no tokens of the vocabulary but rows that an encoder made of an image or a sound.
#pragma once
#include <cstdint>

namespace kvrun {

constexpr uint32_t kFirstImageRow = 0x80000000u; // up to UINT32_MAX - 1
// Set where rows have positions in two directions (Rope::axes), so that these follow from the ids: the row begins a
// line of its image, or with RopeAxes::numbered ends one; there a line of one row is none, but a row around the lines.
constexpr uint32_t kLineMark = 0x40000000u;
// Set in ids of sounds. Their rows have the positions that tokens of a text have.
constexpr uint32_t kAudioMark = 0x20000000u;

constexpr bool is_image_row(uint32_t token) { return token >= kFirstImageRow && token != UINT32_MAX; }
constexpr bool is_audio_row(uint32_t token) { return is_image_row(token) && (token & kAudioMark); }
// Consecutive in an image or a sound.
constexpr uint32_t image_row(uint32_t token) { return token & ~kLineMark; }
constexpr bool marks_line(uint32_t token) { return is_image_row(token) && (token & kLineMark); }

} // namespace kvrun

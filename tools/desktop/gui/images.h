// Images and sounds of questions: their files, and small pictures of them.
#pragma once
#include "tools/desktop/gui/parts.h"
#include <QImage>
#include <functional>
#include <optional>
#include <string>

namespace kvrun::desktop {

struct ImageBytes {                 // of a file
	std::string content, extension; // png, jpg or webp; wav, flac, ogg or mp3 of a sound
};
// An image or sound file as it is, or as PNG if it is of another format that Qt reads; nullopt: it is none.
std::optional<ImageBytes> image_bytes(const QString& file);
ImageBytes image_bytes(const QImage&);
// Whether the name has the extension of an image or a sound.
bool looks_like_image(const QString& file);

// Small pictures in a row. Pressing one calls pressed() with its number.
class ImageRow : public QWidget {
 public:
	// what: the name of each button for screen readers; tip: its tooltip.
	ImageRow(double height_ems, const char* what, const char* tip);
	void show_files(const std::vector<std::string>& paths);
	std::function<void(size_t)> pressed = [](size_t) {};

 private:
	const int height_;
	const QString what_, tip_;
	std::vector<std::string> paths_;
	std::vector<QToolButton*> buttons_;
};

} // namespace kvrun::desktop

// Images and sounds of questions: their files, and small pictures of them.
#include "tools/desktop/gui/images.h"
#include "tools/audio/audio_file.h"
#include "tools/desktop/conversation.h"
#include "tools/desktop/gui/theme.h"
#include "tools/image/image_file.h"
#include <QBuffer>
#include <QFile>
#include <QFileInfo>
#include <QHBoxLayout>
#include <QImageReader>
#include <span>

namespace kvrun::desktop {
namespace {

// Of the formats that kvrun reads; empty: another.
std::string extension_of(const QByteArray& content) {
	if (content.startsWith("\x89PNG\r\n\x1a\n")) return "png";
	if (content.startsWith("\xff\xd8\xff")) return "jpg";
	if (content.startsWith("RIFF") && content.mid(8, 4) == "WEBP") return "webp";
	const char* sound = audio_format(std::as_bytes(std::span(content.data(), size_t(content.size()))));
	return QByteArray(sound ? sound : "").toLower().toStdString();
}

QPixmap small_picture(const QString& path, int height) {
	QImageReader reader(path);
	reader.setAutoTransform(true);
	QSize size = reader.size();
	if (size.isValid()) {
		size.scale(height * 4, height, Qt::KeepAspectRatio);
		reader.setScaledSize(size.expandedTo({1, 1}));
	}
	QImage image = reader.read();
	if (image.isNull()) try { // WebP needs a plugin of Qt
			const Pixels p = read_image(path.toStdString());
			image = QImage(p.rgb.data(), int(p.width), int(p.height), int(p.width) * 3, QImage::Format_RGB888).copy();
		} catch (const StatusError&) {}
	return QPixmap::fromImage(image.isNull() ? image : image.scaledToHeight(height, Qt::SmoothTransformation));
}

} // namespace

ImageBytes image_bytes(const QImage& image) {
	QByteArray content;
	QBuffer to(&content);
	to.open(QIODevice::WriteOnly);
	image.save(&to, "PNG");
	return {content.toStdString(), "png"};
}

std::optional<ImageBytes> image_bytes(const QString& file) {
	QFile f(file);
	if (!f.open(QIODevice::ReadOnly) || f.size() > qint64(kMostImageBytes)) return std::nullopt;
	const QByteArray content = f.readAll();
	if (const std::string extension = extension_of(content); !extension.empty())
		return ImageBytes{content.toStdString(), extension};
	const QImage image = QImage::fromData(content);
	return image.isNull() ? std::nullopt : std::optional(image_bytes(image));
}

bool looks_like_image(const QString& file) {
	const QByteArray extension = QFileInfo(file).suffix().toLower().toLatin1();
	return extension == "webp" || extension == "jpg" || extension == "opus" ||
	       is_sound_name(("." + extension).toStdString()) || QImageReader::supportedImageFormats().contains(extension);
}

ImageRow::ImageRow(double height_ems, const char* what, const char* tip)
    : height_(em(height_ems)), what_(what), tip_(tip) {
	auto* row = new QHBoxLayout(this);
	row->setContentsMargins(0, 0, 0, 0);
	row->setSpacing(em(0.4));
	row->addStretch();
	hide();
}

void ImageRow::show_files(const std::vector<std::string>& paths) {
	if (paths == paths_) return;
	paths_ = paths;
	for (QToolButton* b : buttons_) b->hide(), b->deleteLater();
	buttons_.clear();
	auto* row = static_cast<QHBoxLayout*>(layout());
	const double pixels = devicePixelRatioF();
	for (size_t i = 0; i < paths.size(); ++i) {
		auto* b = new QToolButton;
		const bool sound = is_sound_name(paths[i]);
		QPixmap picture = sound ? QPixmap() : small_picture(text_of(paths[i]), int(height_ * pixels));
		picture.setDevicePixelRatio(pixels);
		if (picture.isNull())
			b->setIcon(icon(sound ? Icon::Sound : Icon::Image)), b->setIconSize({height_, height_});
		else
			b->setIcon(QIcon(picture)), b->setIconSize(picture.deviceIndependentSize().toSize());
		b->setAccessibleName(what_.arg(i + 1));
		b->setToolTip(tip_);
		connect(b, &QToolButton::clicked, this, [this, i] { pressed(i); });
		row->insertWidget(int(i), b);
		buttons_.push_back(b);
	}
	setVisible(!paths.empty());
}

} // namespace kvrun::desktop

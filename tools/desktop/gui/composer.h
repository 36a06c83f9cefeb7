// The field for the next question, which grows with its text, and the button that sends or stops.
#pragma once
#include "tools/desktop/gui/images.h"
#include <QFrame>
#include <functional>

class QPlainTextEdit;
class QToolButton;

namespace kvrun::desktop {

class Composer : public QFrame {
 public:
	Composer();
	std::function<void(const QString&)> send = [](const QString&) {};
	std::function<void()> stop = [] {};
	std::function<void()> choose_images = [] {}; // by a dialog
	std::function<void(const QImage&)> paste = [](const QImage&) {};
	std::function<void(const QStringList&)> add_files = [](const QStringList&) {}; // pasted image files
	std::function<void(size_t)> remove_image = [](size_t) {};
	std::function<void(int)> scroll = [](int) {}; // pages of the conversation

	void set_answering(bool);
	void set_hint(const QString&); // text in the empty field
	void set_images(const std::vector<std::string>& paths, bool reads_any);
	void take_focus();
	QPlainTextEdit* field() { return field_; }

 protected:
	bool eventFilter(QObject*, QEvent*) override;
	void changeEvent(QEvent*) override;

 private:
	void fit();
	void submit();
	QPlainTextEdit* field_;
	QToolButton *button_, *attach_;
	ImageRow* images_;
	bool has_images_ = false;
	bool answering_ = false;
};

} // namespace kvrun::desktop

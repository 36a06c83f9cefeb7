// The field for the next question, which grows with its text, and the button that sends or stops.
#pragma once
#include <QFrame>
#include <functional>

class QPlainTextEdit;
class QToolButton;

namespace kvrun::desktop {

class Composer : public QFrame {
 public:
	Composer();
	std::function<bool(const QString&)> send = [](const QString&) { return false; }; // true: clear the field
	std::function<void()> stop = [] {};
	std::function<void(int)> scroll = [](int) {}; // pages of the conversation

	void set_answering(bool);
	void set_hint(const QString&); // text in the empty field
	void take_focus();
	QPlainTextEdit* field() { return field_; }

 protected:
	bool eventFilter(QObject*, QEvent*) override;
	void changeEvent(QEvent*) override;

 private:
	void fit();
	void submit();
	QPlainTextEdit* field_;
	QToolButton* button_;
	bool answering_ = false;
};

} // namespace kvrun::desktop

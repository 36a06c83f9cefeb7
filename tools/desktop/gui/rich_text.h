// Text in any script, as high as needed: HTML, or plain text. It can be selected, and has links.
#pragma once
#include <QTextBrowser>

namespace kvrun::desktop {

class RichText : public QTextBrowser {
 public:
	explicit RichText(QWidget* parent = nullptr);
	void set_html(const QString& body); // keeps the selection
	void set_plain(const QString&, bool wraps = true);
	int natural_width() const; // with no line breaks except its own

 protected:
	void resizeEvent(QResizeEvent*) override;
	void wheelEvent(QWheelEvent*) override;
	void keyPressEvent(QKeyEvent*) override;
	QVariant loadResource(int, const QUrl&) override { return {}; } // nothing is read from disk or network

 private:
	template <class F> void change(F&&);
	void fit();
};

} // namespace kvrun::desktop

// Text of any script as high as it needs: styled by HTML, or as it was typed. It can be selected, and has links.
#pragma once
#include <QTextBrowser>

namespace kvrun::desktop {

class RichText : public QTextBrowser {
 public:
	explicit RichText(QWidget* parent = nullptr);
	void set_html(const QString& body); // what is selected stays so
	void set_plain(const QString&, bool wraps = true);
	int natural_width() const; // without line breaks but its own

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

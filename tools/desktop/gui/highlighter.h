// Colours of code: keywords, strings, numbers, comments.
#pragma once
#include <QSyntaxHighlighter>

namespace kvrun::desktop {

struct CodeLanguage;

class Highlighter : public QSyntaxHighlighter {
 public:
	// language: as written after a fence; for an unknown one only strings and numbers are coloured.
	Highlighter(QTextDocument*, const QString& language);

 protected:
	void highlightBlock(const QString& line) override;

 private:
	const CodeLanguage& language_;
};

} // namespace kvrun::desktop

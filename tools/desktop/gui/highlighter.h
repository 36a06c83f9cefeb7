// Colours of code: words of the language, texts, numbers, comments.
#pragma once
#include <QSyntaxHighlighter>

namespace kvrun::desktop {

struct CodeLanguage;

class Highlighter : public QSyntaxHighlighter {
 public:
	// language: as written behind a fence; an unknown one has texts and numbers only.
	Highlighter(QTextDocument*, const QString& language);

 protected:
	void highlightBlock(const QString& line) override;

 private:
	const CodeLanguage& language_;
};

} // namespace kvrun::desktop

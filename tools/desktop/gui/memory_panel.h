// "Memory for conversations": a slider from quality to length, and for each position the library's plan: the memory it
// takes, the tokens that fit, and the expected loss of quality.
#pragma once
#include "tools/desktop/planner.h"
#include <QWidget>
#include <functional>

class QComboBox;
class QLabel;
class QSlider;

namespace kvrun::desktop {

class PlanRow;

class MemoryPanel : public QWidget {
 public:
	MemoryPanel();
	std::function<void()> changed = [] {};
	void set(const std::string& kv, uint32_t ctx);
	const std::string& kv() const { return kv_; }
	uint32_t ctx() const { return ctx_; }
	// The planner's result so far; without a model there is no plan.
	void show_plan(const std::optional<Plan>&, bool has_model);

 private:
	void choose(int place);
	void refresh();
	std::string kv_ = "fp16";
	uint32_t ctx_ = 0;
	QSlider* slider_;
	QComboBox* length_;
	QLabel *summary_, *legend_;
	std::vector<PlanRow*> rows_;
	PlanRow* other_; // a policy typed by an expert
	std::optional<Plan> plan_;
	bool setting_ = false;
};

} // namespace kvrun::desktop

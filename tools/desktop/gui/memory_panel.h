// "Memory for conversations": a slider from quality to length, and for each place on it what the library's plan says:
// the memory it takes, the tokens that fit, and what it is expected to cost in quality.
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
	// What the planner knows so far; a model that is not there yet has no plan.
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
	PlanRow* other_; // a policy of the expert's own
	std::optional<Plan> plan_;
	bool setting_ = false;
};

} // namespace kvrun::desktop

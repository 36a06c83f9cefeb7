// kvrun pull, list, rm: download models from a hub, list and remove those on this machine.
#include "engine/core/utf8.h"
#include "tools/commands.h"
#include "tools/hub/folders.h"
#include "tools/hub/local.h"
#include "tools/hub/pull.h"
#include "tools/output.h"
#include "tools/terminal.h"

namespace kvrun {
namespace {

struct ListArgs {
	std::string name;
	bool json = false, names = false;
};

void list_models(const ListArgs& a) {
	std::vector<LocalModel> models = local_models();
	if (!a.name.empty()) {
		std::vector<LocalModel> found = find_local(models, a.name);
		if (found.empty()) fail_no_local(models, a.name);
		models = std::move(found);
	}
	if (a.json) {
		Json out = Json::array();
		for (const LocalModel& m : models)
			out.push_back({{"name", m.name},
			               {"owner", m.owner},
			               {"bytes", m.bytes},
			               {"parts", m.parts},
			               {"path", m.path},
			               {"mmproj", m.encoder.empty() ? Json() : Json(m.encoder)}});
		return print_json(out);
	}
	if (a.names) {
		std::string lines;
		for (const LocalModel& m : models) lines += one_line(m.name) + "\n";
		return write_stdout(lines);
	}
	if (models.empty()) {
		std::string folders;
		for (const ModelFolder& f : model_folders()) folders += "\n#   " + one_line(f.path.string());
		return say_stats("no models are here; 'kvrun pull USER/REPO' fetches one. Looked into" + folders);
	}
	std::vector<std::vector<Column>> rows;
	for (const LocalModel& m : models)
		rows.push_back({{"name", one_line(m.name)},
		                {"size", human_bytes(double(m.bytes))},
		                {"of", m.owner},
		                {"file", one_line(m.path, /*max_bytes=*/4096)}});
	print_table(rows);
}

} // namespace

void add_pull(Command& root) {
	auto name = std::make_shared<std::string>();
	auto no_mmproj = std::make_shared<bool>(false);
	Command& c = add_command(root, "pull", "Fetches a model from huggingface.co, or another hub of its kind.");
	c.examples = {{"kvrun pull unsloth/Qwen3-0.6B-GGUF", "the file that fits this device; says which, and why"},
	              {"kvrun pull unsloth/Qwen3-0.6B-GGUF:Q4_K_M", "this one"},
	              {"kvrun chat Qwen3-0.6B", "then, by the name or its beginning"}};
	add_text(c, "name", *name, "USER/REPO[:QUANT]",
	         "the repository, and which of its GGUF files: a quant, or a file's name")
	    ->required();
	add_flag(c, "--no-mmproj", *no_mmproj, "without the repository's encoder of images and sounds");
	c.sections = {
	    {"Choice",
	     "Without QUANT the largest file is taken whose weights leave room on the device (KVRUN_DEVICE, else the best) "
	     "for the cache of 8192 tokens, as 'kvrun plan' counts: of up to 8.75 bits per weight, on a CPU 5.25. The "
	     "file's beginning is looked at first, and one that kvrun cannot run is not fetched."},
	    {"Files",
	     "They lie where huggingface_hub keeps them, in its layout, so that each finds what the other fetched. A fetch "
	     "that was cut or stopped by Ctrl-C goes on with the same command. What comes is compared with the hub's "
	     "SHA-256 before it gets its name. All parts of a split model are fetched, and with it the repository's vision "
	     "encoder (mmproj), if kvrun runs it: of several the one in f16. The model's path is printed on stdout."}};
	c.sections.push_back(
	    {"Environment",
	     "",
	     {{"HF_HUB_CACHE, HF_HOME", "folder of the files [~/.cache/huggingface/hub]; folder above it"},
	      {"HF_TOKEN", "token for what is not public [$HF_HOME/token]"},
	      {"HF_ENDPOINT", "address of the hub [https://huggingface.co]"},
	      {"HF_HUB_OFFLINE", "1: ask no hub"},
	      {"HF_HUB_DOWNLOAD_TIMEOUT", "seconds without a byte after which a connection is given up [30]"},
	      {"https_proxy, no_proxy", "proxy, and hosts that are reached without"}}});
	c.run = [name, no_mmproj] {
		write_stdout(pull_model(*name, /*must_run=*/false, /*encoder=*/!*no_mmproj).path + "\n");
	};
}

void add_list(Command& root) {
	auto a = std::make_shared<ListArgs>();
	Command& c = add_command(root, "list", "Lists the models on this machine: kvrun's, and those of other programs.");
	c.examples = {{"kvrun list", "names, which every command with a model takes, or their beginnings"},
	              {"kvrun list qwen3 --json", "those that the name 'qwen3' means"}};
	add_text(c, "name", a->name, "NAME", "only those that this name means")->of_models();
	add_flag(c, "--names", a->names, "print their names alone, a line each");
	add_flag(c, "--json", a->json, "print a JSON array");
	c.sections = {
	    {"Folders",
	     "GGUF files in the cache of huggingface_hub (hub), in $KVRUN_MODELS or ~/.cache/kvrun/models (kvrun), and in "
	     "those of Ollama (OLLAMA_MODELS), LM Studio and llama.cpp (LLAMA_CACHE). Those of other programs are used "
	     "where they lie."},
	    json_section(
	        {{"name, owner", "what commands take; hub, kvrun, ollama, lmstudio or llama.cpp"},
	         {"bytes, parts, path", "of the model; files it is split into; the first of them"},
	         {"mmproj", "file of the repository's encoder of images or sounds, which the model gets; null: none"}})};
	c.run = [a] { list_models(*a); };
}

void add_rm(Command& root) {
	auto names = std::make_shared<std::vector<std::string>>();
	Command& c = add_command(root, "rm", "Deletes models from the hub's cache or from kvrun's own folder.");
	c.examples = {{"kvrun rm unsloth/Qwen3-0.6B-GGUF:Q4_K_M", "one model, by its name as 'kvrun list' prints it"},
	              {"kvrun rm unsloth/Qwen3-0.6B-GGUF", "all files of a repository, and parts of interrupted fetches"}};
	add_positionals(c, "name", *names, "NAME", "names that 'kvrun list' prints, or beginnings that mean one model")
	    ->of_models();
	c.sections = {
	    {"Other programs",
	     "What Ollama, LM Studio or llama.cpp keeps is left alone. Programs that use huggingface_hub share its "
	     "cache: they fetch again what is deleted here."}};
	c.run = [names] {
		for (const std::string& name : *names) {
			const RemovedModel gone = remove_model(name);
			say_stats(fmt::format("removed {}, {} are free", one_line(gone.name), human_bytes(double(gone.bytes))));
		}
	};
}

} // namespace kvrun

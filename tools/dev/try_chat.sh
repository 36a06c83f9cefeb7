#!/usr/bin/env bash
# Acceptance run of kvrun chat on the bundled model, in a terminal of tmux: messages of several lines, a paste, every
# command, Ctrl-C, a full context, a kill, and the chat restored afterwards. Prints the screen at the end.
#
# Usage: try_chat.sh [KVRUN [DEVICE]]     default build/kvrun cpu. Exit code 77: tmux is missing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
kvrun=$(realpath "${1:-build/kvrun}") device=${2:-cpu} model=$PWD/models/bundled/recall-4m-f16.gguf
command -v tmux >/dev/null || { echo "skipped: no tmux" >&2; exit 77; }
folder=$(mktemp -d)
echo 'set -g remain-on-exit on' >"$folder/tmux.conf" # the screen keeps the output of a program that has ended
tmux() { command tmux -S "$folder/tmux" -f "$folder/tmux.conf" "$@"; }
trap 'tmux kill-server 2>/dev/null || true; rm -rf "$folder"' EXIT
export XDG_STATE_HOME=$folder/state

screen() { tmux capture-pane -p -J -S -; }
written() { screen | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}'; } # without empty lines at the end
keys() { tmux send-keys -t chat "$@"; }
say() { keys -l -- "$1"; keys Enter; }
waits=0
expect() { # description, extended pattern that must appear on the screen
	for _ in $(seq 600); do
		if screen | grep -Eq -- "$2"; then
			echo "ok: $1"
			return
		fi
		sleep 0.1
	done
	echo "FAILED: $1: the screen has no '$2':" >&2
	screen >&2
	exit 1
}
prompt() { # waits until the editor is ready
	waits=$((waits + 1))
	for _ in $(seq 1200); do
		if [ "$(written | tail -n 1 | tr -d ' ')" = ">" ]; then return; fi
		sleep 0.1
	done
	echo "FAILED: no prompt after step $waits:" >&2
	screen >&2
	exit 1
}
begin() { # options
	tmux new-session -d -s chat -x 100 -y 50 -- "$kvrun" chat "$model" --device "$device" --chat-template chatml \
		--temp 0 -n 12 "$@"
	expect "it begins" '/help lists the commands'
	prompt
}

begin --chat try
say 'The code of Anna is 4711.'; prompt
say '"""'; say 'Two lines:'; say 'what is her code?"""'; prompt
expect 'a message of several lines' '\.\.\. what is her code'
keys -l 'first'; keys Escape Enter; keys -l 'second'; keys Enter; prompt
tmux set-buffer $'a paste\nof two lines'
tmux paste-buffer -p -t chat; keys Enter; prompt
say '/stats'; expect 'statistics' 'cache: .* \(fp16\)'; prompt
say '/kv kivi2,recent=32'; expect 'another policy' 'policy kivi2,recent=32: [0-9]+ of'; prompt
say '/stats'; expect 'its cache is packed' 'cache: .* \(kivi2,recent=32\): .*codes [0-9.]+ [KM]iB'; prompt
say '/undo'; expect 'a message is taken back' 'took back: a paste'; prompt
say '/retry'; prompt
say '/fork other'; expect 'a fork' "goes on as 'other'"; prompt
say '/set temp 0.5'; expect 'a setting' 'temp 0.5, top-k 40'; prompt
say '/set on-full drop-oldest'; prompt
say '/system Be brief.'; prompt
echo 'the text of a file' >"$folder/file.txt"
say "/file $folder/file.txt"; expect 'a file' 'file.txt: 19 B go in front'; prompt
say '/nonsense'; expect 'a command that is none' "unknown command '/nonsense'"; prompt
say '/save'; expect 'saving' "saved as 'other'"; prompt
say '/set max-tokens 100000'; prompt
say 'Go on for ever.'; sleep 1; keys C-c; prompt
expect 'Ctrl-C ends the answer' '> *$'
pid=$(tmux list-panes -t chat -F '#{pane_pid}')
say 'And again.'; sleep 1
kill -9 "$pid"
for _ in $(seq 300); do # a killed program holds the chat until the system has freed its memory
	kill -0 "$pid" 2>/dev/null || break
	sleep 0.1
done
tmux kill-server 2>/dev/null || true
begin --chat other
expect 'after a kill the chat is there' "chat 'other': [0-9]+ messages"
say '/load'; expect 'both chats' 'saved chats: other, try'; prompt
say '/clear'; expect 'a new conversation' 'a new conversation'; prompt
say 'The code of Ben is 1234. What is the code of Ben?'; prompt
say '/kv kivi2,recent=32'; prompt
say '/stats'; prompt
written >"$folder/screen"
keys C-d; sleep 0.5
[ "$(stat -c %a "$XDG_STATE_HOME/kvrun/history")" = 600 ] || { echo "FAILED: the history is not its owner's alone" \
	>&2; exit 1; }
say_full() { printf \
	'one\ntwo two two two two two two two two two two two\nthree three three three three three three three three three\n'; }
said=$(say_full | "$kvrun" chat "$model" --device "$device" --chat-template chatml --temp 0 -n 40 -c 96 2>&1 \
	>/dev/null || true)
grep -q 'context full: the conversation has .* choose .*/clear' <<<"$said" || { echo \
	"FAILED: a full context said: $said" >&2; exit 1; }
said=$(say_full | "$kvrun" chat "$model" --device "$device" --chat-template chatml --temp 0 -n 40 -c 96 --on-full \
	drop-oldest 2>&1 >/dev/null)
grep -q 'left out the oldest' <<<"$said" || { echo "FAILED: --on-full drop-oldest said: $said" >&2; exit 1; }
echo "try_chat: all ok on $device; the screen:"
cat "$folder/screen"

#!/usr/bin/env bash
# Acceptance run of kvrun serve on the bundled model: a request of each kind with curl, a conversation that survives a
# kill, a socket in the file system, SIGTERM. Stops at the first failure.
#
# Usage: try_serve.sh [KVRUN [DEVICE]]     default build/kvrun cpu
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
kvrun=${1:-build/kvrun} device=${2:-cpu} model=models/bundled/recall-4m-f16.gguf
folder=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null || true; rm -rf "$folder"' EXIT

start() { # options; sets pid and url
	"$kvrun" serve "$model" --device "$device" --chat-template chatml --port 0 --sessions "$folder/kept" "$@" \
		>"$folder/out" 2>"$folder/err" &
	pid=$!
	for _ in $(seq 600); do
		url=$(sed -n 's/^listening on //p' "$folder/out")
		[ -z "$url" ] || return 0
		kill -0 "$pid" 2>/dev/null || { cat "$folder/err" >&2; return 1; }
		sleep 0.1
	done
	return 1
}
stop() { # signal, exit code
	kill "-$1" "$pid"
	local code=0
	wait "$pid" || code=$?
	pid=
	[ "$code" = "$2" ] || { echo "FAILED: exit code $code after $1, expected $2" >&2; exit 1; }
}
post() { curl -sS --fail-with-body -H 'Content-Type: application/json' "$url$1" -d "$2"; }
expect() { # what, text, the extended pattern it must have
	if ! grep -Eq -- "$3" <<<"$2"; then
		echo "FAILED: $1: '$2' has no '$3'" >&2
		exit 1
	fi
	echo "ok: $1"
}

start
ask='[{"role": "user", "content": "The code of Anna is 4711. What is the code of Anna?"}]'
expect "health" "$(curl -sS "$url/health")" '"ok"'
expect "the model" "$(curl -sS "$url/v1/models")" 'recall-4m-f16'
expect "an answer" "$(post /v1/chat/completions "{\"messages\": $ask, \"max_tokens\": 12}")" \
	'"finish_reason":"(stop|length)"'
expect "a stream" "$(post /v1/chat/completions "{\"messages\": $ask, \"max_tokens\": 12, \"stream\": true}")" \
	'^data: \[DONE\]'
expect "two choices" "$(post /v1/chat/completions "{\"messages\": $ask, \"max_tokens\": 12, \"n\": 2}")" '"index":1,'
expect "a policy of its own" \
	"$(post /v1/completions '{"prompt": "Once", "max_tokens": 80, "ignore_eos": true, "kv": "kivi2,recent=32"}')" \
	'"code_bytes":[1-9]'
expect "likelihoods" "$(post /v1/completions '{"prompt": "Once", "max_tokens": 2, "logprobs": 2}')" \
	'"token_logprobs":\[-'
expect "a JSON object" "$(post /v1/chat/completions "{\"messages\": $ask, \"max_tokens\": 12, \"response_format\": \
	{\"type\": \"json_object\"}}")" '"content":"[^"]*\{'
expect "a wrong field" "$(post /v1/completions '{"prompt": "x", "temperature": "hot"}' 2>/dev/null || true)" \
	'"param":"temperature"'
expect "the page" "$(curl -sS "$url/")" '<title>kvrun'
expect "metrics" "$(curl -sS "$url/metrics")" '^kvrun_answers_total [1-9]'
expect "a conversation that is kept" "$(post /v1/chat/completions "{\"messages\": $ask, \"max_tokens\": 12, \
	\"session\": \"anna\"}")" '"kept":true'
stop KILL 137
start
expect "what was said, after a kill" "$(curl -sS "$url/sessions/anna")" '"role":"assistant"'
turn=$(curl -sS "$url/sessions/anna" | sed \
	's/.*"messages":\[\(.*\)\]}$/[\1, {"role": "user", "content": "And again?"}]/')
expect "the next turn reads only what is new" "$(post /v1/chat/completions "{\"messages\": $turn, \"max_tokens\": 4, \
	\"session\": \"anna\"}")" '"cached_tokens":[1-9]'
stop TERM 0
start --unix "$folder/socket"
expect "a socket in the file system" "$(curl -sS --unix-socket "$folder/socket" http://localhost/health)" '"ok"'
stop TERM 0
[ ! -s "$folder/err" ] || { echo "FAILED: it said: $(cat "$folder/err")" >&2; exit 1; }
echo "try_serve: all ok on $device"

#!/bin/sh
# Trains the pocket model. Usage: sh pocket/train_all.sh vae|dit|all OUT SECONDS [python]
# SMOKE=N with stage vae adds N seconds of transformer training at the end, of which only the log is kept.
# Run from the repository root; PYTHONPATH must reach shotclock and the libraries. Each stage ends after SECONDS.
set -u
stage=$1 out=$2 seconds=$3 python=${4:-python3}
mkdir -p "$out"
export PYTHONPATH="${PYTHONPATH:-}:.:src" PYTHONUNBUFFERED=1

autoencoders() { # video and audio side by side on one GPU; the sound needs about 60 % of the time
    "$python" -m pocket.train_vae --out "$out" --seconds "$seconds" --batch 8 --compile ${RESUME:+--resume "$RESUME"} &
    video=$!
    "$python" -m pocket.train_audio --out "$out" --seconds $((seconds * 6 / 10)) ${RESUME:+--resume "$RESUME"} &
    audio=$!
    failed=0
    wait $video || failed=1
    wait $audio || failed=1
    return $failed
}

smoke() { # does the next stage run on this machine, and how fast?
    "$python" -m pocket.train_dit --out "$out/smoke" --models "$out" --seconds "$1" --reserve 15 --fill 512 --clips 16 --compile
    for f in train_dit.jsonl dit_result.json dit_strip.png; do mv "$out/smoke/$f" "$out/smoke_$f"; done
    rm -rf "$out/smoke"
}

gather() { # one archive of everything small, so that few files travel
    (cd "$out" && tar cf "logs_$1.tar" *.jsonl *result.json *.png *.wav 2>/dev/null; rm -f *.jsonl *result.json *.png *.wav)
    return 0
}

status=0
case $stage in
vae) autoencoders || status=1
    [ -n "${SMOKE:-}" ] && { smoke "$SMOKE" || status=1; }
    gather vae ;;
dit) "$python" -m pocket.train_dit --out "$out" --models "${MODELS:-$out}" --seconds "$seconds" --compile ${RESUME:+--resume "$RESUME"} || status=1; gather dit ;;
all) autoencoders && "$python" -m pocket.train_dit --out "$out" --models "$out" --seconds "$seconds" --compile || status=1 ;;
*) echo "stage is vae, dit or all, not $stage" >&2; exit 2 ;;
esac
ls -l "$out"
exit $status

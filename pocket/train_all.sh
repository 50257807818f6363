#!/bin/sh
# Trains the pocket model. Usage: sh pocket/train_all.sh vae|sound|dit|all OUT SECONDS [python]
# Run from the repository root; PYTHONPATH must reach shotclock and the libraries. Each stage ends after SECONDS.
#   vae    both autoencoders side by side
#   sound  the vocoder alone, from the audio file in MODELS
#   dit    a part of the transformer's training, from the state in RESUME where it is set; SOUND=N trains the vocoder
#          beside it for N seconds, on the second GPU where there is one
# MODELS=DIR holds the autoencoder files (default OUT), RESUME=DIR what an earlier part left, DIT="options" go to
# pocket.train_dit, which are one option each. `all` runs the three one after another and makes the files; after parts,
# `python -m pocket.export --state OUT --out DIR` makes those of the transformer.
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

sound() { # $1 seconds
    resume=${RESUME:-}
    [ -n "$resume" ] && ls "$resume"/vocoder_state.* >/dev/null 2>&1 || resume=
    "$python" -m pocket.train_audio --out "$out" --from "${MODELS:-$out}" --seconds "$1" ${resume:+--resume "$resume"}
}

dit() {
    "$python" -m pocket.train_dit --out "$out" --models "${MODELS:-$out}" --seconds "$seconds" \
        ${RESUME:+--resume "$RESUME"} ${DIT:-}
}

second_gpu() { # the number of a GPU that the transformer does not use
    "$python" -c 'import torch; print(1 if torch.cuda.device_count() > 1 else 0)'
}

gather() { # one archive of everything small, so that few files travel
    (cd "$out" && tar cf "logs_$1.tar" *.jsonl *result.json *.png *.wav 2>/dev/null; rm -f *.jsonl *result.json *.png *.wav)
    return 0
}

status=0
case $stage in
vae) autoencoders || status=1; gather vae ;;
sound) sound "$seconds" || status=1; gather sound ;;
dit) beside=
    [ -n "${SOUND:-}" ] && {
        (export CUDA_VISIBLE_DEVICES="$(second_gpu)"; sound "$SOUND") &
        beside=$!
    }
    dit || status=1
    [ -n "$beside" ] && { wait "$beside" || status=1; }
    gather dit ;;
all) autoencoders && sound "$seconds" && dit && "$python" -m pocket.export --state "$out" --out "$out" || status=1 ;;
*) echo "stage is vae, sound, dit or all, not $stage" >&2; exit 2 ;;
esac
ls -l "$out"
exit $status

"""The one table of thresholds: every rule of the three arms with its limits, their source, a meaning and a way out.

Change a number here and nowhere else, and measure again with ``shotclock verify --self-test``. Knows no clip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shotclock.errors import RequestError
from shotclock.verify.rules import Rule, parse

EXACT = "exact: counts and flags, no estimate"
VIDEO = "1,408 measured clips"  # 29 bases, 768x448, 25 frames, x264 crf 19; 120 held-out clips (docs/verify.md)
AUDIO = "992 measured sounds"  # 31 real tracks x 32 variants (docs/verify.md)
BT1359 = "ITU-R BT.1359 detectability +45/-125 ms, EBU R37 +40/-60 ms"
POCKET = "the pocket model's clips, whole and from broken runs (docs/verify.md)"
OWN = "self-test and 15 windows of free film; no real LTX clip yet, so WARN where unsure"
DAMAGED = "The file is cut short or was written over."
ASK_AGAIN = "write the clip again from latents.safetensors, then compare the sha256 after each copy"

CONTAINER_RULES = (
    Rule(
        name="decoder",
        arm="container",
        fail=("decoder_died > 0", "over_time > 0"),
        source=EXACT,
        meaning="Reading the clip crashed, ran out of memory or out of time: it is broken or hostile.",
        way_out="look at the facts below, raise --max-seconds for a long clip, or convert the clip first",
    ),
    Rule(
        name="structure",
        arm="container",
        fail=("box_overrun_bytes > 0", "moov_missing > 0", "box_malformed > 0"),
        source=EXACT,
        meaning=DAMAGED,
        way_out=ASK_AGAIN,
    ),
    Rule(
        name="damage",
        arm="container",
        fail=("corrupt_frames > 0", "illegal_packets > 0", "decode_errors > 0", "size_changes > 0"),
        source=EXACT,
        meaning="Some packets do not decode: bits flipped on disk or on the way.",
        way_out=ASK_AGAIN,
    ),
    Rule(
        name="video_stream",
        arm="container",
        fail=("video_missing > 0",),
        source=EXACT,
        meaning="There is no picture that decodes.",
        way_out="see the structure and damage findings; else the file holds sound only",
    ),
    Rule(
        name="frame_count",
        arm="container",
        fail=("frames_unlike_request > 0", "frames_unlike_header > 0"),
        source=EXACT,
        meaning="Frames were lost, added or never written: dropped packets, or a request off the 8k+1 grid.",
        way_out="compare with the plan's frame count; decode and write again from the latents",
    ),
    Rule(
        name="frame_size",
        arm="container",
        fail=("size_wrong > 0",),
        source=EXACT,
        meaning="The picture does not have the width and height that were asked for.",
        way_out="compare with the plan; a crop or an upscale was left out or added",
    ),
    Rule(
        name="frame_rate",
        arm="container",
        fail=("fps_wrong > 0",),
        source=EXACT,
        meaning="The clip plays at another rate than the one the model was conditioned on.",
        way_out="write again with the request's exact rate",
    ),
    Rule(
        name="frame_times",
        arm="container",
        fail=("pts_jitter_ms > 1 & fps_asked > 0",),
        warn=("pts_jitter_ms > 1",),
        source=EXACT,
        meaning="Frames are not evenly spaced: a frame is missing, or the rate varies.",
        way_out="count the frames; write again with a constant rate",
    ),
    Rule(
        name="audio_stream",
        arm="container",
        fail=("audio_missing > 0", "audio_undecoded > 0"),
        warn=("audio_unasked > 0",),
        source=EXACT,
        meaning="The sound that was asked for is not there, or is there unasked.",
        way_out="check that audio weights were loaded and that the clip was written with its sound",
    ),
    Rule(
        name="audio_format",
        arm="container",
        fail=("rate_wrong > 0", "channels_wrong > 0"),
        source=EXACT,
        meaning="Sample rate or channels are not what was asked: it may play at the wrong speed.",
        way_out="compare the vocoder's rate with the label in the file",
    ),
    Rule(
        name="av_length",
        arm="container",
        fail=("av_gap_ms > 100 & av_gap_frames > 2",),
        warn=("av_gap_frames > 1",),
        excused_by=frozenset({"silent"}),
        source="a real LTX clip is 10 ms long, another 32 ms short",
        meaning="Sound and picture differ in length: sound cut short, or a wrong sample rate label.",
        way_out="compare the wav's length with frames / rate",
    ),
    Rule(
        name="av_start",
        arm="container",
        fail=("start_gap_ms > 45",),
        warn=("start_gap_ms > 20",),
        source=BT1359,
        meaning="Sound and picture do not start together.",
        way_out="write again with both streams starting at 0",
    ),
    Rule(
        name="colour_tags",
        arm="container",
        warn=("colour_other > 0", "colour_untagged > 0 & request_known > 0"),
        source=EXACT,
        meaning="Colour tags are missing or not BT.709 limited range: players may show other colours.",
        way_out="tag matrix, primaries and transfer bt709 and range tv",
    ),
    Rule(
        name="pixel_format",
        arm="container",
        warn=("pix_fmt_other > 0",),
        source=EXACT,
        meaning="Not yuv420p: some players and browsers show nothing.",
        way_out="encode as yuv420p",
    ),
    Rule(
        name="fast_start",
        arm="container",
        warn=("moov_late > 0 & request_known > 0",),
        source=EXACT,
        meaning="The index lies at the end: a browser must load the whole clip before it plays.",
        way_out="ffmpeg -i clip.mp4 -c copy -movflags +faststart out.mp4",
    ),
    Rule(
        name="whole_clip",
        arm="container",
        warn=("frames_left_out > 0", "samples_left_out > 0"),
        source="reader.Limits",
        meaning="The clip is longer than the limits of the reader; only its beginning was judged.",
        way_out="judge parts of it, or raise the limits",
    ),
)

PIXEL_RULES = (
    Rule(
        name="flat_frames",
        arm="pixels",
        fail=("flat_share >= 0.9", "flat_jump > 35"),
        warn=("flat_frames > 0",),
        excused_by=frozenset({"black"}),
        softened_by=frozenset({"fade", "cut", "title"}),
        source=f"{VIDEO}: fades jump by at most 30, one black frame by a median of 200",
        meaning="Frames of one plain colour: nothing was decoded, the last chunk was lost, or the clip fades.",
        way_out="look at the latents of those frames; say --expect fade or black if it was asked for",
    ),
    Rule(
        name="grad_kurt",
        arm="pixels",
        fail=("grad_kurt < 5.5",),
        warn=("grad_kurt < 7",),
        source=f"{VIDEO}: good >= 7.4, hard >= 6.9, noise <= 5.2",
        meaning="Edges are distributed as in noise, not as in a picture: the latents were not denoised.",
        way_out="check that the last sigma is 0, the weights are complete and not quantised twice, guidance is on",
    ),
    Rule(
        name="correlation",
        arm="pixels",
        fail=("correlation < 0.6",),
        warn=("correlation < 0.85",),
        source=f"{VIDEO}: good >= .954, hard >= .934, white noise .005",
        meaning="Neighbouring pixels have little to do with each other: noise.",
        way_out="as for grad_kurt; a decoder that got the wrong latent layout looks like this too",
    ),
    Rule(
        name="noise",
        arm="pixels",
        fail=("noise_sigma_most > 18 & correlation_least < 0.8", "noise_sigma > 18"),
        warn=("noise_sigma_most > 9",),
        source=f"{VIDEO}: good <= 1.7, light grain 6.4, white noise 41",
        meaning="Strong noise in all or in single frames; heavy film grain warns.",
        way_out="look at the marked frame; noise at the start points at the first latent frame or at conditioning",
    ),
    Rule(
        name="chroma",
        arm="pixels",
        fail=("chroma_fine > 0.5 & grad_kurt < 6",),
        source=f"{VIDEO}: good <= .22, hard <= .42, latent noise .64-1.06",
        meaning="Colour has as much fine detail as light: a decoded latent that was not denoised.",
        way_out="as for grad_kurt",
    ),
    Rule(
        name="time_flow",
        arm="pixels",
        fail=("lag2 < 1.0 & mad_adjacent > 1",),
        warn=("lag2 < 1.08",),
        excused_by=frozenset({"strobe"}),
        softened_by=frozenset({"static", "title"}),
        source=f"{VIDEO}: good 1.18-1.77, static grain 1.02, white noise 1.00, shuffled .86-1.19",
        meaning="Frames two apart are as near as neighbours: order shuffled, independent noise, or a still with grain.",
        way_out="check the order of frames and chunks; say --expect static for a still",
    ),
    Rule(
        name="frozen",
        arm="pixels",
        fail=("mad_median < 0.02", "mad_far < 0.1 & mad_median < 0.05", "raw_copied_share >= 0.9"),
        warn=("mad_median < 0.25",),
        excused_by=frozenset({"static", "black"}),
        softened_by=frozenset({"cartoon", "title"}),
        source=f"{VIDEO}: good >= .086, still with grain >= .032, frozen <= .009; self-test: "
        "MAD over half the clip <= .057 where frozen, >= .163 in a still with grain",
        meaning="Nothing moves.",
        way_out="say --expect static if a still was asked for; else check the frame axis of the latents",
    ),
    Rule(
        name="freeze_run",
        arm="pixels",
        fail=("held_run >= 6 & mad_least < 0.02 & mad_median >= 0.3",),
        excused_by=frozenset({"static", "black"}),
        softened_by=frozenset({"cartoon", "title", "fade"}),
        source=f"{VIDEO}: half frozen 12 pairs, good 0",
        meaning="The clip stands still for a quarter of a second and more while the rest moves.",
        way_out="look at the timeline; chunks may have been decoded from one latent frame",
    ),
    Rule(
        name="doubled",
        arm="pixels",
        fail=("held_share >= 0.3 & held_share <= 0.7 & mad_least < 0.05 & held_run <= 2",),
        excused_by=frozenset({"static", "black"}),
        softened_by=frozenset({"cartoon"}),
        source=f"{VIDEO}: 24 of 29 clips with doubled frames",
        meaning="Every other frame repeats: half the frames were made, or animation is drawn on twos.",
        way_out="compare the rate of the request with the model's; say --expect cartoon for animation on twos",
    ),
    Rule(
        name="distinct",
        arm="pixels",
        warn=("copied_frames > 0", "raw_copied_frames > 0"),
        excused_by=frozenset({"static", "black", "cartoon", "title"}),
        source="the seeds' own number; the encoder makes copies differ, so frames before encoding say more",
        meaning="Some frames are byte for byte the same.",
        way_out="see frozen, freeze_run and doubled",
    ),
    Rule(
        name="flicker",
        arm="pixels",
        fail=("flicker_alternation > 0.7 & flicker_amplitude > 2.5",),
        warn=("flicker_alternation > 0.5 & flicker_amplitude > 1",),
        excused_by=frozenset({"strobe"}),
        source=f"{VIDEO}: good alternate <= .72 and amplitude <= 5.6, never both; 10 % flicker .95 and 17.7",
        meaning="Brightness or a colour goes up and down with every frame.",
        way_out="say --expect strobe if it was asked for; else look at the decoder's normalisation",
    ),
    Rule(
        name="cut",
        arm="pixels",
        fail=("chunk_ratio > 3.5",),
        warn=("cut_ratio > 3.5",),
        softened_by=frozenset({"cut", "fade", "black", "strobe", "cartoon", "title"}),
        source=f"{VIDEO}: good <= 11, temporal seams 1.2-37; FAIL only at a chunk edge of the plan",
        meaning="One step between frames is far harder than the others: a cut, or a seam between temporal chunks.",
        way_out="compare the frame (cut_frame) with the plan's chunks; a longer overlap of chunks hides a seam",
    ),
    Rule(
        name="chunk_light",
        arm="pixels",
        warn=("chunk_light > 3 & chunk_light_step > 1",),
        excused_by=frozenset({"strobe", "black"}),
        softened_by=frozenset({"cut", "fade", "title"}),
        source=OWN,
        meaning="Brightness steps where two temporal chunks meet, and nowhere else.",
        way_out="give temporal chunks a longer overlap",
    ),
    Rule(
        name="beat",
        arm="pixels",
        warn=("beat_picture > 1.6", "beat_light > 1.5"),
        excused_by=frozenset({"strobe"}),
        softened_by=frozenset({"cartoon"}),
        source=OWN,
        meaning="A step at every eighth frame: each latent frame was decoded by itself.",
        way_out="give temporal chunks an overlap of at least one latent frame",
    ),
    Rule(
        name="grid2",
        arm="pixels",
        fail=("grid2 > 60 & grid2_amplitude > 0.3",),
        source=f"{VIDEO}: good <= 7.7, hard <= 15, checker 95-1860",
        meaning="A checkerboard of single pixels: an upsampling that does not fit its filter.",
        way_out="compare the decoder's pixel shuffle order with the checkpoint",
    ),
    Rule(
        name="grid4",
        arm="pixels",
        fail=("grid4 > 25 & grid4_amplitude > 0.15",),
        warn=("grid4 > 6",),
        source=f"{VIDEO}: good <= 6.1, hard <= 12, checker 16-478; a real LTX-2 clip reads 2 to 6.5",
        meaning="A pattern of four pixels; weak ones come from the VAE's patches or from a low bit rate.",
        way_out="record it as a trend; when strong, compare the decoder's patch order with the checkpoint",
    ),
    Rule(
        name="grid8",
        arm="pixels",
        fail=("grid8 > 12 & grid8_amplitude > 0.15",),
        source=f"{VIDEO}: good <= 2.3, hard <= 10.5, 8-pixel lines 7-43",
        meaning="A pattern of eight pixels: decoder patches, or a codec at a very low bit rate.",
        way_out="as for grid4; try a higher bit rate",
    ),
    Rule(
        name="grid32",
        arm="pixels",
        fail=("grid32 > 5.5 & grid32_step > 0.12",),
        warn=("grid32 > 3.5 & grid32_step > 0.12",),
        softened_by=frozenset({"shapes"}),
        source=f"{VIDEO}: good .39-4.3, 2 levels 7-48, 4 levels 16-86; self-test: good steps <= .11 levels",
        meaning="Every token of 32 pixels begins with the same step: tokens are decoded without their neighbours.",
        way_out="check positions and padding of the VAE's first layers",
    ),
    Rule(
        name="grid32_tokens",
        arm="pixels",
        fail=("grid32_tokens > 5 & grid32_tokens_step > 0.3",),
        warn=("grid32_tokens > 2 & grid32_tokens_step > 0.3",),
        softened_by=frozenset({"shapes"}),
        source=f"{OWN}: film .84-1.27, random steps of 4 levels 2.6-12, checker of 4 levels 6.5-24",
        meaning="Tokens of 32 pixels differ in brightness from their neighbours, up here and down there.",
        way_out="look for latents scaled or shuffled by token; compare one forward with the oracle",
    ),
    Rule(
        name="grid32_shapes",
        arm="pixels",
        fail=(
            "grid32 > 5.5 & grid32_step > 0.6 & shapes_asked > 0",
            "grid32_tokens > 5 & grid32_tokens_step > 0.6 & shapes_asked > 0",
        ),
        source=f"{POCKET}: good steps <= .31 and .45, planted 2 levels >= .88 and random steps >= .65",
        meaning="Tokens of 32 pixels show on a plain ground, where a weak step is a decoder's own.",
        way_out="as for grid32 and grid32_tokens",
    ),
    Rule(
        name="tile_step",
        arm="pixels",
        warn=("tile_step > 2.5 & tile_step_relative > 1.2",),
        source="self-test: 4 of 500 good edges; of 15 seams of 6 levels 15, of 2 levels 10 (the codec hides the rest)",
        meaning="A straight step where two decode tiles meet.",
        way_out="decode with a wider overlap of tiles, or without tiles",
    ),
    Rule(
        name="nan_blocks",
        arm="pixels",
        fail=("nan_blocks >= 1",),
        excused_by=frozenset({"black"}),
        source=f"{VIDEO}: good and hard 0, failures 4-24",
        meaning="Dead blocks inside the picture: tokens that became NaN and were then cut to black or white.",
        way_out="run with --trace-nonfinite; look at the first stage with a non-finite number",
    ),
    Rule(
        name="half_dead",
        arm="pixels",
        fail=("half_dead > 0.35",),
        warn=("half_dead_columns > 0.35",),
        excused_by=frozenset({"black", "title", "shapes"}),
        softened_by=frozenset({"fade"}),
        source=f"{VIDEO}: good <= .15, letterbox .25-.35, half a picture .50; columns may be pillars",
        meaning="A large part of the picture has no texture: a tile or rows were never written.",
        way_out="compare with the decoder's tiles; say --expect title for a flat graphic",
    ),
    Rule(
        name="burnt",
        arm="pixels",
        fail=("burnt > 0.45",),
        warn=("burnt > 0.33",),
        excused_by=frozenset({"black", "title", "shapes"}),
        source=f"{VIDEO}: good <= .32, contrast x4 .70",
        meaning="Much of the picture is clipped to black or full colour: guidance too strong, or levels scaled twice.",
        way_out="lower cfg or raise the rescale; check the [-1, 1] to [0, 255] conversion",
    ),
    Rule(
        name="range",
        arm="pixels",
        warn=("range < 60",),
        excused_by=frozenset({"black", "title", "shapes"}),
        softened_by=frozenset({"fade"}),
        source=f"{VIDEO}: good >= 110, washed out 25-56, night 16",
        meaning="The picture uses little of the range: washed out, or a night or fog scene.",
        way_out="check the conversion of levels and the latent statistics",
    ),
    Rule(
        name="faint",
        arm="pixels",
        fail=("contrast < 12 & shapes_asked > 0",),
        source=f"{POCKET}: good >= 20, broken <= 9.2",
        meaning="Solid shapes were asked for, and nothing stands out from its ground.",
        way_out="check that the sigmas fall to 0, that all weights are there, and the latent statistics",
    ),
    Rule(
        name="sharpness",
        arm="pixels",
        warn=("sharpness < 3.5",),
        source=f"{VIDEO}: good >= 42, soft >= 3.5, blurred .7-2.2, under-denoised 3.07",
        meaning="Nothing is sharp: heavy blur, too few steps, or a very soft scene.",
        way_out="compare with more steps; check that the last sigma is 0",
    ),
    Rule(
        name="skew",
        arm="pixels",
        fail=("skew >= 20 & sharpness > 20",),
        softened_by=frozenset({"title"}),
        source=f"{VIDEO}: good <= 8, wrong stride 24",
        meaning="Every row is shifted against the one above: a wrong row stride.",
        way_out="pass line sizes, not widths, to the encoder",
    ),
)

AUDIO_RULES = (
    Rule(
        name="finite",
        arm="audio",
        fail=("nonfinite_samples > 0",),
        source=EXACT,
        meaning="NaN or Inf in the waveform.",
        way_out="run the vocoder in float32; look at the first stage with a non-finite number",
    ),
    Rule(
        name="level",
        arm="audio",
        fail=("rms_db < -70",),
        warn=("rms_db < -45",),
        excused_by=frozenset({"silent"}),
        source=f"{AUDIO}: real tracks -42 to -9 dBFS",
        meaning="Silence, or nearly so.",
        way_out="say --expect silent if it was asked for; else check the audio latents and the vocoder",
    ),
    Rule(
        name="unasked_sound",
        arm="audio",
        warn=("rms_db > -45 & silence_asked > 0",),
        source=f"{AUDIO}: real tracks -42 to -9 dBFS",
        meaning="There is sound although silence was asked for.",
        way_out="listen to it",
    ),
    Rule(
        name="white_noise",
        arm="audio",
        fail=("flat_mid_db > -1 & env_cv < 0.15 & sample_kurtosis < 3.6",),
        warn=("flat_mid_db > -14 & env_cv < 0.1 & sample_kurtosis < 3.4",),
        source=f"{AUDIO}: white noise -.06 dB; rain has env_cv .4 and kurtosis 25",
        meaning="Steady noise with a flat spectrum: audio latents that were not denoised.",
        way_out="check the audio sigmas and that the vocoder's weights were loaded",
    ),
    Rule(
        name="note",
        arm="audio",
        fail=("env_cv > 1.3 & note_asked > 0",),
        source=f"{POCKET}: good <= .09, .70 where it blinks (three blinks 1.2), undenoised 1.34-3.2",
        meaning="A held note was asked for, and the sound swells and dies.",
        way_out="check the audio sigmas, the audio latents and that all weights are there",
    ),
    Rule(
        name="hum",
        arm="audio",
        warn=("env_cv < 0.06 & spectral_crest > 100",),
        excused_by=frozenset({"note"}),
        source=f"{AUDIO}: hum .004-.04 and 460, tone .001-.05 and 590",
        meaning="A steady tone or hum and nothing else.",
        way_out="listen to it; a collapsed vocoder hums",
    ),
    Rule(
        name="clipping",
        arm="audio",
        fail=("clipped_share > 0.005", "peak_db > 4"),
        warn=("clipped_share > 0.0005", "peak_db > 1.5"),
        source=f"{AUDIO}: real <= .0002, loud masters .003, +20 dB .03; AAC overshoots to +2.5 dB",
        meaning="Too loud: peaks are cut off.",
        way_out="judge the float wav from before AAC; check the scale between vocoder and file",
    ),
    Rule(
        name="offset",
        arm="audio",
        fail=("dc > 0.06",),
        warn=("dc > 0.02",),
        source=f"{AUDIO}: real <= .0064, offset .095",
        meaning="The waveform does not swing around zero.",
        way_out="judge the float wav; check the vocoder's last layer",
    ),
    Rule(
        name="balance",
        arm="audio",
        fail=("imbalance_db > 40",),
        warn=("imbalance_db > 12",),
        excused_by=frozenset({"silent"}),
        source=f"{AUDIO}: real <= 2.9 dB, one channel dead 158 dB",
        meaning="One channel is dead or nearly so.",
        way_out="check the channel axis between vocoder and file",
    ),
    Rule(
        name="polarity",
        arm="audio",
        warn=("channel_correlation < -0.93",),
        source=f"{AUDIO}: real >= -.79, inverted <= -.95",
        meaning="One channel is the other upside down: it vanishes in mono.",
        way_out="check the sign of the second channel",
    ),
    Rule(
        name="zero_tail",
        arm="audio",
        fail=("zero_tail_s > 0.25",),
        excused_by=frozenset({"silent"}),
        source=f"{AUDIO}: real 0, failures .42 s",
        meaning="The end is made of zeros: the waveform was shorter than the clip and padded.",
        way_out="compare audio latents x 40 ms with the length of the clip",
    ),
    Rule(
        name="dropouts",
        arm="audio",
        fail=("dropouts_hz > 1",),
        warn=("dropouts_hz > 0.3",),
        excused_by=frozenset({"silent"}),
        source=f"{AUDIO}: real <= .25 a second, failures 4.7",
        meaning="Short holes in the sound: lost packets, or chunks without overlap.",
        way_out="judge the float wav; if it is whole, encode again",
    ),
    Rule(
        name="loop",
        arm="audio",
        warn=("loop_correlation > 0.9",),
        excused_by=frozenset({"note"}),
        source=f"{AUDIO}: a stuck buffer .95, a bass drone .97, so it never fails",
        meaning="The sound repeats exactly: a stuck buffer, or a held note.",
        way_out="listen to it",
    ),
    Rule(
        name="loudness",
        arm="audio",
        warn=("lufs > -8",),
        source=f"{AUDIO}: real -40 to -8.5 LUFS",
        meaning="Louder than any mastered track.",
        way_out="lower the gain; check the audio guidance",
    ),
    Rule(
        name="wav_length",
        arm="audio",
        fail=("wav_gap_ms > 100 & wav_gap_frames > 2",),
        warn=("wav_gap_frames > 1",),
        source="as av_length, for the wav beside the clip",
        meaning="The wav is shorter or longer than the picture.",
        way_out="compare audio latents x 40 ms with frames / rate",
    ),
)

STAGE_RULES = (
    Rule(
        name="finite_stages",
        arm="stages",
        fail=("nonfinite_values > 0",),
        source=EXACT,
        meaning="NaN or Inf in the render itself, before a conversion to integers would hide it.",
        way_out="render again with --trace-nonfinite: it names the leg and the block; the snapshot before it is kept",
    ),
    Rule(
        name="guidance",
        arm="stages",
        warn=("unguided > 0",),
        source=EXACT,
        meaning="Nothing guided this render: cfg 1, no perturbed leg, no isolated leg. The dev model is poor without.",
        way_out="leave the guidance to the recipe; only a distilled model is meant to run without it",
    ),
    Rule(
        name="distilled",
        arm="stages",
        warn=("guided_distilled > 0",),
        source=EXACT,
        meaning="Guidance was on with distilled weights: more forwards, and a worse clip.",
        way_out="leave the guidance to the recipe, or say --class dev where the weights are",
    ),
)

WHOLE_SOUND = ("finite", "wav_length")  # audio rules that hold for a sound that was given, too
RULES = (
    *CONTAINER_RULES,
    *PIXEL_RULES,
    *(r if r.name in WHOLE_SOUND else replace(r, excused_by=r.excused_by | {"given"}) for r in AUDIO_RULES),
    *STAGE_RULES,
)


def limit(name: str, metric: str) -> float:
    """The limit at which a metric of a rule first speaks, for who marks places: the WARN one where there is one."""
    rule = next(rule for rule in RULES if rule.name == name)
    bounds = [bound for text in rule.warn + rule.fail for bound in parse(text)]
    return next(bound.limit for bound in bounds if bound.metric == metric)


NOT_JUDGED = (
    "whether the picture shows what the prompt says, and anatomy",
    "ghosts between chunks and seams that were blended well",
    "full or limited range converted twice, red and blue exchanged",
    "whether sound and picture belong together in time inside the clip",
    "sound with random phase, a low-pass, sparse clicks, noise as loud as the sound",
)


def with_changes(rules: tuple[Rule, ...], changes: Mapping[str, Mapping[str, list[str]]]) -> tuple[Rule, ...]:
    """The table with other limits: ``{"grad_kurt": {"fail": ["grad_kurt < 4"], "warn": []}}``; none left = no rule.

    Raises :class:`RequestError` for an unknown rule, an unknown key or a condition that cannot be read.
    """
    known = {rule.name: rule for rule in rules}
    for name, limits in changes.items():
        if name not in known or set(limits) - {"fail", "warn"}:
            raise RequestError(
                f"thresholds for {name!r} with {sorted(limits)} are not known",
                allowed=f"fail and warn of {', '.join(sorted(known))}",
                way_out="see the table in docs/verify.md",
            )
        for conditions in limits.values():
            for condition in conditions:
                parse(condition)
        rule = known[name]
        known[name] = replace(
            rule, fail=tuple(limits.get("fail", rule.fail)), warn=tuple(limits.get("warn", rule.warn))
        )
    return tuple(rule for rule in known.values() if rule.fail or rule.warn)


def table() -> str:
    """The rules as a Markdown table, for docs/verify.md."""
    rows = ["| arm | rule | FAIL | WARN | asked for | source |", "|---|---|---|---|---|---|"]
    for rule in RULES:
        asked = ", ".join(sorted(rule.excused_by) + [f"({word})" for word in sorted(rule.softened_by)])
        fail, warn = ("<br>".join(f"`{text}`" for text in side) for side in (rule.fail, rule.warn))
        rows.append(f"| {rule.arm} | {rule.name} | {fail} | {warn} | {asked} | {rule.source} |")
    return "\n".join(rows)

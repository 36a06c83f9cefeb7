#!/usr/bin/env python3
"""Writes tests/golden/audio/tone.*: half a second of two tones in the formats that tools/audio reads.

make_sound_files.py OUT_DIR
Needs numpy and python3-soundfile (libsndfile 1.1 or newer).

FLAC has two channels, whose mean is the sound, and other rates than the encoders' are among them.
"""
import os
import sys

import numpy as np
import soundfile

SECONDS = 0.5


def tones(rate):
    """The same as in tests/serve/test_audio_file.cpp."""
    t = np.arange(int(SECONDS * rate)) / rate
    return 0.4 * np.sin(2 * np.pi * 440 * t) + 0.2 * np.sin(2 * np.pi * 2500 * t)


def main(out):
    stereo = tones(22050)
    only = 0.1 * np.cos(2 * np.pi * 1000 * np.arange(len(stereo)) / 22050)
    for name, sound, rate, kind in (("tone.wav", tones(16000), 16000, ("WAV", "PCM_16")),
                                    ("tone.flac", np.stack([stereo + only, stereo - only], 1), 22050,
                                     ("FLAC", "PCM_16")),
                                    ("tone.ogg", tones(44100), 44100, ("OGG", "VORBIS")),
                                    ("tone.opus", tones(48000), 48000, ("OGG", "OPUS")),
                                    ("tone.mp3", tones(44100), 44100, ("MP3", "MPEG_LAYER_III"))):
        with soundfile.SoundFile(os.path.join(out, name), "w", rate, sound.ndim, kind[1], format=kind[0]) as f:
            f.write(sound)


if __name__ == "__main__":
    main(sys.argv[1])

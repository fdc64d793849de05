"""Decoding: whatever Pillow reads becomes an upright RGB image, or an error that names the file."""

from __future__ import annotations

import io
import re
import struct
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from zoo.data import decoding
from zoo.data.decoding import load_rgb, to_rgb
from zoo.datasets._images import hold_out, save
from zoo.errors import UserError

GRAY, RED = (120, 120, 120), (200, 30, 40)


def near(image, colour, tolerance=3):
    pixels = np.asarray(image, dtype=int)
    assert image.mode == "RGB"
    assert pixels.shape == (6, 8, 3)
    assert np.abs(pixels - colour).max() <= tolerance


@pytest.mark.parametrize(
    ("mode", "ending", "colour", "expected"),
    [
        ("1", "png", 1, (255, 255, 255)),
        ("1", "tif", 0, (0, 0, 0)),
        ("L", "png", 120, GRAY),
        ("L", "jpg", 120, GRAY),
        ("LA", "png", (120, 255), GRAY),
        ("LA", "png", (120, 0), (255, 255, 255)),
        ("RGB", "bmp", RED, RED),
        ("RGB", "webp", RED, RED),
        ("RGBA", "png", (*RED, 255), RED),
        ("RGBA", "png", (0, 0, 0, 0), (255, 255, 255)),
        ("RGBA", "png", (0, 0, 0, 51), (204, 204, 204)),
        ("CMYK", "jpg", (0, 255, 255, 0), (255, 0, 0)),
        ("CMYK", "tif", (0, 255, 255, 0), (255, 0, 0)),
        ("YCbCr", "jpg", (120, 128, 128), GRAY),
        ("LAB", "tif", (255, 128, 128), (255, 255, 255)),
        ("I;16", "png", 120 * 257, GRAY),
        ("I;16", "tif", 120 * 257, GRAY),
        ("I;16", "tif", 120, (0, 0, 0)),
        ("I", "tif", 120 * 257, GRAY),
        ("F", "tif", 120 / 255, GRAY),
        ("F", "tif", 120.0, GRAY),
        ("F", "tif", 120 * 257.0, GRAY),
    ],
)
def test_every_mode_becomes_rgb(tmp_path, mode, ending, colour, expected):
    path = tmp_path / f"x.{ending}"
    options = {"lossless": True} if ending == "webp" else {}
    Image.new(mode, (8, 6), colour).save(path, **options)
    near(load_rgb(path), expected)


@pytest.mark.parametrize("ending", ["gif", "png"])
def test_transparent_palette_entry_is_white(tmp_path, ending):
    image = Image.new("P", (8, 6), 1)
    image.putpalette([10, 20, 30, 200, 30, 40])
    image.paste(0, (0, 0, 4, 6))
    image.save(tmp_path / f"x.{ending}", transparency=0)
    pixels = np.asarray(load_rgb(tmp_path / f"x.{ending}"))
    assert (pixels[:, :4] == 255).all()
    assert (pixels[:, 4:] == RED).all()


@pytest.mark.parametrize(("mode", "key"), [("RGB", RED), ("L", 120)])
def test_transparent_colour_of_png_is_white(tmp_path, mode, key):
    Image.new(mode, (8, 6), key).save(tmp_path / "x.png", transparency=key)
    near(load_rgb(tmp_path / "x.png"), (255, 255, 255))


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"]
)
def test_modes_in_memory(mode):
    assert to_rgb(Image.new(mode, (8, 6))).mode == "RGB"


@pytest.mark.parametrize(("mode", "dtype"), [("I;16", "<u2"), ("I;16B", ">u2"), ("I", "i4")])
def test_deep_gray_is_scaled_not_clipped(mode, dtype):
    ramp = np.linspace(0, 65535, 48).round().astype(dtype).reshape(6, 8)
    image = Image.frombytes(mode, (8, 6), ramp.tobytes())
    expected = (ramp.astype(float) / 257).round()
    assert (np.asarray(to_rgb(image))[..., 0] == expected).all()


def test_values_beyond_16_bits_are_stretched():
    wide = np.array([[-100.0, 0.0, 1e6, np.nan]], dtype=np.float32)
    assert np.asarray(to_rgb(Image.fromarray(wide)))[0, :, 0].tolist() == [0, 0, 255, 0]
    flat = np.full((2, 2), -5, dtype=np.int32)
    assert np.asarray(to_rgb(Image.fromarray(flat))).max() == 0


TURNED = {
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: np.transpose,
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).T,
    8: np.rot90,
}


@pytest.mark.parametrize("orientation", TURNED)
@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tif"])
def test_exif_orientation(tmp_path, orientation, ending):
    bright = np.zeros((16, 32), dtype=bool)
    bright[:8, :16] = True
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"x.{ending}"
    Image.fromarray(bright).convert("RGB").save(path, exif=exif)
    pixels = np.asarray(load_rgb(path).convert("L"))
    expected = TURNED[orientation](bright)
    assert pixels.shape == expected.shape
    assert ((pixels > 127) == expected).all()


@pytest.mark.filterwarnings("ignore:.*Corrupt EXIF")
@pytest.mark.parametrize(
    "exif", [b"Exif\0\0rubbish", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff", b"Exif\0\0"]
)
def test_broken_exif_spoils_no_image(tmp_path, exif):
    Image.new("RGB", (8, 6), RED).save(tmp_path / "x.jpg", exif=exif)
    near(load_rgb(tmp_path / "x.jpg"), RED)


def test_first_frame_of_an_animation(tmp_path):
    frames = [Image.new("RGB", (8, 6), c) for c in (RED, GRAY)]
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    near(load_rgb(tmp_path / "x.gif"), RED)


def test_reads_an_open_file():
    file = io.BytesIO()
    Image.new("L", (8, 6), 120).save(file, "PNG")
    file.seek(0)
    near(load_rgb(file), GRAY)


def png_header(width, height):
    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(bytes(100)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b"")


def noise(kind):
    file = io.BytesIO()
    Image.effect_noise((64, 64), 100).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not an image"),
        (b"hello", "not an image"),
        (noise("JPEG")[:1000], "truncated"),
        (noise("PNG")[:1000], "truncated"),
        (noise("GIF")[:1000], "truncated"),
        (noise("BMP")[:2000], "truncated"),
        (png_header(8, 6)[:20], "cannot be used"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 6\n", "not an image"),
    ],
    ids=["empty", "text", "half JPEG", "half PNG", "half GIF", "half BMP", "PNG header", "EPS"],
)
def test_unusable_file_is_named(tmp_path, content, why):
    path = tmp_path / "some.jpg"
    path.write_bytes(content)
    with pytest.raises(UserError, match=why) as error:
        load_rgb(path)
    assert "some.jpg" in str(error.value)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"gone\.jpg' cannot be used: No such file"):
        load_rgb(tmp_path / "gone.jpg")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [15_000, 60_000])
def test_bomb_is_refused_with_the_way_on(tmp_path, side):
    path = tmp_path / "bomb.png"
    path.write_bytes(png_header(side, side))
    with pytest.raises(UserError, match=r"dataset\.max_pixels=") as error:
        load_rgb(path)
    assert "bomb.png" in str(error.value)
    assert re.search(
        r"it has (too many|225,000,000) pixels, but the limit is 178,9", str(error.value)
    )


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_limit_can_be_lowered_and_raised_and_pillow_keeps_its_own(tmp_path, monkeypatch):
    path = tmp_path / "x.png"
    Image.new("RGB", (8, 6), RED).save(path)
    for limit in (47, 10):
        with pytest.raises(UserError, match=r"the limit is .*max_pixels"):
            load_rgb(path, max_pixels=limit)
    near(load_rgb(path, max_pixels=48), RED)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    near(load_rgb(path, max_pixels=48), RED)
    assert Image.MAX_IMAGE_PIXELS == 10


def test_pillow_keeps_its_limit_with_threads(tmp_path):
    path = tmp_path / "x.png"
    Image.new("RGB", (8, 6), RED).save(path)
    before, start = Image.MAX_IMAGE_PIXELS, threading.Barrier(8)

    def load(limit):
        start.wait()
        for _ in range(20):
            load_rgb(path, limit)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(load, range(1000, 1008)))
    assert before == Image.MAX_IMAGE_PIXELS


def test_extensions():
    known = set(decoding.extensions())
    assert {".jpg", ".jpeg", ".png", ".webp", ".tif", ".bmp", ".gif"} <= known
    assert not {".eps", ".h5", ".pdf", ".txt", ".db", ".mat", ""} & known


def test_hold_out():
    names = [str(i) for i in range(101)]
    half = hold_out(names, 0.5, seed=0)
    assert len(half) == 50
    assert half == hold_out(names[::-1], 0.5, seed=0)
    assert half != hold_out(names, 0.5, seed=1)
    assert hold_out(names, 0.2, seed=0) < half
    assert len(hold_out(names[:100], 0.29, seed=0)) == 29
    # a class more moves no other one across, but for the one that makes up the share
    assert len(half - hold_out([*names, "new"], 0.5, seed=0)) <= 1


def test_save_is_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "x"
    save(path, lambda file: file.write(b"old"))

    def interrupted(file):
        file.write(b"ne")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(path, interrupted)
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_save_without_a_place_warns(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(UserWarning, match="ZOO_CACHE"):
        save(tmp_path / "file" / "x", lambda file: file.write(b""))


def test_gray_whose_range_is_no_float32_is_stretched(tmp_path):
    values = np.full((4, 4), -3e38, np.float32)
    values[2:] = 3e38
    Image.fromarray(values).save(tmp_path / "wide.tif")
    found = np.asarray(load_rgb(tmp_path / "wide.tif"))
    assert found[:2].max() == 0
    assert found[2:].min() == 255

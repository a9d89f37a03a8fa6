"""Compressed files: whole ones are read whole, cut or damaged ones never pass for short ones."""

import gzip

import pytest
import zstandard

from data_pipeline.errors import UserError
from data_pipeline.io.decompress import open_bytes, reading

TEXT = b"".join(b"line %d of a text that compresses well\n" % i for i in range(20_000))


def zstd(data: bytes, window: int = 0) -> bytes:
    if not window:
        return zstandard.ZstdCompressor().compress(data)
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=window, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(
        compression_params=parameters
    ).compressobj()  # size unknown: full window
    return compressor.compress(data) + compressor.flush()


SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
WHOLE = {
    "gzip": ("gzip", gzip.compress(TEXT)),
    "gzip, two members": ("gzip", gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:])),
    "zstd": ("zstd", zstd(TEXT)),
    "zstd, two frames": ("zstd", zstd(TEXT[:1000]) + zstd(TEXT[1000:])),
    "zstd, long window": ("zstd", zstd(TEXT, window=28)),
    "zstd, skippable frame first": ("zstd", SKIPPABLE + zstd(TEXT)),
    "plain": ("", TEXT),
}


def content(path, compression):
    with reading(str(path)), open_bytes(str(path), compression) as stream:
        return b"".join(stream)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_files_are_decompressed(tmp_path, name):
    compression, data = WHOLE[name]
    (tmp_path / "a").write_bytes(data)
    assert content(tmp_path / "a", compression) == TEXT


@pytest.mark.parametrize("name", [n for n in WHOLE if n != "plain"])
@pytest.mark.parametrize("keep", [0, 7, 0.5, -1])
def test_cut_files_are_named(tmp_path, name, keep):
    compression, data = WHOLE[name]
    (tmp_path / "a").write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    with pytest.raises(UserError, match=r"a: the compressed file is cut off"):
        content(tmp_path / "a", compression)


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_damaged_files_are_named(tmp_path, name):
    compression, data = WHOLE[name]
    middle = len(data) // 2
    (tmp_path / "a").write_bytes(data[:middle] + bytes(20) + data[middle + 20 :])
    with pytest.raises(UserError, match=r"a: the compressed file is (damaged|cut off)"):
        content(tmp_path / "a", compression)


@pytest.mark.parametrize(("said", "held"), [("", "gzip"), ("", "zstd"), ("gzip", "zstd"), ("zstd", "plain")])
def test_a_suffix_that_does_not_fit_the_content_is_named(tmp_path, said, held):
    (tmp_path / "a").write_bytes(WHOLE[held][1])
    with pytest.raises(UserError, match="give it the right suffix"):
        content(tmp_path / "a", said)

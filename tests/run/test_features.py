from __future__ import annotations

import io

import numpy as np
import torch

from dsv_plugins.run.artifacts import load_features, save_features


def test_features_written_in_parts_have_the_bytes_of_the_whole(tmp_path):
    whole = {"places": torch.randn(11, 4, 5, 3).half(), "pooled": torch.randn(11, 7)}
    cuts = ((0, 4), (4, 8), (8, 11))
    save_features(tmp_path, ({name: each[a:b] for name, each in whole.items()} for a, b in cuts), 11)
    for name, expected in whole.items():
        saved = io.BytesIO()
        np.save(saved, expected.numpy())
        assert (tmp_path / f"{name}.npy").read_bytes() == saved.getvalue()
        assert load_features(tmp_path)[name].equal(expected)


def test_features_whose_memory_is_in_another_order_are_saved_row_by_row(tmp_path):
    turned = torch.randn(6, 4, 3, 2).contiguous(memory_format=torch.channels_last)
    save_features(tmp_path, [{"maps": turned}], 6)
    assert load_features(tmp_path)["maps"].equal(turned)

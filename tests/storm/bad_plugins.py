"""Plugins that misbehave, each with the arguments of a selection that uses it."""

from __future__ import annotations

from hostile import AUGMENTATION, DETECTOR, EXECUTOR, OBSERVER, SEARCH, SELECTOR

AUGMENTED, DETECTED, SELECTED, SEARCHED, EXECUTED, OBSERVED, BESIDE = (
    ("--augmentation", "hostile-augmentation"),
    ("--detector", "hostile-detector"),
    ("--selector", "hostile-selector"),
    ("--search", "hostile-search"),
    ("--executor", "hostile-executor"),
    ("--observers", "hostile-observer"),
    ("--selector", "separability,hostile-selector"),
)
WORKERS = ("--executor", "processes")
LIMIT = ("--timeout", 6)

GENERAL = [
    "sys.exit(3)",
    "sys.exit()",
    "raise ValueError('bad\\nlines\\x1b[31m')",
    "raise Exception",
    "raise MemoryError('none left')",
    "return None",
    "return object()",
    "print('{}'); os.write(1, b'noise'); return []",
]
"""What any plugin may do."""


def _cases():
    for body in GENERAL:
        for kind, template, arguments in (
            ("augmentation", AUGMENTATION, AUGMENTED),
            ("selector", SELECTOR, BESIDE),
            ("search", SEARCH, SEARCHED),
            ("executor", EXECUTOR, EXECUTED),
        ):
            yield f"{kind}: {body}", template.format(name="Hostile", body=body), arguments
    for body in ("sys.exit(3)", "raise ValueError('bad')", "time.sleep(1); return 5"):
        yield f"observer: {body}", OBSERVER.format(name="Hostile", body=body), OBSERVED
    for body in (
        "return images * float('nan')",
        "return images * 255",
        "return images[:, :1]",
        "return images.double()",
        "return images.zero_()",
        "raise KeyboardInterrupt",
        "os.kill(os.getpid(), signal.SIGSEGV)",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os._exit(0)",
        "os.close(1); os.close(0); return images",
        "time.sleep(600)",
    ):
        yield f"augmentation: {body}", AUGMENTATION.format(name="Hostile", body=body), AUGMENTED + WORKERS + LIMIT
    for body in (
        "def encode(self, images): return super().encode(images) * float('nan')",
        "def encode(self, images): return super().encode(images)[:1]",
        "def score(self, images): return super().score(images) * float('inf')",
        "def score(self, images): return super().score(images).numpy()",
        "def heatmap(self, images): return images",
        "def save(self, folder): sys.exit(4)",
        "def save(self, folder): pass",
        "def fit(self, images, augmentation, **settings): images.zero_(); self.mean = torch.tensor(0.0)",
        "def __init__(self): sys.exit(5)",
        "def warm_up(self): os._exit(7)",
        "def warm_up(self): raise KeyboardInterrupt",
        "def __reduce__(self): raise ValueError('no pickle')",
    ):
        yield f"detector: {body}", DETECTOR.format(name="Hostile", body=body), DETECTED + WORKERS + LIMIT
    for body in (
        "return [float('nan')] * len(evaluations)",
        "return [0.0]",
        "return ['x'] * len(evaluations)",
        "[e.embeddings.test.zero_() for e in evaluations]; return [0.0] * len(evaluations)",
        "[e.candidate.params.clear() for e in evaluations]; return [0.0] * len(evaluations)",
    ):
        yield f"selector: {body}", SELECTOR.format(name="Hostile", body=body), BESIDE
        yield f"first selector: {body}", SELECTOR.format(name="Hostile", body=body), SELECTED
    for code in ("sys.exit(6)", "raise ImportError('gone')", "1 / 0", "@hookimpl\ndef selector():\n    sys.exit(8)"):
        yield f"package: {code}", code, ()


BAD_PLUGINS = list(_cases())

"""Where the error of the means in end.safetensors is. From the root of the repository, on a CPU:

    python experiments/two-digits-5x128/where.py > experiments/two-digits-5x128/where.json

200 test sequences of seed 2020, 5 minutes of one core; lists were joined to lines afterwards. For every sequence and frame: the nats of
the network, and those of a predictor that knows both digits' shapes and the pixel positions of the
ten frames seen, and nothing else (drawn starts and directions that give the same ten positions):
the difference is what a better network could gain. It is too hopeful where digits overlap all the
time, since their shapes cannot be known then.
"""
import json

import numpy as np
import torch
import torch.nn.functional as F

from spgru.data import MovingMNIST
from spgru.data.mnist import load_mnist
from spgru.data.randomness import uniforms
from spgru.data.trajectories import bouncing_corners
from spgru.nn.contexts import at_mean
from spgru.training import load_config
from spgru.training.export import load_weights
from spgru.training.model import make_model

SEED, BATCHES, SIZE = 2020, 20, 10
HERE = "experiments/two-digits-5x128/"
torch.set_num_threads(1)
rng = np.random.default_rng(0)

config = load_config(HERE + "spreads.yaml")
model = make_model(config.model).eval()
load_weights(model, config.initial)
data = MovingMNIST(SIZE, split="test", seed=SEED)
with torch.no_grad(), at_mean(model):
    parts = [(f := data.batch(k), model.predict_logits(f[:10]).mean) for k in range(BATCHES)]
frames, logits = (torch.cat(part, 1).double() for part in zip(*parts))
corners = np.concatenate([data.layout(k).corners for k in range(BATCHES)], 1)
digits = np.concatenate([data.layout(k).digits for k in range(BATCHES)])
count = frames.shape[1]
target, pixels = frames[10:], logits.sigmoid()
nats = (F.softplus(logits) - target * logits).sum((-2, -1)).numpy()
error = (pixels - target).square().sum((-2, -1)).numpy()

images = load_mnist("test").images.astype(np.float64) / 255
drawn = uniforms(SEED, "test", 0, count * 6).reshape(count, 2, 3)


def place(image, corner):
    canvas = np.zeros((64, 64))
    canvas[corner[0] : corner[0] + 28, corner[1] : corner[1] + 28] = image
    return canvas


def continuations(start, angle, seen, wanted=400):
    """Positions after those seen, of drawn paths that agree with them. (10, paths, 2)"""
    kept = []
    for _ in range(40):
        starts = start + rng.uniform(-1.6 / 36, 1.6 / 36, (40_000, 2))
        angles = angle + rng.uniform(-0.25, 0.25, 40_000)
        inside = ((starts >= 0) & (starts < 1)).all(1)
        heading = np.stack((np.sin(angles), np.cos(angles)), -1)[inside]
        path = bouncing_corners(starts[inside], 0.1 * heading, 20)
        kept.append(path[10:, (path[:10] == seen[:, None]).all((0, 2))])
        if sum(part.shape[1] for part in kept) > wanted:
            break
    return np.concatenate(kept, 1)


best = np.zeros((10, count))
best_error, best_missed, overlap = np.zeros((10, count)), np.zeros((10, count)), np.zeros((20, count))
fitted, moved = np.zeros((10, count)), np.zeros((10, count))
shifts = [(y, x) for y in range(-2, 3) for x in range(-2, 3)]
for n in range(count):
    paths = [continuations(drawn[n, k, :2], 2 * np.pi * drawn[n, k, 2], corners[:10, n, k]) for k in (0, 1)]
    shown = [images[digits[n, k]] for k in (0, 1)]
    for t in range(20):
        one, two = (place(shown[k], corners[t, n, k]) for k in (0, 1))
        overlap[t, n] = np.minimum(one, two).sum()
    for t in range(10):
        options = []
        for k in (0, 1):
            places, times = np.unique(paths[k][t], axis=0, return_counts=True)
            weight = times / times.sum()
            right = (places == corners[10 + t, n, k]).all(1)
            best_missed[t, n] += (1 - weight[right].sum()) / 2
            options.append([(place(shown[k], where), w) for where, w in zip(places, weight)])
        mean = sum(v * w * np.maximum(a, b) for a, v in options[0] for b, w in options[1])
        truth, p = target[t, n].numpy(), np.clip(mean, 1e-4, 1 - 1e-4)
        best[t, n] = -(truth * np.log(p) + (1 - truth) * np.log1p(-p)).sum()
        best_error[t, n] = ((mean - truth) ** 2).sum()
        # Each true digit moved by up to 2 pixels towards what was predicted.
        predicted = pixels[t, n].numpy()
        one, two = (
            np.stack([np.roll(place(shown[k], corners[10 + t, n, k]), s, (0, 1)) for s in shifts])
            for k in (0, 1)
        )
        all_errors = ((predicted - np.maximum(one[:, None], two[None])) ** 2).sum((-2, -1))
        i, j = np.unravel_index(all_errors.argmin(), all_errors.shape)
        fitted[t, n] = all_errors[i, j]
        moved[t, n] = ((shifts[i] != (0, 0)) + (shifts[j] != (0, 0))) / 2

excess, covered = nats - best, overlap > 1
touching = ((corners == 0) | (corners == 36)).any((-1, -2))
seen_covered, late = covered[:10].sum(0), covered[7:10].any(0)
groups = {
    "all": np.ones(count, bool),
    "no overlap seen": seen_covered == 0,
    "overlap in 1 to 3 seen frames": (seen_covered > 0) & (seen_covered <= 3),
    "overlap in 4 to 6": (seen_covered > 3) & (seen_covered <= 6),
    "overlap in 7 to 10": seen_covered > 6,
    "overlap in the last 3 seen": late,
    "an edge touched in the last 2 seen": touching[8:10].any(0),
    "no edge touched in the last 2 seen": ~touching[8:10].any(0),
}


def rounded(values, digits=1):
    return [round(float(v), digits) for v in values]


by_frame = {
    "nats": nats, "nats of the best": best, "squared error": error, "squared error of the best": best_error,
    "squared error after moving digits by up to 2 pixels": fitted,
}
with torch.no_grad(), at_mean(model):
    longer, forced = MovingMNIST(SIZE, split="test", seed=SEED, frames=20), []
    for k in range(4):
        f = longer.batch(k)
        reading = model.future.read(f)[0].mean[:-1]
        forced.append((F.softplus(reading) - f[1:] * reading).sum((-2, -1)))
print(json.dumps({
    "sequences": count,
    "standard error of nats": round(float(nats.mean(0).std(ddof=1) / count**0.5), 1),
    "by predicted frame": {name: rounded(values.mean(1)) for name, values in by_frame.items()}
    | {"share of digits misplaced": rounded(moved.mean(1), 2), "of the best": rounded(best_missed.mean(1), 2)},
    "groups": {
        name: {
            "sequences": int(group.sum()), "nats": round(float(nats[:, group].mean()), 1),
            "best": round(float(best[:, group].mean()), 1), "excess": round(float(excess[:, group].mean()), 1),
            "standard error": round(float(excess[:, group].mean(0).std(ddof=1) / group.sum() ** 0.5), 1),
            "excess by frame": rounded(excess[:, group].mean(1)),
        }
        for name, group in groups.items()
    },
    "every true frame read, nats of frames 2 to 20 (40 sequences)": rounded(torch.cat(forced, 1).mean(1)),
}, indent=1))

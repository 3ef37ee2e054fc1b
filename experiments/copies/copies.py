"""Variants of copies, as tried at commit fd31f71: see README.md."""

import sys, argparse, time, torch
from functools import partial

sys.path.insert(0, "accuracy")
import spgru
from spgru.calibration import problem as P, fit as F
from spgru.calibration.perturb import Changes, changed_copies
from spgru.calibration.forms import search
from spgru.calibration.state import at_rest, uncalibrated
from spgru.data import MovingMNIST
from spgru.training import load_model
from spgru.studies.statistics import auroc
from spgru.studies.sequences import DEVIATIONS, FAMILIAR
from calibration import _truth, pixel_masks, spreads
from detection import _drawn

ap = argparse.ArgumentParser()
ap.add_argument("run")
ap.add_argument("--device", default="cuda")
ap.add_argument("--draws", type=int, default=300)
ap.add_argument("--n", type=int, default=20)
ap.add_argument("--many", type=int, default=200)
ap.add_argument("--test-seed", type=int, default=771)
ap.add_argument("--fit-draws", type=int, default=200)
ap.add_argument("--steps", type=int, default=300)
ap.add_argument("--variants", default="PACE")
a = ap.parse_args()
dev = a.device
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
N = (1.0, 2.0)
S = (-.1, -.2, -.3)
PACE = {  # changes, fit sequences, stiffness
 "noise": (Changes(N), 32, .01), "hold123": (Changes(N, (.1,.2,.3)), 32, .01), "hold1": (Changes(N, (.1,)), 32, .01),
 "hold12": (Changes(N, (.1,.2)), 32, .01), "skip123": (Changes(N, S), 32, .01),
 "both12": (Changes(N, (.1,-.1,.2,-.2)), 32, .01), "noise64": (Changes(N), 64, .01), "hold123_64": (Changes(N, (.1,.2,.3)), 64, .01),
 "noise_s.001": (Changes(N), 32, .001), "noise_s.1": (Changes(N), 32, .1), "onlyhold": (Changes((), (.1,.2,.3)), 32, .01),
 "quiet": (Changes((.3, 1.0, 2.0)), 32, .01), "oracle": (Changes(N, (.1,)), 32, .01),
}
STIFFNESS = {"skip123": (Changes(N,S),32,.01), "skip_s.03": (Changes(N,S),32,.03), "skip_s.1": (Changes(N,S),32,.1), "skip_s.3": (Changes(N,S),32,.3), "skip_s1": (Changes(N,S),32,1.),
 "skip64_s.1": (Changes(N,S),64,.1), "skip12_s.1": (Changes(N,S[:2]),32,.1), "skip1_s.1": (Changes(N,S[:1]),32,.1), "skip1234_s.1": (Changes(N,(-.1,-.2,-.3,-.4)),32,.1), "skip_n1_s.1": (Changes((1.,),S),32,.1),
}
devs = [d for d in DEVIATIONS if d == FAMILIAR or not d.is_familiar]
SP = [d.value for d in devs if d.kind == "speed"]


def frames(count, seed, split="test", **kw):
    return MovingMNIST.controlled(count, split=split, seed=seed, device=dev, **kw).batch(0)[:10]


name = lambda d: "familiar" if d.is_familiar else d.label
sets = {name(d): frames(a.n, a.test_seed, **{d.kind: d.value}) for d in devs}
big = {
    k: frames(a.many, a.test_seed, **{d.kind: d.value})
    for d in devs
    if (k := name(d)) in ("familiar", "angle 25°", "angle 30°", "speed 5.5 %", "speed 6 %")
}
ref = frames(a.many, 772)


def summed(p):
    return p.var.double().sum((0, 2, 3)).cpu(), p.mean.double().sum((0, 2, 3)).cpu()


def scores(fn):
    v, b = summed(fn(ref))
    l = b.log() - b.log().mean()
    pw = (l * v.log()).sum() / l.square().sum()
    out = {}
    for k, x in big.items():
        v, b = summed(fn(x))
        out[k] = (v, v / b**pw)
    return out


def report(fn):
    e = scores(fn)
    return " ".join(
        f"{k.split()[1]}:" + "/".join(f"{auroc(e['familiar'][j], e[k][j]):.3f}" for j in (0, 1))
        for k in list(e)[1:]
    )


def oracle(inputs, like, dim, changes, seed):
    (out,), _ = changed_copies(inputs, like, dim, changes, seed)
    out = out.clone()
    for j in range(3):
        y = frames(out.shape[1], 555 + seed, "train", speed=SP[j])
        for i in range(1, out.shape[1], 2):
            if (i // 2) % 3 == j:
                out[:, i] = y[:, i]
    return (out,), True


run = a.run
t0 = time.monotonic()
m = load_model(run).model.to(dev)
sizes = [x.shape[1] for x in sets.values()]
everything = torch.cat(list(sets.values()), 1)
with torch.no_grad():
    true, _ = _truth(m, everything, a.draws, 1000)
    kinds = dict(zip(sets, true.split(sizes, 1)))
    masks = {k: pixel_masks(t) for k, t in kinds.items()}
    print(run, "drawn", report(partial(_drawn, m, 50)), "| closed", report(m.predict), flush=True)
VARIANTS = {"PACE": PACE, "STIFFNESS": STIFFNESS}[a.variants]
for v in VARIANTS:
    changes, count, F._STIFFNESS = VARIANTS[v]
    P.changed_copies = oracle if v == "oracle" else changed_copies
    fit = frames(count, 2024, "train")
    with at_rest(m, 0) as scales, uncalibrated(m):
        pr = P.pose(m, fit, None, 0.25, None, None, 0, scales, changes)
        found = search(pr, "auto", a.fit_draws, a.steps, 0.03, 0, progress=False)
    for form in dict.fromkeys((found.best, "gains, scale per step", "gains, scale by level")):
        if form not in found.forms:
            continue
        found.forms[form].apply(m, pr)
        with torch.no_grad():
            parts = dict(zip(sets, m.predict(everything).var.double().split(sizes, 1)))
            tot = [(q.sum() / kinds[k].sum()).item() for k, q in parts.items()]
            fr = torch.stack([q.sum((1, 2, 3)) / kinds[k].sum((1, 2, 3)) for k, q in parts.items()])
            sp = max(
                spreads(kinds[k], q, masks[k])["99 %"] for k, q in parts.items() if "noise" not in k
            )
            print(
                f"{run[-1]} {v:11s}{'*' if form == found.best else ' '} {form:22s}",
                " ".join(f"{t:.2f}" for t in tot),
                f"frames {fr.min():.2f}-{fr.max():.2f} spread {sp:.2f}",
                report(m.predict),
                flush=True,
            )
    spgru.uncalibrate(m)
print(run, round(time.monotonic() - t0), "s")

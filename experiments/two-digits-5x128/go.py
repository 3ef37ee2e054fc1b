"""python go.py race|train [...]: see the functions at the end."""
import argparse, json, math, os, sys, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch
from safetensors.torch import load_file, save_file
import fast
from spgru.data import MovingMNIST, MovingMNISTTest
from spgru.data.render import unit_interval
from spgru.metrics import cross_entropy_per_frame
from spgru.models import ModelConfig, build
from spgru.nn.weight import at_mean
from spgru.training.step import GraphStep, MeanLossModule, multiplying
from spgru.training.optimizer import make_optimizer
from spgru.training.config import OptimizerConfig

START = time.monotonic()
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
OUT = os.environ.get("OUT", "outputs/two-digits-5x128")
os.makedirs(OUT, exist_ok=True)
HERE = os.path.dirname(os.path.abspath(__file__))
SHIPPED = os.path.join(HERE, "src/spgru/weights/two-digits-conv.safetensors")
LOG = open(os.path.join(OUT, "log.jsonl"), "a")
torch.backends.cudnn.benchmark = True
torch.backends.cuda.matmul.allow_tf32 = True


def say(**row):
    row = {"at": round(time.monotonic() - START, 1), **row}
    LOG.write(json.dumps(row) + "\n"); LOG.flush()
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}), flush=True)


def sync():
    if CUDA: torch.cuda.synchronize()


def shape(state):
    layers = 1 + max(int(n.split(".")[3]) for n in state if ".cells." in n)
    return layers, state["future.readout.weight.mean"].shape[1]


def library_model(state):
    layers, channels = shape(state)
    model = build(ModelConfig(kind="next_frame", architecture="convolutional", hidden_size=channels, num_layers=layers, kernel_size=3, initial_logit=-3.0), device=DEVICE)
    model.load_state_dict({n: v.to(DEVICE, torch.float32) for n, v in state.items() if n.endswith(".mean")}, strict=False)
    return model.eval()


@torch.no_grad()
def evaluate(state, batches):
    """Of the library's own network at its means, float32: nats and squared error, by frame."""
    model = library_model(state)
    nats, error = [], []
    with multiplying("float32", False), at_mean(model):
        for frames in batches:
            seen, after = frames.chunk(2)
            pixels = model.predict(seen)
            nats.append(cross_entropy_per_frame(pixels, after).double())
            error.append((pixels.mean - after).double().square().sum((-2, -1)))
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    nats, error = torch.cat(nats, 1).mean(1), torch.cat(error, 1).mean(1)
    return {"nats": nats.mean().item(), "mse": error.mean().item(), "nats_by_frame": [round(v, 2) for v in nats.tolist()], "mse_by_frame": [round(v, 2) for v in error.tolist()]}


def validation(count):
    size = min(128, count)
    data = MovingMNIST(size, split="test", seed=2021, device=DEVICE)
    return [data.batch(k) for k in range(count // size)]


def test_set(count):
    test, size = MovingMNISTTest(), min(250, count)
    for start in range(0, count, size):
        yield unit_interval(test.sequences(start, start + size, DEVICE), torch.float32)


def save(state, name):
    save_file({n: v.half().cpu().contiguous() for n, v in state.items()}, os.path.join(OUT, name))


def make(state, batch, seen_weight):
    net = fast.Net(*shape(state), DEVICE, torch.bfloat16 if CUDA else torch.float32)
    net.load(state)
    return net, fast.Trainer(net, batch, seen_weight)


def time_step(step, data, count=20):
    for k in range(3): step(data.batch(k), 0.0)
    frames = data.batch(0)
    sync(); start = time.perf_counter()
    for _ in range(count): step(frames, 0.0)
    sync()
    return (time.perf_counter() - start) / count


def rate_at(step, steps, peak, warm, decay):
    """A rise, a plain, and a straight fall to 0 over the last `decay` of the steps."""
    left = (steps - step) / max(decay * steps, 1)
    return peak * min(1.0, (step + 1) / warm, left)


def train(name, state, seconds, peak, *, batch=64, seen_weight=1.0, warm=150, decay=0.6, seed=101, position=0, every=10.0, val=(), on_fall=None, steps=None):
    net, trainer = make(state, batch, seen_weight)
    data = MovingMNIST(batch, seed=seed, device=DEVICE)
    data.position = position
    begin = time.monotonic()
    per_step = time_step(trainer.step, data, 20 if CUDA else 1)
    net.load(state); trainer.momentum.zero_(); trainer.count.zero_()
    for pair in trainer.adam:
        for t in pair: t.zero_()
    setup = time.monotonic() - begin
    steps = steps or max(4, int(seconds / per_step))
    say(run=name, layers=net.layers, channels=net.channels, weights=sum(p.numel() for p in net.parameters()), batch=batch, seen_weight=seen_weight, peak=peak, steps=steps, ms=per_step * 1e3, sequences_per_second=batch / per_step, setup=setup)
    total, count, last, fell, begin = torch.zeros(3, device=DEVICE), 0, time.monotonic(), False, time.monotonic()
    step = 0
    average = [p.clone() for p in net.parameters()]  # of the last 500 steps or so

    def averaged():
        other = fast.Net(net.layers, net.channels, DEVICE)
        for a, b in zip(other.parameters(), average): a.copy_(b)
        return other.state()

    while step < steps:
        rate = rate_at(step, steps, peak, warm, decay)
        if not fell and step >= (1 - decay) * steps:
            fell = True
            if on_fall: on_fall(net.state(), averaged(), step)
        total += trainer.step(next(data), rate)
        step += 1; count += 1
        if step % 10 == 0: torch._foreach_lerp_(average, net.parameters(), 0.02)
        if step % 100 == 0:
            sync()
            now = time.monotonic()
            # Slower than it was measured: shorten the run, so that the fall ends in time.
            if step % 500 == 0:
                room = int(seconds - (now - begin)) / ((now - begin) / step)
                if not fell and step + room < 0.97 * steps: steps = int(step + room); say(run=name, shortened=steps)
            if now - last >= every or step >= steps:
                seen, future, norm = (total / count).tolist()
                say(run=name, step=step, rate=rate, seen=seen, future=future, norm=norm, sequences_per_second=count * batch / (now - last))
                total.zero_(); count, last = 0, now
                if not math.isfinite(future): break
    sync()
    return net.state(), averaged(), {"steps": step, "seconds": time.monotonic() - begin, "position": data.position}


def compare(state, batch):
    """Loss and gradient of the step here and of the library's, both in bfloat16."""
    model = library_model(state).train()
    frames = MovingMNIST(batch, seed=7, device=DEVICE).batch(0)
    with torch.autocast(DEVICE.type, torch.bfloat16, CUDA):
        loss = MeanLossModule(model)(frames)
    loss.total.backward()
    net, trainer = make(state, batch, 1.0)
    trainer.frames.copy_(frames)
    with torch.no_grad(): trainer.gradients()
    mine = fast.Net(*shape(state), DEVICE)
    for a, b in zip(mine.parameters(), trainer.grads): a.copy_(b)
    got = mine.state()
    cos = {n: torch.cosine_similarity(got[n].flatten(), p.grad.float().flatten(), 0).item() for n, p in model.named_parameters() if n.endswith(".mean")}
    say(check="gradient", library=loss.total.item(), here=((9 * trainer.result[0] + 10 * trainer.result[1]) / 19).item(), least_cosine=min(cos.values()))
    return min(cos.values())


def library_step(state, batch):
    model = library_model(state).train()
    optimizer = make_optimizer(model, OptimizerConfig(name="muon", lr=2e-3, weight_decay=0.1, clip=50.0), DEVICE)
    return GraphStep(MeanLossModule(model), optimizer, "bfloat16", 50.0)


def profile(state, batch):
    net, trainer = make(state, batch, 1.0)
    trainer.frames.copy_(MovingMNIST(batch, seed=7, device=DEVICE).batch(0))
    with torch.no_grad():
        trainer.run(); sync()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            trainer.run(); sync()
    with open(os.path.join(OUT, "profile.txt"), "a") as file:
        file.write(found.key_averages().table(sort_by="cuda_time_total", row_limit=40, max_name_column_width=90) + "\n")


def candidates():
    old = {n: v.float() for n, v in load_file(SHIPPED).items() if n.endswith(".mean")}
    return {
        "3x128": old,
        "5x128": fast.grow_layers(old, [0, None, 1, None, 2], 128),
        "4x128": fast.grow_layers(old, [0, 1, None, 2], 128),
        "3x168": fast.grow_channels(old, 3, 128, 168),
        "4x144": fast.grow_channels(fast.grow_layers(old, [0, 1, None, 2], 128), 4, 128, 144),
    }


def race(args):
    nets = candidates()
    val = validation(args.val)
    data = MovingMNIST(64, seed=5, device=DEVICE)
    cos = compare(nets["3x128"], 64 if CUDA else 2)
    if CUDA:
        assert cos > 0.98, cos
        profile(nets["3x128"], 64)
        say(library_ms=time_step(library_step(nets["3x128"], 64), data) * 1e3, batch=64)
        best = None
        for flip in (False, True):
            fast.FLIP = flip
            ms = time_step(make(nets["3x128"], 64, 1.0)[1].step, data) * 1e3
            say(here_ms=ms, flip=flip, batch=64)
            if best is None or ms < best[0]: best = ms, flip
        fast.FLIP = best[1]
        profile(nets["3x128"], 64)
        say(here_ms=time_step(make(nets["3x128"], 128, 1.0)[1].step, MovingMNIST(128, seed=5, device=DEVICE)) * 1e3, batch=128)
        for name in ("4x128", "4x144"):
            say(net=name, here_ms=time_step(make(nets[name], 64, 1.0)[1].step, data) * 1e3, batch=64)
    for name in nets:
        say(start=name, **evaluate(nets[name], val))
    table = []
    for name, seconds, peak, weight in json.loads(args.runs):
        if time.monotonic() - START + seconds + 12 > args.limit:
            say(skipped=name); continue
        title = f"{name} rate {peak:g} seen {weight:g}"
        state, _, facts = train(title, nets[name], seconds, peak, seen_weight=weight, batch=args.batch)
        score = evaluate(state, val)
        say(finished=title, **facts, **score)
        table.append((title, facts["steps"], facts["seconds"], score["nats"], score["mse"]))
        save(state, "race-" + title.replace(" ", "-") + ".safetensors") if shape(state) != (3, 128) else None
    for row in table: print("%-32s %6d steps %5.1f s  nats %.2f  mse %.2f" % row)


def long(args):
    state = {n: v.float() for n, v in load_file(args.start).items()}
    fast.FLIP = args.flip
    val = validation(args.val)
    say(start=args.start, **evaluate(state, val))

    def before(now, average, step):
        save(now, args.name + "-before-decay.safetensors")
        save(average, args.name + "-before-decay-averaged.safetensors")
        say(before_decay=step, **evaluate(now, val))
        say(before_decay_averaged=step, **evaluate(average, val))

    state, average, facts = train(args.name, state, args.seconds, args.peak, batch=args.batch, seen_weight=args.seen, warm=300, decay=args.decay, seed=args.seed, on_fall=before)
    save(state, args.name + "-end.safetensors")
    rounded = {n: v.half().float() for n, v in state.items()}
    say(finished=args.name, **facts, **evaluate(rounded, val))
    say(averaged_at_end=args.name, **evaluate(average, val))
    say(test=args.name, sequences=args.test, **evaluate(rounded, test_set(args.test)))


parser = argparse.ArgumentParser()
parser.add_argument("mode", choices=["race", "train"])
parser.add_argument("--runs", default="[]")
parser.add_argument("--limit", type=float, default=300)
parser.add_argument("--val", type=int, default=512)
parser.add_argument("--test", type=int, default=4000)
parser.add_argument("--start")
parser.add_argument("--name", default="grown")
parser.add_argument("--flip", action="store_true")
parser.add_argument("--seconds", type=float, default=400)
parser.add_argument("--peak", type=float, default=5e-4)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--seen", type=float, default=0.2)
parser.add_argument("--decay", type=float, default=0.25)
parser.add_argument("--seed", type=int, default=202)
if __name__ == "__main__":
    args = parser.parse_args()
    {"race": race, "train": long}[args.mode](args)
    say(done=True)

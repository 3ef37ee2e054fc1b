"""The plain (means-only) convolutional GRU that continues its own frames, with a step by hand.

Same function and same gradient as `MeanLossModule(NextFrame)`; images stay (batch, row, column,
channel), the gradients of the weights wait for the end (one convolution over all steps), Muon runs
on all filters at once, and everything is one CUDA graph.
"""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

from spgru.training.muon import orthogonal

SEEN, STEPS, PATCH = 10, 19, 16  # frames seen, inputs in all, pixels of a patch

if triton is not None:

    @triton.jit
    def _gates(x, p, bi, bh, row, col, mask, cmask, size: tl.constexpr):
        at = row * (3 * size) + col
        xr = tl.load(x + at, mask, 0.0).to(tl.float32) + tl.load(bi + col, cmask, 0.0)
        xz = tl.load(x + at + size, mask, 0.0).to(tl.float32) + tl.load(bi + col + size, cmask, 0.0)
        xc = tl.load(x + at + 2 * size, mask, 0.0).to(tl.float32) + tl.load(bi + col + 2 * size, cmask, 0.0)
        pr = tl.load(p + at, mask, 0.0).to(tl.float32) + tl.load(bh + col, cmask, 0.0)
        pz = tl.load(p + at + size, mask, 0.0).to(tl.float32) + tl.load(bh + col + size, cmask, 0.0)
        pc = tl.load(p + at + 2 * size, mask, 0.0).to(tl.float32) + tl.load(bh + col + 2 * size, cmask, 0.0)
        r, z = tl.sigmoid(xr + pr), tl.sigmoid(xz + pz)
        c = 2 * tl.sigmoid(2 * (xc + r * pc)) - 1
        return r, z, c, pc

    @triton.jit
    def _forward_kernel(x, p, bi, bh, h, new, low, rows, size: tl.constexpr, width: tl.constexpr, block: tl.constexpr):
        row = (tl.program_id(0) * block + tl.arange(0, block))[:, None]
        col = tl.arange(0, width)[None, :]
        cmask = col < size
        mask = (row < rows) & cmask
        r, z, c, pc = _gates(x, p, bi, bh, row, col, mask, cmask, size)
        at = row * size + col
        value = c + z * (tl.load(h + at, mask, 0.0) - c)
        tl.store(new + at, value, mask)
        tl.store(low + at, value.to(low.dtype.element_ty), mask)

    @triton.jit
    def _backward_kernel(x, p, bi, bh, h, out, by_product, x_grad, p_grad, h_grad, rows, size: tl.constexpr, width: tl.constexpr, block: tl.constexpr):
        row = (tl.program_id(0) * block + tl.arange(0, block))[:, None]
        col = tl.arange(0, width)[None, :]
        cmask = col < size
        mask = (row < rows) & cmask
        r, z, c, pc = _gates(x, p, bi, bh, row, col, mask, cmask, size)
        at = row * size + col
        g = tl.load(out + at, mask, 0.0).to(tl.float32) + tl.load(h_grad + at, mask, 0.0)
        g += tl.load(by_product + at, mask, 0.0).to(tl.float32)
        by_z = g * (tl.load(h + at, mask, 0.0) - c) * z * (1 - z)
        by_c = g * (1 - z) * (1 - c * c)
        by_r = by_c * pc * r * (1 - r)
        to = row * (3 * size) + col
        kind = x_grad.dtype.element_ty
        tl.store(x_grad + to, by_r.to(kind), mask)
        tl.store(x_grad + to + size, by_z.to(kind), mask)
        tl.store(x_grad + to + 2 * size, by_c.to(kind), mask)
        tl.store(p_grad + to, by_r.to(kind), mask)
        tl.store(p_grad + to + size, by_z.to(kind), mask)
        tl.store(p_grad + to + 2 * size, (by_c * r).to(kind), mask)
        tl.store(h_grad + at, g * z, mask)


def _torch_gates(x, p, bi, bh):
    xr, xz, xc = (x.float() + bi).chunk(3, -1)
    pr, pz, pc = (p.float() + bh).chunk(3, -1)
    r, z = torch.sigmoid(xr + pr), torch.sigmoid(xz + pz)
    return r, z, torch.tanh(xc + r * pc), pc


USE_TRITON = torch.cuda.is_available()
BLOCK = 8


def gru_forward(x, p, bi, bh, h, new, low):
    if USE_TRITON:
        size = h.shape[-1]
        rows = h.numel() // size
        _forward_kernel[(triton.cdiv(rows, BLOCK),)](x, p, bi, bh, h, new, low, rows, size, triton.next_power_of_2(size), BLOCK)
        return
    _, z, c, _ = _torch_gates(x, p, bi, bh)
    new.copy_(c + z * (h - c))
    low.copy_(new)


def gru_backward(x, p, bi, bh, h, out, by_product, x_grad, p_grad, h_grad):
    if USE_TRITON:
        size = h.shape[-1]
        rows = h.numel() // size
        _backward_kernel[(triton.cdiv(rows, BLOCK),)](x, p, bi, bh, h, out, by_product, x_grad, p_grad, h_grad, rows, size, triton.next_power_of_2(size), BLOCK)
        return
    r, z, c, pc = _torch_gates(x, p, bi, bh)
    g = out.float() + h_grad + by_product.float()
    by_z, by_c = g * (h - c) * z * (1 - z), g * (1 - z) * (1 - c * c)
    by_r = by_c * pc * r * (1 - r)
    x_grad.copy_(torch.cat((by_r, by_z, by_c), -1))
    p_grad.copy_(torch.cat((by_r, by_z, by_c * r), -1))
    h_grad.copy_(g * z)


def _images(x: Tensor) -> Tensor:
    return x.reshape(-1, *x.shape[-3:]).permute(0, 3, 1, 2)


def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """(*, 16, 16, I) -> (*, 16, 16, O)"""
    y = F.conv2d(_images(x), weight, padding=1).permute(0, 2, 3, 1)
    return y.reshape(*x.shape[:-1], y.shape[-1]).contiguous()


def _adjoint(grad: Tensor, x: Tensor, weight: Tensor, which: int) -> Tensor:
    return torch.ops.aten.convolution_backward(
        _images(grad), _images(x), weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
        [which == 0, which == 1, False],
    )[which]


FLIP = False  # the adjoint for the input as a convolution with turned filters


def by_input(grad: Tensor, x: Tensor, weight: Tensor, turned: Tensor | None) -> Tensor:
    if turned is not None:
        return convolve(grad, turned)
    y = _adjoint(grad, x, weight, 0).permute(0, 2, 3, 1)
    return y.reshape(x.shape).contiguous()


def by_weight(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """-> (O, 3, 3, I)"""
    return _adjoint(grad, x, weight, 1).permute(0, 2, 3, 1)


def patches(frames: Tensor) -> Tensor:
    """(T, B, 64, 64) -> (T, B, 16, 16, 16), channels last"""
    return F.pixel_unshuffle(frames.unsqueeze(2), 4).permute(0, 1, 3, 4, 2).contiguous()


class Net:
    def __init__(self, layers: int, channels: int, device, low=torch.bfloat16) -> None:
        self.layers, self.channels, self.device, self.low = layers, channels, device, low
        c = channels
        zeros = lambda *s: torch.zeros(*s, device=device)
        self.big = zeros(2 * layers - 1, 3 * c, 3, 3, c)  # hh0, ih1, hh1, ih2, hh2, ...
        self.first = zeros(3 * c, 3, 3, PATCH)
        self.out_weight, self.out_bias = zeros(PATCH, c), zeros(PATCH)
        self.bias_ih, self.bias_hh = zeros(layers, 3 * c), zeros(layers, 3 * c)

    @staticmethod
    def hh(layer): return 2 * layer

    @staticmethod
    def ih(layer): return 2 * layer - 1

    def parameters(self) -> list[Tensor]:
        return [self.big, self.first, self.out_weight, self.out_bias, self.bias_ih, self.bias_hh]

    def load(self, state: dict[str, Tensor]) -> None:
        """From means by the names of the model's state_dict."""
        get = lambda name: state[name + ".mean"].to(self.device, torch.float32)
        for k in range(self.layers):
            cell = f"future.rnn.cells.{k}."
            self.big[self.hh(k)].copy_(get(cell + "weight_hh").permute(0, 2, 3, 1))
            (self.big[self.ih(k)] if k else self.first).copy_(get(cell + "weight_ih").permute(0, 2, 3, 1))
            self.bias_ih[k].copy_(get(cell + "bias_ih"))
            self.bias_hh[k].copy_(get(cell + "bias_hh"))
        self.out_weight.copy_(get("future.readout.weight")[:, :, 0, 0])
        self.out_bias.copy_(get("future.readout.bias"))

    def state(self) -> dict[str, Tensor]:
        found = {}
        for k in range(self.layers):
            cell = f"future.rnn.cells.{k}."
            found[cell + "weight_hh.mean"] = self.big[self.hh(k)].permute(0, 3, 1, 2)
            found[cell + "weight_ih.mean"] = (self.big[self.ih(k)] if k else self.first).permute(0, 3, 1, 2)
            found[cell + "bias_ih.mean"], found[cell + "bias_hh.mean"] = self.bias_ih[k], self.bias_hh[k]
        found["future.readout.weight.mean"] = self.out_weight[:, :, None, None]
        found["future.readout.bias.mean"] = self.out_bias
        return {name: value.contiguous().clone() for name, value in found.items()}


class Trainer:
    def __init__(self, net: Net, batch: int, seen_weight=1.0, decay=0.1, clip=50.0) -> None:
        self.net, self.batch, self.decay, self.clip = net, batch, decay, clip
        n, c, device, low = net.layers, net.channels, net.device, net.low
        image = (batch, 16, 16)
        new = lambda *s, dtype=low: torch.zeros(*s, device=device, dtype=dtype)
        self.frames = new(20, batch, 64, 64, dtype=torch.float32)
        self.inputs = new(STEPS, *image, PATCH)
        self.logits = new(STEPS, *image, PATCH, dtype=torch.float32)
        self.s = [new(STEPS + 1, *image, c, dtype=torch.float32) for _ in range(n)]
        self.o = [new(STEPS + 1, *image, c) for _ in range(n)]
        # Products as the convolutions leave them, one by one; the first with the state is 0.
        nothing = new(*image, 3 * c)
        self.x = [[nothing] * STEPS for _ in range(n)]
        self.p = [[nothing] * STEPS for _ in range(n)]
        self.xg = [new(STEPS, *image, 3 * c) for _ in range(n)]
        self.pg = [new(STEPS, *image, 3 * c) for _ in range(n)]
        self.none = new(*image, c)
        self.grads = [torch.zeros_like(p) for p in net.parameters()]
        self.momentum = torch.zeros_like(net.big)
        self.adam = [(torch.zeros_like(p), torch.zeros_like(p)) for p in net.parameters()[1:]]
        self.count = torch.zeros((), device=device)
        self.rate = torch.zeros((), device=device)
        weights = torch.full((STEPS,), 1.0, device=device)
        weights[: SEEN - 1] = seen_weight
        self.weights = (weights / weights.sum()).view(-1, 1, 1, 1, 1)
        self.result = torch.zeros(3, device=device)  # seen nats, future nats, norm of the gradient
        self.graph = None

    # -- forward ------------------------------------------------------------------------------
    def _read_out(self, start: int, stop: int) -> None:
        net, top = self.net, self.s[-1][start + 1 : stop + 1]
        flat = torch.addmm(net.out_bias, top.reshape(-1, net.channels), net.out_weight.t())
        self.logits[start:stop].copy_(flat.view(self.logits[start:stop].shape))

    def _forward(self) -> None:
        net = self.net
        cell = lambda k, t: gru_forward(self.x[k][t], self.p[k][t], net.bias_ih[k], net.bias_hh[k], self.s[k][t], self.s[k][t + 1], self.o[k][t + 1])
        self.inputs[:SEEN].copy_(self.target_patches[:SEEN])
        for k in range(net.layers):
            below = self.inputs[:SEEN] if k == 0 else self.o[k - 1][1 : SEEN + 1]
            self.x[k][:SEEN] = convolve(below, self.w_ih[k]).unbind(0)
            for t in range(SEEN):
                if t:  # the state before the first step is 0
                    self.p[k][t] = convolve(self.o[k][t], self.w_hh[k])
                cell(k, t)
        self._read_out(0, SEEN)
        for t in range(SEEN, STEPS):
            self.inputs[t].copy_(torch.sigmoid(self.logits[t - 1]))
            for k in range(net.layers):
                self.x[k][t] = convolve(self.inputs[t] if k == 0 else self.o[k - 1][t + 1], self.w_ih[k])
                self.p[k][t] = convolve(self.o[k][t], self.w_hh[k])
                cell(k, t)
            self._read_out(t, t + 1)

    # -- backward -----------------------------------------------------------------------------
    def _backward(self) -> None:
        net, n, low = self.net, self.net.layers, self.net.low
        pixels = torch.sigmoid(self.logits)
        by_logits = (pixels - self.target_patches[1:]) * (self.weights / self.batch)
        carry = [torch.zeros_like(self.s[0][0]) for _ in range(n)]
        byp = [self.none] * n
        to_top = lambda g: (g.reshape(-1, PATCH) @ net.out_weight).to(low).view(*g.shape[:-1], net.channels)
        cell = lambda k, t, out: gru_backward(self.x[k][t], self.p[k][t], net.bias_ih[k], net.bias_hh[k], self.s[k][t], out, byp[k], self.xg[k][t], self.pg[k][t], carry[k])
        for t in range(STEPS - 1, SEEN - 1, -1):
            out = to_top(by_logits[t])
            for k in range(n - 1, -1, -1):
                cell(k, t, out)
                byp[k] = by_input(self.pg[k][t], self.o[k][t], self.w_hh[k], self.turned_hh[k])
                below = self.o[k - 1][t + 1] if k else self.inputs[t]
                out = by_input(self.xg[k][t], below, self.w_ih[k], self.turned_ih[k])
            s = pixels[t - 1]
            by_logits[t - 1] += out.float() * s * (1 - s)
        outs = to_top(by_logits[:SEEN])
        for k in range(n - 1, -1, -1):
            for t in range(SEEN - 1, -1, -1):
                cell(k, t, outs[t])
                if t:
                    byp[k] = by_input(self.pg[k][t], self.o[k][t], self.w_hh[k], self.turned_hh[k])
            if k:
                outs = by_input(self.xg[k][:SEEN], self.o[k - 1][1 : SEEN + 1], self.w_ih[k], self.turned_ih[k])
        g_big, g_first, g_out, g_out_bias, g_ih, g_hh = self.grads
        for k in range(n):
            g_big[net.hh(k)].copy_(by_weight(self.pg[k][1:], self.o[k][1:STEPS], self.w_hh[k]))
            below = self.o[k - 1][1:] if k else self.inputs
            (g_big[net.ih(k)] if k else g_first).copy_(by_weight(self.xg[k], below, self.w_ih[k]))
            for grad, to in ((self.xg[k], g_ih[k]), (self.pg[k], g_hh[k])):
                flat = grad.view(-1, grad.shape[-1])
                to.copy_(torch.mv(flat.t(), flat.new_ones(len(flat))))
        flat = by_logits.view(-1, PATCH)
        g_out.copy_(flat.t() @ self.s[-1][1:].reshape(-1, net.channels))
        g_out_bias.copy_(flat.sum(0))

    # -- update -------------------------------------------------------------------------------
    def _update(self) -> None:
        net = self.net
        norm = torch.sqrt(sum(g.square().sum() for g in self.grads))
        scale = (self.clip / (norm + 1e-6)).clamp(max=1.0)
        self.result[2].copy_(norm)
        g = self.grads[0] * scale
        self.momentum.mul_(0.95).add_(g)
        ahead = g + 0.95 * self.momentum
        c = net.channels
        direction = orthogonal(ahead.view(-1, c, 9 * c))
        size = 0.2 * math.sqrt(9 * c)
        net.big.mul_(1 - self.rate * self.decay)
        net.big.sub_(self.rate * size * direction.view(net.big.shape))
        self.count += 1
        one, two = 1 - 0.9**self.count, 1 - 0.999**self.count
        for parameter, grad, (mean, square) in zip(net.parameters()[1:], self.grads[1:], self.adam, strict=True):
            grad = grad * scale
            mean.lerp_(grad, 0.1)
            square.lerp_(grad.square(), 0.001)
            if parameter is net.first or parameter is net.out_weight:
                parameter.mul_(1 - self.rate * self.decay)
            parameter.sub_(self.rate * (mean / one) / ((square / two).sqrt() + 1e-8))

    def _low_weights(self) -> None:
        net = self.net
        big, first = net.big.to(net.low), net.first.to(net.low)
        filters = lambda w: w.permute(0, 3, 1, 2)
        self.w_hh = [filters(big[net.hh(k)]) for k in range(net.layers)]
        self.w_ih = [filters(big[net.ih(k)] if k else first) for k in range(net.layers)]
        self.turned_hh = self.turned_ih = [None] * net.layers
        if FLIP:  # (n, O, y, x, I) -> (n, I, y, x, O)
            turned = big.flip((2, 3)).permute(0, 4, 2, 3, 1).contiguous()
            self.turned_hh = [filters(turned[net.hh(k)]) for k in range(net.layers)]
            self.turned_ih = [filters(turned[net.ih(k)]) if k else None for k in range(net.layers)]

    def gradients(self) -> None:
        self.target_patches = patches(self.frames)
        self._low_weights()
        self._forward()
        loss = F.softplus(self.logits) - self.target_patches[1:] * self.logits
        by_frame = loss.sum((1, 2, 3, 4)) / self.batch
        self.result[0].copy_(by_frame[: SEEN - 1].mean())
        self.result[1].copy_(by_frame[SEEN - 1 :].mean())
        self._backward()

    def run(self) -> None:
        self.gradients()
        self._update()

    def _kept(self) -> list[Tensor]:
        return [*self.net.parameters(), self.momentum, self.count, *(t for pair in self.adam for t in pair)]

    @torch.no_grad()
    def step(self, frames: Tensor, rate: float) -> Tensor:
        self.frames.copy_(frames)
        self.rate.fill_(rate)
        if frames.device.type != "cuda":
            self.run()
            return self.result.clone()
        if self.graph is None:
            before = [t.clone() for t in self._kept()]
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self.run()
            torch.cuda.current_stream().wait_stream(stream)
            for t, value in zip(self._kept(), before, strict=True):
                t.copy_(value)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.run()
        self.graph.replay()
        return self.result.clone()


# -- growth -------------------------------------------------------------------------------------
def grow_layers(state: dict[str, Tensor], order: list[int | None], channels: int, seed=0) -> dict[str, Tensor]:
    """Layers of `state` in this order; None is a new one that starts near the identity."""
    g = torch.Generator().manual_seed(seed)
    grown, c, pending = {}, channels, 1.0
    bound = 1 / math.sqrt(9 * c)
    draw = lambda *s: (torch.rand(*s, generator=g) * 2 - 1) * bound
    for k, old in enumerate(order):
        cell = f"future.rnn.cells.{k}."
        if old is None:
            ih, hh, bias = draw(3 * c, c, 3, 3), 0.5 * draw(3 * c, c, 3, 3), torch.zeros(3 * c)
            ih[2 * c :] *= 0.2
            ih[2 * c :, :, 1, 1] += 0.5 * torch.eye(c) / pending  # the layer below may be new too
            bias[c : 2 * c] = -4.0
            grown |= {cell + "weight_ih.mean": ih * 1.0, cell + "weight_hh.mean": hh,
                      cell + "bias_ih.mean": bias, cell + "bias_hh.mean": torch.zeros(3 * c)}
            pending = 1 / 2.1
            continue
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            value = state[f"future.rnn.cells.{old}.{name}.mean"].float()
            grown[f"{cell}{name}.mean"] = value / pending if name == "weight_ih" else value.clone()
        pending = 1.0
    for name in ("future.readout.weight.mean", "future.readout.bias.mean"):
        grown[name] = state[name].float() / (pending if "weight" in name else 1.0)
    return grown


def grow_channels(state: dict[str, Tensor], layers: int, old: int, new: int, seed=0) -> dict[str, Tensor]:
    """New channels are drawn as at a start; what the old ones read of them starts small."""
    g = torch.Generator().manual_seed(seed)
    grown = {}
    def gates(x, rows_new):  # (3 old, ...) -> (3 new, ...), new rows from `rows_new`
        parts = rows_new.clone().view(3, new, *rows_new.shape[1:])
        parts[:, :old] = x.view(3, old, *x.shape[1:])
        return parts.reshape(rows_new.shape)
    for k in range(layers):
        cell = f"future.rnn.cells.{k}."
        for name in ("weight_ih", "weight_hh"):
            w = state[f"{cell}{name}.mean"].float()
            inputs = w.shape[1] if (k == 0 and name == "weight_ih") else new
            drawn = (torch.rand(3 * new, inputs, 3, 3, generator=g) * 2 - 1) / math.sqrt(9 * inputs)
            wide = torch.cat((w, 0.1 * drawn[: 3 * old, w.shape[1] :]), 1) if inputs > w.shape[1] else w
            grown[f"{cell}{name}.mean"] = gates(wide, drawn)
        for name in ("bias_ih", "bias_hh"):
            grown[f"{cell}{name}.mean"] = gates(state[f"{cell}{name}.mean"].float(), torch.zeros(3 * new))
    w = state["future.readout.weight.mean"].float()
    grown["future.readout.weight.mean"] = torch.cat((w, 0.01 * torch.randn(16, new - old, 1, 1, generator=g)), 1)
    grown["future.readout.bias.mean"] = state["future.readout.bias.mean"].float()
    return grown

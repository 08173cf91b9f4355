"""The decoder of the kind llama in PyTorch: scaled_dot_product_attention, a static
cache, and on a GPU half precision and a CUDA graph for decoding."""

import numpy as np
import torch
import torch.nn.functional as F


class Decoder:
    """Sequences of one length side by side."""

    name = "PyTorch " + torch.__version__

    def __init__(self, model, capacity, sequences=1, device="cpu", dtype=None):
        if model.field:
            raise SystemExit("the PyTorch decoder runs the kind llama alone")
        self.m, self.capacity, self.device = model, capacity, device
        self.type = dtype or (torch.float16 if device == "cuda" else torch.float32)

        def send(x):
            return torch.from_numpy(np.ascontiguousarray(x)).to(device, self.type)

        self.w = {k: {n: send(x) for n, x in v.items()} if isinstance(v, dict) else send(v)
                  for k, v in model.weights.items()}
        shape = (sequences, model.heads, capacity, model.dim)
        self.keys = [torch.zeros(shape, dtype=self.type, device=device) for _ in range(model.layers)]
        self.values = [torch.zeros_like(k) for k in self.keys]
        half = model.dim // 2
        angle = torch.arange(capacity)[:, None] * model.rope ** (-torch.arange(half) / half)
        self.cos, self.sin = angle.cos().to(device, self.type), angle.sin().to(device, self.type)
        self.at = torch.zeros(1, dtype=torch.long, device=device)
        self.slots = torch.arange(capacity, device=device)
        self.ids = torch.zeros(sequences, 1, dtype=torch.long, device=device)
        self.graph = None
        self.reset()

    def reset(self):
        self.position = 0

    @torch.inference_mode()
    def feed(self, ids):
        """Takes in ids, [B, N], and returns the logits of the last ones, [B, V], on the
        host."""
        ids = torch.as_tensor(np.asarray(ids, np.int64))
        n = ids.shape[1]
        if n > 1 or self.device != "cuda":
            logits = self.forward(ids.to(self.device), None)
        else:
            self.ids.copy_(ids)
            self.at.fill_(self.position)
            self.capture()
            self.graph.replay()
            logits = self.logits
        self.position += n
        return logits.float().cpu().numpy()

    def capture(self):
        if self.graph is not None:
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.forward(self.ids, self.at)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.logits = self.forward(self.ids, self.at)

    def forward(self, ids, at):
        """The logits of tokens at the present position, or, in a CUDA graph, of one a
        sequence at a position that is read when the graph runs."""
        m, (b, n) = self.m, ids.shape
        x = F.embedding(ids, self.w["embed"])
        if at is None:
            begin, end = self.position, self.position + n
            cos, sin = self.cos[begin:end], self.sin[begin:end]
            where, mask = self.slots[begin:end], None
            if n > 1 and begin > 0:
                mask = self.slots[:end] <= where[:, None]
        else:
            end = self.capacity
            cos, sin = self.cos.index_select(0, at), self.sin.index_select(0, at)
            where, mask = at, (self.slots <= at)[None, None, None]

        def rotate(x):
            p, q = x.chunk(2, -1)
            return torch.cat([p * cos - q * sin, q * cos + p * sin], -1)

        for i in range(m.layers):
            w = self.w[i]
            h = F.rms_norm(x, (m.hidden,), w["attn_norm"], m.eps)
            q, k, v = F.linear(h, w["qkv"]).view(b, n, 3, m.heads, m.dim).permute(2, 0, 3, 1, 4)
            q, k = rotate(q), rotate(k)
            self.keys[i].index_copy_(2, where, k)
            self.values[i].index_copy_(2, where, v)
            y = F.scaled_dot_product_attention(
                q, self.keys[i][:, :, :end], self.values[i][:, :, :end], attn_mask=mask, is_causal=n > 1 and mask is None)
            x = x + F.linear(y.transpose(1, 2).reshape(b, n, -1), w["o"])
            gate, up = F.linear(F.rms_norm(x, (m.hidden,), w["ffn_norm"], m.eps), w["in"]).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, w["out"])
        return F.linear(F.rms_norm(x[:, -1], (m.hidden,), self.w["norm"], m.eps), self.w["output"])

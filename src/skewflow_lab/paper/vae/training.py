"""One training of the autoencoder, epoch by epoch, and what is measured of it."""

import math
import time
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bernoulli

from skewflow.geometry import orthogonality_error
from skewflow.optim import FlowAdam, FlowSGD, split_parameters

from ...runs.seeds import spawn
from .posteriors import Method, Sylvester, make_flows

SHOWN = 8
"""Samples, and reconstructions, that a training keeps for the page."""
LOG_2PI = math.log(2 * math.pi)


class Autoencoder(nn.Module):
    """A Bernoulli decoder and a Gaussian encoder of two hidden layers each, and the flows."""

    def __init__(
        self,
        pixels: int,
        *,
        latent: int,
        hidden: int,
        method: Method,
        rank: int,
        num_flows: int,
        num_planar: int,
    ) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.gaussian = nn.Linear(hidden, 2 * latent)
        self.flows = make_flows(
            method,
            d=latent,
            rank=rank,
            context=hidden,
            width=hidden,
            num_flows=num_flows,
            num_planar=num_planar,
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, pixels),
        )
        self.latent = latent

    def terms(
        self, x: Float[Tensor, "b p"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "b"], Float[Tensor, "b"]]:
        """-log p(x | z), and log q(z | x) - log p(z), for one z of each image."""
        h = self.encoder(x)
        mean, log_var = self.gaussian(h).chunk(2, dim=1)
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
        z = mean + noise * (log_var / 2).exp()
        log_q = -(noise.square() + log_var + LOG_2PI).sum(1) / 2
        for flow in self.flows:
            z, log_det = flow(z, h)
            log_q = log_q - log_det
        log_p = -(z.square() + LOG_2PI).sum(1) / 2
        return bernoulli(self.decoder(z), x, reduction="none").sum(1), log_q - log_p


class Training:
    """An autoencoder in training; what epoch t draws depends on the seed and t only."""

    def __init__(
        self,
        train: Float[Tensor, "n p"],
        test: Float[Tensor, "m p"],
        *,
        method: Method,
        latent: int,
        hidden: int,
        rank: int,
        num_flows: int,
        num_planar: int,
        lr: float,
        batch: int,
        epochs: int,
        warm_up: int,
        seed: int,
    ) -> None:
        self.train, self.batch, self.seed = train, batch, seed
        self.lr, self.epochs, self.warm_up = lr, epochs, warm_up
        self.test = torch.bernoulli(test, generator=spawn(0, "test images"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = Autoencoder(
                train.shape[1],
                latent=latent,
                hidden=hidden,
                method=method,
                rank=rank,
                num_flows=num_flows,
                num_planar=num_planar,
            )
        free, optimizers = list(self.model.parameters()), []
        if method in ("flowsgd", "flowadam"):
            weights, rest = split_parameters(self.model)
            free = [p for _, p in rest]
            optimizers.append(
                FlowAdam(weights, lr=lr, block_size="dense", retraction="polar", seed=seed)
                if method == "flowadam"
                else FlowSGD(weights, lr=lr, momentum=0.9, seed=seed)
            )
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adam(free, lr=lr),
            *optimizers,
        ]
        self.rows: list[dict[str, Any]] = []
        self.seconds: list[float] = []

    def epoch(self) -> dict[str, Any]:
        """Go once through the training images, binarised again, and measure -ELBO on the others."""
        began, number = time.perf_counter(), len(self.rows)
        generator = spawn(self.seed, "epoch", number)
        weight = min(1.0, (number + 1) / max(1, self.warm_up))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.lr * min(1.0, 2 * (1 - number / self.epochs))
        total = 0.0
        order = torch.randperm(len(self.train), generator=generator)
        for index in torch.split(order, self.batch):
            x = torch.bernoulli(self.train[index], generator=generator)
            misfit, divergence = self.model.terms(x, generator)
            loss = (misfit + weight * divergence).mean()
            self.model.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            for optimizer in self.optimizers:
                optimizer.step()
            total += (misfit + divergence).sum().item()
        self.seconds.append(time.perf_counter() - began)
        row = {
            "epoch": number + 1,
            "train": total / len(self.train),
            "neg_elbo": self.neg_elbo(),
            "error": self.orthogonality_error(),
        }
        self.rows.append(row)
        return row

    @torch.no_grad()
    def neg_elbo(self, draw: int = 0) -> float:
        """-ELBO in nats of the test images, one sample each; another draw has other samples."""
        generator = spawn(self.seed, "test", draw)
        parts = [sum(self.model.terms(x, generator)) for x in torch.split(self.test, 500)]
        return float(torch.cat(parts).mean())  # type: ignore[arg-type]

    @torch.no_grad()
    def orthogonality_error(self) -> float | None:
        """The largest error of a Sylvester flow's factor, over test images if they have their own.

        A log-determinant is right only as far as the factor is orthogonal.
        """
        h = self.model.encoder(self.test[:500])
        factors = [flow.orthogonal(h) for flow in self.model.flows if isinstance(flow, Sylvester)]
        errors = [float(orthogonality_error(Q).max()) / Q.shape[-1] ** 0.5 for Q in factors]
        return max(errors) if errors else None

    @torch.no_grad()
    def neg_log_likelihood(self, samples: int, images: int) -> float:
        """The importance-weighted estimate of -log p(x), of the first test images."""
        generator = spawn(self.seed, "importance")
        total = 0.0
        for x in self.test[:images]:
            misfit, divergence = self.model.terms(x.expand(samples, -1), generator)
            total += float(math.log(samples) - torch.logsumexp(-misfit - divergence, 0))
        return total / len(self.test[:images])

    @torch.no_grad()
    def pictures(self) -> dict[str, list[list[int]]]:
        """Test images, their reconstructions, and samples, as grey values from 0 to 255."""
        x = self.test[:SHOWN]
        h = self.model.encoder(x)
        z = self.model.gaussian(h).chunk(2, dim=1)[0]
        for flow in self.model.flows:
            z, _ = flow(z, h)
        noise = torch.randn(len(x), self.model.latent, generator=spawn(self.seed, "samples"))
        found = {
            "images": x,
            "reconstructions": self.model.decoder(z).sigmoid(),
            "samples": self.model.decoder(noise).sigmoid(),
        }
        return {name: (255 * grey).round().int().tolist() for name, grey in found.items()}

    def state_dict(self) -> dict[str, Any]:
        """Everything that a stopped run needs to go on."""
        return {
            "rows": self.rows,
            "seconds": self.seconds,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.rows, self.seconds = state["rows"], state["seconds"]
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

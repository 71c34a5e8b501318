"""The sections of the page on layers and what they are compared with."""

from collections.abc import Callable

from .records import BENCH, Recorded


def layers(at: Callable[..., Recorded]) -> list[Recorded]:
    """Their entries, in the order of the page."""
    return [
        at(
            f"{BENCH}/givens_layer.json",
            "A layer of Givens rotations beside other orthogonal layers",
            "nn",
            command="OMP_NUM_THREADS=2 skewflow bench givens-layer --rounds 15 --steps 300 --save",
            note="`costs`: a forward and a backward pass on two cores, and the "
            "most memory held at once. "
            "`accuracy`: two square layers and a readout on halved images, three seeds.",
        ),
        at(
            f"{BENCH}/givens_policy.json",
            "Policies of Givens rotations",
            "nn",
            command="skewflow bench givens-policy --save",
            note="HalfCheetah with 64 hidden units, 60 generations of 16 directions and episodes "
            "of 200 steps, five seeds; one setting for all, which was not searched.",
        ),
        at(
            "vae",
            "Variational autoencoders with normalising flows",
            "nn",
            figure="vae/figures/vae.png",
            note="On two cores that had other work: seconds an epoch are upper bounds.",
        ),
        at(
            "ode",
            "Ordinary differential equations on O(d)",
            "nn",
            figure="ode/figures/gradients.png",
            note="One seed on a busy machine. `memory` is in bytes.",
        ),
        at(
            f"{BENCH}/conv_norms.json",
            "Convolutions as operators on images",
            "nn",
            command="OMP_NUM_THREADS=1 skewflow bench conv-norms --rounds 5 --steps 200 --save",
            note="`constant` is the Lipschitz constant of the convolution on images of that side, "
            "at the start and `trained`; `least` is its smallest singular value. The accuracy is "
            "that of a classifier of digits with such a layer inside. orthogonium's convolution is "
            "orthogonal with circular padding, and a contraction with zeros; ours is one only "
            "where patches do not overlap.",
            columns={
                "rows": (
                    "kernel",
                    "stride",
                    "padding",
                    "layer",
                    "constant, 32 pixels",
                    "trained, 32 pixels",
                    "least",
                    "least, trained",
                    "test accuracy",
                    "milliseconds",
                )
            },
        ),
    ]

"""Learn a transform for compression: a product of Givens rotations, orthogonal for any angles.

Neighbouring samples of a signal are correlated. A good orthogonal transform concentrates their
energy in few coefficients. The coding gain, in decibels, measures this; the eigenvectors of the
covariance have the largest one. A few rounds of rotations come close with fewer parameters.
"""

import torch

import skewflow as sf

LENGTH, CORRELATION, STEPS = 16, 0.95, 600


def coding_gain(variances):
    """Arithmetic over geometric mean of the variances of the coefficients, in decibels."""
    return 10 * (variances.mean().log10() - variances.log10().mean())


def learned(rounds, covariance):
    """Train a layer; returns the gains before and after, and its orthogonality error."""
    torch.manual_seed(0)
    layer = sf.nn.GivensLinear(LENGTH, rounds, bias=False)
    adam = torch.optim.Adam(layer.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, STEPS)
    gains = []
    for _ in range(STEPS):
        W = layer.weight
        gain = coding_gain((W @ covariance * W).sum(1))
        gains.append(gain.item())
        adam.zero_grad()
        (-gain).backward()
        adam.step()
        schedule.step()
    return gains[0], gains[-1], sf.nn.orthogonality_error(layer.weight.detach())


def main():
    """Print the coding gains of a few and of all rounds beside the largest possible one."""
    time = torch.arange(LENGTH)
    covariance = CORRELATION ** (time[:, None] - time).abs().float()
    most = coding_gain(torch.linalg.eigvalsh(covariance)).item()
    for rounds in (4, LENGTH - 1):
        before, after, error = learned(rounds, covariance)
        print(
            f"{rounds * LENGTH // 2:3d} angles: gain {before:.2f} -> {after:.2f} of {most:.2f} dB, "
            f"orthogonality error {error:.0e}"
        )


if __name__ == "__main__":
    main()

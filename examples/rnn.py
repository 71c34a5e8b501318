"""Train a recurrent net to remember a symbol over a long sequence of blanks.

The transition is orthogonal, so the state neither fades nor explodes along the blanks.
"""

import torch
from torch import nn

import skewflow as sf

SYMBOLS, BLANKS, WIDTH = 8, 200, 64


def sequences(n):
    """One symbol followed by blanks, as (n, 1 + BLANKS, SYMBOLS), and the symbol."""
    symbol = torch.randint(SYMBOLS, (n,))
    x = torch.zeros(n, 1 + BLANKS, SYMBOLS)
    x[torch.arange(n), 0, symbol] = 1
    return x, symbol


def main():
    """Train, and print how many symbols the net remembers."""
    torch.manual_seed(0)
    rnn = sf.nn.OrthogonalRNN(SYMBOLS, WIDTH, batch_first=True)
    head = nn.Linear(WIDTH, SYMBOLS)
    sf.nn.torus_(rnn.cell.weight_hh)
    orthogonal, rest = sf.optim.split_parameters(rnn)
    flow = sf.optim.FlowAdam(orthogonal, lr=0.1 / BLANKS)
    adam = torch.optim.Adam([p for _, p in rest] + [*head.parameters()], lr=0.01)

    def logits(x):
        return head(rnn(x)[0][:, -1])

    def remembered():
        x, symbol = sequences(512)
        return (logits(x).argmax(dim=1) == symbol).float().mean().item()

    before = remembered()
    for _ in range(40):
        x, symbol = sequences(64)
        flow.zero_grad()
        adam.zero_grad()
        nn.functional.cross_entropy(logits(x), symbol).backward()
        flow.step()
        adam.step()
    print(f"remembered after {BLANKS} blanks  {before:.1%} -> {remembered():.1%}")
    print(f"orthogonality error         {sf.nn.orthogonality_error(rnn):.0e}")


if __name__ == "__main__":
    main()

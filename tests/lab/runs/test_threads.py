"""Threads: a run finds as many as were asked for, whatever ran before."""

import torch

from skewflow_lab.runs.threads import one_thread


def test_one_thread_is_given_back():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)

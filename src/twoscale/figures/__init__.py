"""The figures of the paper, one module each: tables in, a matplotlib Figure out; nothing here needs
torch.
"""

"""What every value of one rank is to the serial script's: one abstract run of the program, and what follows from it.

values      placements, and the values that carry them
store       frames, objects, and where each value is kept
interpret/  the abstract run: statements, expressions, calls
loops       what a loop over a shard carries from iteration to iteration, solved
rules/      what Python, NumPy, PyTorch, ... do to placements, as data
reduce      the reductions behind each loop, and what is shown or decides inside it, as Edits and Doubts

The words are those of PyTorch's DTensor (placement), of JAX' sharding types (varying, reduced) and of LLVM's
uniformity analysis (uniform, divergent).
"""

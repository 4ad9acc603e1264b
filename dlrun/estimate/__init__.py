"""What a training script will need and give on many ranks: `dlrun estimate`.

`measure` runs its first steps on a few ranks of this machine, and averages its gradients alone; `network` says how fast
nodes talk to each other; `predict` takes both to any number of ranks, by the model of `dlrun scale`.
"""

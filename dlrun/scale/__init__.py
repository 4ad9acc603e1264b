"""How a training script scales: `dlrun scale`.

The script runs on several numbers of ranks; `reading` finds rates, accuracies and losses in what it prints, `result`
holds the runs and their means, deviations and efficiencies, `predict` fits a latency-bandwidth model and says how far
it is off where it can be checked, and `report` writes the tables, the figures and one HTML page that opens offline.
"""

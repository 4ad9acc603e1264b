"""dl_comm averages gradients over the ranks of a data-parallel job."""

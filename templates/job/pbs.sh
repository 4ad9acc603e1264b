#!/bin/bash
#PBS -N {{ name }}
#PBS -l select={{ nodes }}:ncpus={{ (cores or 1) * per_node }}:mpiprocs={{ per_node }}{{ ":ngpus=%d" % (gpus * per_node) if gpus else "" }}
#PBS -l walltime={{ time }}
{% if account %}
#PBS -A {{ account }}
{% endif %}
{% if queue %}
#PBS -q {{ queue }}
{% endif %}
#PBS -j oe

cd "$PBS_O_WORKDIR"
{{ setup }}
exec {{ line }}

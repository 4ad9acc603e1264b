#!/bin/bash
#SBATCH --job-name={{ name }}
#SBATCH --nodes={{ nodes }}
#SBATCH --ntasks={{ ranks }}
#SBATCH --ntasks-per-node={{ per_node }}
{% if cores %}
#SBATCH --cpus-per-task={{ cores }}
{% endif %}
{% if gpus %}
#SBATCH --gpus-per-node={{ gpus * per_node }}
{% endif %}
#SBATCH --time={{ time }}
{% if account %}
#SBATCH --account={{ account }}
{% endif %}
{% if queue %}
#SBATCH --partition={{ queue }}
{% endif %}
#SBATCH --signal=B:USR1@{{ save_time }}

{{ setup }}
exec {{ line }}

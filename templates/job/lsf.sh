#!/bin/bash
#BSUB -J {{ name }}
#BSUB -nnodes {{ nodes }}
#BSUB -W {{ time.rsplit(":", 1)[0] }}
{% if account %}
#BSUB -P {{ account }}
{% endif %}
{% if queue %}
#BSUB -q {{ queue }}
{% endif %}
#BSUB -o {{ name }}.%J.out

{{ setup }}
exec {{ line }}

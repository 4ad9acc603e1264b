#!/bin/bash
# flux: --job-name={{ name }}
# flux: -N {{ nodes }}
# flux: -n {{ ranks }}
{% if cores %}
# flux: -c {{ cores }}
{% endif %}
{% if gpus %}
# flux: -g {{ gpus }}
{% endif %}
# flux: -t {{ seconds }}s
{% if account %}
# flux: --bank={{ account }}
{% endif %}
{% if queue %}
# flux: -q {{ queue }}
{% endif %}

{{ setup }}
exec {{ line }}

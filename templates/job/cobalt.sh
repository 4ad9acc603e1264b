#!/bin/bash
#COBALT --jobname {{ name }}
#COBALT -n {{ nodes }}
#COBALT -t {{ time }}
{% if account %}
#COBALT -A {{ account }}
{% endif %}
{% if queue %}
#COBALT -q {{ queue }}
{% endif %}

{{ setup }}
exec {{ line }}

#!/bin/sh
# One worker for each processor the container may use, if asked for.
[ -n "$NGINX_ENTRYPOINT_WORKER_PROCESSES_AUTOTUNE" ] || exit 0
sed -i "s/^worker_processes .*/worker_processes $(nproc);/" /etc/nginx/nginx.conf

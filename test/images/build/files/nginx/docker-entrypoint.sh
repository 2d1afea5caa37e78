#!/bin/sh
# Runs what stands in /docker-entrypoint.d before the server starts: *.envsh is
# sourced, executable *.sh is run.
set -e

say() {
	[ -n "$NGINX_ENTRYPOINT_QUIET_LOGS" ] || echo "$@"
}

if [ "$1" = nginx ] || [ "$1" = nginx-debug ]; then
	if [ -n "$(ls -A /docker-entrypoint.d 2>/dev/null)" ]; then
		say "$0: /docker-entrypoint.d/ is not empty, will attempt to perform configuration"
		say "$0: Looking for shell scripts in /docker-entrypoint.d/"
		for f in /docker-entrypoint.d/*; do
			case "$f" in
			*.envsh)
				say "$0: Sourcing $f"
				. "$f"
				;;
			*.sh)
				say "$0: Launching $f"
				"$f"
				;;
			*) say "$0: Ignoring $f" ;;
			esac
		done
		say "$0: Configuration complete; ready for start up"
	else
		say "$0: No files found in /docker-entrypoint.d/, skipping configuration"
	fi
fi
exec "$@"

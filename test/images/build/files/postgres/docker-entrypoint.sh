#!/bin/bash
# Starts the database server as the user postgres. On an empty data directory it makes the database
# cluster first, aside: after a kill at any moment the next start begins afresh or finds all of it.
set -eu
export PGDATA=${PGDATA:-/var/lib/postgresql/data/main}
if [ "${1:-}" = postgres ] && [ "$(id -u)" = 0 ]; then
	mkdir -p "$(dirname "$PGDATA")"
	chown postgres:postgres "$(dirname "$PGDATA")"
	exec setpriv --reuid=postgres --regid=postgres --clear-groups "$0" "$@"
fi
if [ "${1:-}" = postgres ] && [ ! -d "$PGDATA" ]; then
	if [ -z "${POSTGRES_PASSWORD:-}" ]; then
		echo "Error: Database is uninitialized and superuser password is not specified." >&2
		echo "       You must specify POSTGRES_PASSWORD to a non-empty value for the superuser." >&2
		exit 1
	fi
	rm -rf "$PGDATA.new"
	initdb --pgdata="$PGDATA.new" --username="${POSTGRES_USER:-postgres}" --encoding=UTF8 --locale=C.UTF-8 \
		--auth-local=trust --auth-host=scram-sha-256 --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD")
	echo "host all all all scram-sha-256" >> "$PGDATA.new/pg_hba.conf"
	sync "$PGDATA.new/pg_hba.conf"
	mv "$PGDATA.new" "$PGDATA"
	sync "$(dirname "$PGDATA")"
fi
if [ "${1:-}" = postgres ]; then
	shift
	# The image leaves out the compiler that jit needs.
	exec postgres -c jit=off -c listen_addresses='*' "$@"
fi
exec "$@"

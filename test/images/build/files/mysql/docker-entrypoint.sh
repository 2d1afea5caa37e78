#!/bin/bash
# Starts the database server; on an empty data directory it makes the system
# tables and what MYSQL_ROOT_PASSWORD, MYSQL_DATABASE, MYSQL_USER and
# MYSQL_PASSWORD ask for.
set -eu
data=/var/lib/mysql
say() { echo "$(date -u +'%F %T+00:00') [Note] [Entrypoint]: $*"; }
quote() { printf "'%s'" "${1//\'/\'\'}"; }

if [ "${1:-}" = mysqld ] && [ ! -d "$data/mysql" ]; then
	if [ -z "${MYSQL_ROOT_PASSWORD:-}" ] && [ -z "${MYSQL_ALLOW_EMPTY_PASSWORD:-}" ]; then
		echo "$(date -u +'%F %T+00:00') [ERROR] [Entrypoint]: Database is uninitialized and password option is not specified" >&2
		echo "    You need to specify one of: MYSQL_ROOT_PASSWORD, MYSQL_ALLOW_EMPTY_PASSWORD" >&2
		exit 1
	fi
	say "Initializing database files"
	{
		# One statement a line, as the bootstrap mode wants it.
		printf '%s\n' "create database if not exists mysql;" "use mysql;" "set @auth_root_socket=NULL;" "set @skip_auth_anonymous=1;"
		cat /usr/share/mysql/{mysql_system_tables,mysql_performance_tables,mysql_system_tables_data,fill_help_tables,maria_add_gis_sp_bootstrap}.sql
	} | mariadbd --no-defaults --bootstrap --user=mysql --datadir="$data" --lc-messages-dir=/usr/share/mysql 2> /tmp/bootstrap.log ||
		{ cat /tmp/bootstrap.log >&2; exit 1; }
	sync -f "$data"
	umask 077
	{
		echo "ALTER USER root@localhost IDENTIFIED BY $(quote "${MYSQL_ROOT_PASSWORD:-}");"
		echo "CREATE OR REPLACE USER root@'%' IDENTIFIED BY $(quote "${MYSQL_ROOT_PASSWORD:-}");"
		echo "GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;"
		[ -z "${MYSQL_DATABASE:-}" ] || echo "CREATE DATABASE IF NOT EXISTS \`$MYSQL_DATABASE\`;"
		if [ -n "${MYSQL_USER:-}" ]; then
			echo "CREATE OR REPLACE USER $(quote "$MYSQL_USER")@'%' IDENTIFIED BY $(quote "${MYSQL_PASSWORD:-}");"
			[ -z "${MYSQL_DATABASE:-}" ] || echo "GRANT ALL ON \`$MYSQL_DATABASE\`.* TO $(quote "$MYSQL_USER")@'%';"
		fi
	} > /run/mysqld/init.sql
	chown mysql /run/mysqld/init.sql
	set -- "$@" --init-file=/run/mysqld/init.sql
	say "Database files initialized"
fi
if [ "${1:-}" = mysqld ]; then
	shift
	say "Starting the server"
	exec mariadbd --no-defaults --user=mysql --datadir="$data" --socket=/run/mysqld/mysqld.sock --bind-address=0.0.0.0 --lc-messages-dir=/usr/share/mysql "$@"
fi
exec "$@"

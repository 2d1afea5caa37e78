#!/bin/sh
# Adds an IPv6 listener to the default site, unless somebody changed that site.
me=10-listen-on-ipv6-by-default.sh
conf=/etc/nginx/conf.d/default.conf
[ -f /proc/net/if_inet6 ] || { echo "$me: info: ipv6 not available"; exit 0; }
[ -w "$conf" ] || { echo "$me: info: can not modify $conf (read-only file system?)"; exit 0; }
echo "$me: info: Getting the checksum of $conf"
sha256sum -c --status /etc/nginx/default.conf.sha256 || { echo "$me: info: $conf differs from the packaged version"; exit 0; }
sed -i 's/^\( *\)listen 80;/&\n\1listen [::]:80;/' "$conf"
echo "$me: info: Enabled listen on IPv6 in $conf"

#!/bin/bash
# Fills ${NAME} of the environment into /etc/nginx/templates/*.template.
me=20-envsubst-on-templates.sh
for f in /etc/nginx/templates/*.template; do
	[ -f "$f" ] || continue
	out=/etc/nginx/conf.d/$(basename "$f" .template)
	echo "$me: Running envsubst on $f to $out"
	text=$(cat "$f")
	while IFS= read -r name; do
		text=${text//\$\{$name\}/${!name}}
		text=${text//\$$name/${!name}}
	done < <(compgen -e)
	printf '%s\n' "$text" > "$out"
done

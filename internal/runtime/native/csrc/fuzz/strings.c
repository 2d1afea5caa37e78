// Prints what C reads from a message that Go wrote: three strings and a packed list of three, each with the length that
// strlen returns; as many zeros for a message that is refused.
#include "fuzz.h"

static void say(const char *s)
{
	uint32_t n = strlen(s);
	fwrite(&n, sizeof n, 1, stdout);
	fwrite(s, 1, n, stdout);
}

static void run_script(void)
{
	struct message *r = (struct message *)script;
	char *s[4], *e[3];
	// What Go expects: its message without header, ends, lengths in the list and padding.
	int ok = parse(r, script_end - script, s) == 0;
	uint32_t total = 0;
	for (int i = 0; i < 3; i++)
		total += 4 + r->len[i];
	total += r->len[3] - 3;
	if (ok) {
		char *p = s[3], *end = p + r->len[3];
		for (int i = 0; i < 3; i++)
			ok = ok && (e[i] = next_string(&p, end));
		ok = ok && p == end;
	}
	for (int i = 0; ok && i < 3; i++)
		say(s[i]);
	for (int i = 0; ok && i < 3; i++)
		say(e[i]);
	while (!ok && total--)
		putchar(0);
}

int main(void) { return serve(); }

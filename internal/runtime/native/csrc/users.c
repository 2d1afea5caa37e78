// Users and groups by the image's own files, as runc reads them.
#define _GNU_SOURCE
#include "users.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct file {
	char *p, *end;
};

// A regular file of the image; anything else counts as missing.
static struct file slurp(const char *path)
{
	struct file f = {0, 0};
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
		size_t size = st.st_size > (4 << 20) ? 4 << 20 : st.st_size;
		char *p = malloc(size + 1);
		ssize_t k = 0, got = 0;
		while (p && got < (ssize_t)size && (k = read(fd, p + got, size - got)) > 0)
			got += k;
		if (p) {
			p[got] = 0;
			f.p = p;
			f.end = p + got;
		}
	}
	if (fd >= 0)
		close(fd);
	return f;
}

// next splits off one line into at most max fields; returns their number, -1 at the end
static int next(struct file *f, char **field, int max)
{
	if (!f->p || f->p >= f->end)
		return -1;
	char *nl = memchr(f->p, '\n', f->end - f->p), *s = f->p;
	if (nl)
		*nl = 0;
	f->p = nl ? nl + 1 : f->end;
	int n = 0;
	while (n < max) {
		field[n++] = s;
		char *c = strchr(s, ':');
		if (!c || n == max)
			break;
		*c = 0;
		s = c + 1;
	}
	return n;
}

static int number(const char *s, uint32_t *v)
{
	uint64_t x = 0;
	if (!*s)
		return 0;
	for (; *s; s++) {
		if (*s < '0' || *s > '9' || (x = x * 10 + (*s - '0')) > 0x7fffffff)
			return 0;
	}
	*v = x;
	return 1;
}

static void add_group(struct user *u, gid_t g)
{
	for (uint32_t i = 0; i < u->ngroups; i++)
		if (u->groups[i] == g)
			return;
	if (u->ngroups < sizeof u->groups / sizeof *u->groups)
		u->groups[u->ngroups++] = g;
}

static void put_first(struct user *u, gid_t g)
{
	uint32_t i = 0;
	while (i < u->ngroups && u->groups[i] != g)
		i++;
	if (i == u->ngroups) {
		if (u->ngroups < sizeof u->groups / sizeof *u->groups)
			u->ngroups++;
		else
			i--;
	}
	memmove(u->groups + 1, u->groups, i * sizeof *u->groups);
	u->groups[0] = g;
}

// user[:group], names or numbers, against the image's own passwd and group. The list
// of groups has the primary one first, then those of the image unless strict, then
// extra: clients of CRI see it in the container's status.
int resolve_user(struct user *u, const char *spec, const uint32_t *extra, uint32_t nextra, int64_t gid, int strict, const char **missing)
{
	static char user[256];
	char *group = NULL, name[256] = "", *f[8];
	uint32_t v;
	if (strlen(spec) >= sizeof user)
		return errno = ENAMETOOLONG, -1;
	strcpy(user, spec);
	if ((group = strchr(user, ':')))
		*group++ = 0;
	int numeric = number(*user ? user : "0", &v), found = 0;
	u->uid = numeric ? v : 0;
	u->gid = 0;
	struct file pw = slurp("/etc/passwd");
	for (int n; (n = next(&pw, f, 7)) >= 0;) {
		uint32_t id, g;
		if (n < 4 || !number(f[2], &id) || !number(f[3], &g) || (numeric ? id != u->uid : strcmp(f[0], user)))
			continue;
		u->uid = id;
		u->gid = g;
		found = 1;
		if (strlen(f[0]) < sizeof name)
			strcpy(name, f[0]);
		if (n > 5 && strlen(f[5]) < sizeof u->home)
			strcpy(u->home, f[5]);
		break;
	}
	if (!found && !numeric)
		return *missing = user, 1;
	int gfound = !group || !*group;
	if (!gfound && number(group, &v))
		u->gid = v, gfound = 1;
	if (gid >= 0)
		u->gid = gid, gfound = 1;
	if (!strict || !gfound) {
		struct file gr = slurp("/etc/group");
		for (int n; (n = next(&gr, f, 4)) >= 0;) {
			uint32_t g;
			if (n < 3 || !number(f[2], &g))
				continue;
			if (!gfound && !strcmp(f[0], group))
				u->gid = g, gfound = 1;
			if (n < 4 || strict || !*name)
				continue;
			for (char *m = f[3], *e; m; m = e ? e + 1 : NULL) {
				if ((e = strchr(m, ',')))
					*e = 0;
				if (!strcmp(m, name))
					add_group(u, g);
			}
		}
	}
	if (!gfound)
		return *missing = group, 2;
	for (uint32_t i = 0; i < nextra; i++)
		add_group(u, extra[i]);
	put_first(u, u->gid); // CRI: the primary group is among the supplementary ones
	return 0;
}

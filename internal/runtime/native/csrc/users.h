// Who a process becomes.
#ifndef CAROB_USERS_H
#define CAROB_USERS_H

#include <stdint.h>
#include <sys/types.h>

struct user {
	uid_t uid;
	gid_t gid;
	gid_t groups[1024];
	uint32_t ngroups;
	char home[256];
};

// resolve_user reads user[:group] (see users.c). 0: done, -1: errno tells; 1 or
// 2: there is no such user or group, *missing.
int resolve_user(struct user *u, const char *spec, const uint32_t *extra, uint32_t nextra, int64_t gid, int strict, const char **missing);

#endif

package native

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// identity is who a container's process is.
type identity struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"` // the primary one first
}

// wantedUser is who a container asks to be, by names and numbers.
type wantedUser struct {
	spec   string // user[:group]; "" is user 0
	gid    int64  // of the primary group; -1 leaves it to spec and the image
	extra  []int64
	strict bool // memberships of the image's group file don't count
}

// resolveUser finds the user in the image's own passwd and group files, and its
// home directory ("" when the image does not know it). The list of groups has the
// primary one first, then those of the image unless strict, then extra: clients of
// CRI see it in the container's status.
func resolveUser(passwd, group []byte, w wantedUser) (id *identity, home string, err error) {
	user, groupName, _ := strings.Cut(w.spec, ":")
	if user == "" {
		user = "0"
	}
	uid, numeric := userNumber(user)
	id = &identity{UID: uid}
	found, name := false, ""
	for f := range colonLines(passwd, 4) {
		u, ok1 := userNumber(f[2])
		g, ok2 := userNumber(f[3])
		if !ok1 || !ok2 || numeric && u != uid || !numeric && f[0] != user {
			continue
		}
		found, name, id.UID, id.GID = true, f[0], u, g
		if len(f) > 5 {
			home = f[5]
		}
		break
	}
	if !found && !numeric {
		return nil, "", fmt.Errorf("unable to find user %s: no matching entries in passwd file", user)
	}
	groupFound := groupName == ""
	if g, ok := userNumber(groupName); ok {
		id.GID, groupFound = g, true
	}
	if w.gid >= 0 {
		id.GID, groupFound = uint32(w.gid), true
	}
	for f := range colonLines(group, 3) {
		g, ok := userNumber(f[2])
		if !ok {
			continue
		}
		if !groupFound && f[0] == groupName {
			id.GID, groupFound = g, true
		}
		if !w.strict && name != "" && len(f) > 3 && slices.Contains(strings.Split(f[3], ","), name) && !slices.Contains(id.Groups, g) {
			id.Groups = append(id.Groups, g)
		}
	}
	if !groupFound {
		return nil, "", fmt.Errorf("unable to find group %s: no matching entries in group file", groupName)
	}
	for _, g := range w.extra {
		if !slices.Contains(id.Groups, uint32(g)) {
			id.Groups = append(id.Groups, uint32(g))
		}
	}
	id.Groups = slices.DeleteFunc(id.Groups, func(g uint32) bool { return g == id.GID })
	id.Groups = slices.Insert(id.Groups, 0, id.GID) // CRI: the primary group is among the supplementary ones
	return id, home, nil
}

// userNumber reads an id: decimal digits, within 31 bits.
func userNumber(s string) (uint32, bool) {
	if s == "" || s[0] < '0' || s[0] > '9' {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 31)
	return uint32(n), err == nil
}

// colonLines are the lines that have at least so many fields.
func colonLines(file []byte, fields int) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		for line := range bytes.SplitSeq(file, []byte("\n")) {
			if f := strings.Split(string(line), ":"); len(f) >= fields && !yield(f) {
				return
			}
		}
	}
}

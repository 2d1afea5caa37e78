package plan

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Identity is the user and the groups of a container's process.
type Identity struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"` // the primary one first
}

// wantedUser is the user that a container requests, by names and numbers.
type wantedUser struct {
	Spec   string // user[:group]; "" is user 0
	GID    int64  // primary group; -1 if spec or the image decide
	extra  []int64
	strict bool // ignore the group memberships in the image's files
}

// resolveUser finds the user in the image's own passwd and group files, and its home directory (""
// if the image does not have it). In the list of groups the primary one is first, then come those
// of the image unless strict, then extra: clients of CRI see it in the container's status.
func resolveUser(passwd, group []byte, w wantedUser) (id *Identity, home string, err error) {
	passwd, ofPasswd := wholeLines(passwd)
	group, ofGroup := wholeLines(group)
	user, groupName, _ := strings.Cut(w.Spec, ":")
	if user == "" {
		user = "0"
	}
	if err := w.check(); err != nil {
		return nil, "", err
	}
	uid, numeric := userNumber(user)
	id = &Identity{UID: uid}
	found, name := false, ""
	for f := range colonLines(passwd, 4) {
		u, ok1 := userNumber(f[2])
		g, ok2 := userNumber(f[3])
		if numeric && (!ok1 || u != uid) || !numeric && f[0] != user {
			continue
		}
		if !ok1 || !ok2 {
			return nil, "", fmt.Errorf("the image's passwd file gives user %s the ids %q and %q: %w", user, f[2], f[3],
				ErrIDRange)
		}
		found, name, id.UID, id.GID = true, f[0], u, g
		if len(f) > 5 && !strings.Contains(f[5], "\x00") {
			home = f[5]
		}
		break
	}
	if !found && !numeric {
		return nil, "", fmt.Errorf("unable to find user %s: no matching entries in %spasswd file", user, ofPasswd)
	}
	groupFound := groupName == ""
	if g, ok := userNumber(groupName); ok {
		id.GID, groupFound = g, true
	}
	if w.GID >= 0 {
		id.GID, groupFound = uint32(w.GID), true
	}
	for f := range colonLines(group, 3) {
		named := !groupFound && f[0] == groupName
		member := !w.strict && name != "" && len(f) > 3 && slices.Contains(strings.Split(f[3], ","), name)
		if !named && !member {
			continue
		}
		g, ok := userNumber(f[2])
		if !ok {
			return nil, "", fmt.Errorf("the image's group file gives group %s the id %q: %w", f[0], f[2], ErrIDRange)
		}
		if named {
			id.GID, groupFound = g, true
		}
		if member && !slices.Contains(id.Groups, g) {
			id.Groups = append(id.Groups, g)
		}
	}
	if !groupFound {
		return nil, "", fmt.Errorf("unable to find group %s: no matching entries in %sgroup file", groupName, ofGroup)
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

// MaxFile is how many bytes of a file the helper sends (MAX_FILE of csrc/helper.c); the rest is cut off.
const MaxFile = 4 << 20

// wholeLines removes the last line of a file that may have been cut off: half a number is another user. which says in
// errors which part of the file is known.
func wholeLines(file []byte) (lines []byte, which string) {
	if len(file) < MaxFile {
		return file, ""
	}
	return file[:bytes.LastIndexByte(file, '\n')+1], "the first 4 MiB of the "
}

// ErrIDRange rejects a number that is not a valid user or group ID. The kernel uses 32 bits of it
// and would see another one: root, for 4294967296.
var ErrIDRange = errors.New("ids are numbers from 0 to 2147483647")

// check rejects invalid IDs, in whatever form they are given.
func (w wantedUser) check() error {
	user, group, _ := strings.Cut(w.Spec, ":")
	for _, s := range []string{user, group} {
		if _, ok := userNumber(s); !ok && isNumber(s) {
			return fmt.Errorf("user or group %s: %w", s, ErrIDRange)
		}
	}
	for _, g := range append([]int64{max(w.GID, 0)}, w.extra...) {
		if g < 0 || g > math.MaxInt32 {
			return fmt.Errorf("group %d: %w", g, ErrIDRange)
		}
	}
	return nil
}

// isNumber reports whether a user or group is meant as a number: digits, maybe with a sign.
func isNumber(s string) bool {
	s = strings.TrimLeft(s, "+-")
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// userNumber parses an ID: decimal digits, within 31 bits.
func userNumber(s string) (uint32, bool) {
	if s == "" || s[0] < '0' || s[0] > '9' {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 31)
	return uint32(n), err == nil
}

// colonLines returns the lines that have at least so many fields.
func colonLines(file []byte, fields int) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		for line := range bytes.SplitSeq(file, []byte("\n")) {
			if f := strings.Split(string(line), ":"); len(f) >= fields && !yield(f) {
				return
			}
		}
	}
}

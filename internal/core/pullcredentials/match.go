package pullcredentials

import (
	"path"
	"strings"
)

// Matches reports whether a pattern of a registry, and optionally a path, matches a repository,
// such as registry.example.com/team/app: an asterisk matches a part of one label of the host,
// ports must be equal, and the path is a prefix (S13.5).
func Matches(pattern, repository string) bool {
	patternHost, patternPath, _ := strings.Cut(pattern, "/")
	host, rest, _ := strings.Cut(repository, "/")
	return HostMatches(patternHost, host) && strings.HasPrefix(rest, patternPath)
}

// HostMatches compares label by label, so that * never spans a dot; the ports must be equal.
func HostMatches(pattern, host string) bool {
	patternName, patternPort, _ := strings.Cut(pattern, ":")
	hostName, hostPort, _ := strings.Cut(host, ":")
	want, have := strings.Split(patternName, "."), strings.Split(hostName, ".")
	if patternPort != hostPort || len(want) != len(have) {
		return false
	}
	for i := range want {
		if ok, err := path.Match(want[i], have[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

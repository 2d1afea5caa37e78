package pods

import (
	"strings"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
)

// DefaultPullPolicy is Always for the tag "latest", explicit or implied. For another tag, a digest,
// or an invalid image name it is IfNotPresent (L1.15).
func DefaultPullPolicy(image string) corev1.PullPolicy {
	name, _, digested := strings.Cut(image, "@")
	last := strings.LastIndexByte(name, '/') + 1
	own, tag, tagged := strings.Cut(name[last:], ":")
	if tagged && tag != "latest" || digested && !tagged {
		return corev1.PullIfNotPresent // also for an invalid name
	}
	if !digested && plainImage(name[:last+len(own)]) {
		return corev1.PullAlways
	}
	if _, err := reference.ParseNormalizedNamed(image); err != nil {
		return corev1.PullIfNotPresent
	}
	return corev1.PullAlways
}

// plainImage reports whether an image name without tag and digest is valid for certain: it has lower case letters,
// digits, and single separators between them, and its registry may have a port. One of 64 bytes could be an image's
// identifier, and one of more than 255 would be too long. The library's regular expressions decide about all other
// names.
func plainImage(name string) bool {
	if len(name) == 64 || len(name) > 200 {
		return false
	}
	host, path, registry := strings.Cut(name, "/")
	if host, port, ported := strings.Cut(host, ":"); ported {
		return registry && len(port) > 0 && strings.Trim(port, "0123456789") == "" &&
			plainPart(host, ".-") && plainPart(path, "._-/")
	}
	return plainPart(name, "._-/")
}

// plainPart reports whether s has lower case letters and digits, with single separators between them.
func plainPart(s, separators string) bool {
	inside := false // the last character was no separator
	for i := range len(s) {
		c := s[i]
		alphanumeric := 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
		if !alphanumeric && (!inside || strings.IndexByte(separators, c) < 0) {
			return false
		}
		inside = alphanumeric
	}
	return inside
}

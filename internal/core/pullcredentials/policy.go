package pullcredentials

import (
	"fmt"
	"slices"
	"strings"
)

// Values of imagePullCredentialsVerificationPolicy (S11.28).
const (
	NeverVerify                  = "NeverVerify"
	NeverVerifyPreloadedImages   = "NeverVerifyPreloadedImages"
	NeverVerifyAllowlistedImages = "NeverVerifyAllowlistedImages"
	AlwaysVerify                 = "AlwaysVerify"
)

// Policy decides for which present images a pod must have credentials. The zero value is NeverVerifyPreloadedImages.
type Policy struct {
	mode     string
	names    []string // of images that need none
	prefixes []string // of such names
}

// NewPolicy returns the policy of a configuration; an empty mode is the default. The allowlist has names of images
// without tag and digest, and prefixes that end with "/*".
func NewPolicy(mode string, allowlist []string) (Policy, error) {
	p := Policy{mode: mode}
	switch mode {
	case "", NeverVerify, NeverVerifyPreloadedImages, AlwaysVerify:
		if len(allowlist) > 0 {
			return Policy{}, fmt.Errorf("can't set `preloadedImagesVerificationAllowlist` if "+
				"`imagePullCredentialsVertificationPolicy` is not %q", NeverVerifyAllowlistedImages)
		}
	case NeverVerifyAllowlistedImages:
	default:
		return Policy{}, fmt.Errorf("option %q specified for imagePullCredentialsVerificationPolicy. Valid options are "+
			"%q, %q, %q or %q", mode, NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages,
			AlwaysVerify)
	}
	for _, pattern := range allowlist {
		prefix, wild := strings.CutSuffix(pattern, "*")
		var problem string
		switch {
		case pattern != strings.TrimSpace(pattern):
			problem = "leading/trailing spaces are not allowed"
		case wild && prefix == "/":
			problem = "at least registry hostname is required"
		case wild && !strings.HasSuffix(prefix, "/") || strings.Contains(prefix, "*"):
			problem = "not a valid wildcard pattern, only patterns ending with '/*' are allowed"
		case !imageName(strings.TrimSuffix(prefix, "/")) || !wild && strings.HasSuffix(prefix, "/"):
			problem = "failed to parse as an image name"
		case !wild && untagged(pattern) != pattern:
			problem = "neither tag nor digest is accepted in an image reference"
		}
		if problem != "" {
			return Policy{}, fmt.Errorf("invalid image pattern in `preloadedImagesVerificationAllowlist`: %s: %.128q",
				problem, pattern)
		}
		if wild {
			p.prefixes = append(p.prefixes, prefix)
		} else {
			p.names = append(p.names, pattern)
		}
	}
	return p, nil
}

// Verifies reports whether a pod needs credentials for an image that is present. Image is the name in the pod's spec;
// pulled is true if the agent has a record of a pull of it.
func (p Policy) Verifies(image string, pulled bool) bool {
	switch p.mode {
	case NeverVerify:
		return false
	case AlwaysVerify:
		return true
	case NeverVerifyAllowlistedImages:
		name := untagged(image)
		return !slices.Contains(p.names, name) &&
			!slices.ContainsFunc(p.prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	}
	return pulled
}

// VerifiesUnknown reports whether images without a record may need credentials. Then pulls without credentials need
// records, too.
func (p Policy) VerifiesUnknown() bool {
	return p.mode == AlwaysVerify || p.mode == NeverVerifyAllowlistedImages
}

// untagged is the name of an image without tag and digest.
func untagged(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		image = image[:i]
	}
	return image
}

// imageName reports whether a text can be the name of an image, or its beginning.
func imageName(s string) bool {
	for step := range strings.SplitSeq(s, "/") {
		if step == "" {
			return false
		}
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !letter && !strings.ContainsRune("._-:/@[]", r)
	})
}

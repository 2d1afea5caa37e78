package pullcredentials

import (
	"strings"
	"testing"
)

// S11.28: which present images need credentials of the pod.
func TestPolicy(t *testing.T) {
	const image = "reg.example.com/team/app:1"
	for _, c := range []struct {
		mode, allow, image string
		pulled, preloaded  bool // whether credentials are needed
	}{
		{"", "", image, true, false},
		{NeverVerifyPreloadedImages, "", image, true, false},
		{NeverVerify, "", image, false, false},
		{AlwaysVerify, "", image, true, true},
		{NeverVerifyAllowlistedImages, "", image, true, true},
		{NeverVerifyAllowlistedImages, "reg.example.com/team/app", image, false, false},
		{NeverVerifyAllowlistedImages, "reg.example.com/team/app", image + "@sha256:" + strings.Repeat("0", 64),
			false, false},
		{NeverVerifyAllowlistedImages, "reg.example.com/team/app", "reg.example.com/team/app2", true, true},
		{NeverVerifyAllowlistedImages, "reg.example.com/team/*", image, false, false},
		{NeverVerifyAllowlistedImages, "reg.example.com/*", image, false, false},
		{NeverVerifyAllowlistedImages, "reg.example.com/*", "reg.example.com.evil.org/team/app", true, true},
		{NeverVerifyAllowlistedImages, "reg.example.com:5000/*", "reg.example.com:5000/app", false, false},
		{NeverVerifyAllowlistedImages, "app", "app:1", false, false},
		{NeverVerifyAllowlistedImages, "app", "docker.io/library/app", true, true}, // by the name in the spec
	} {
		p, err := NewPolicy(c.mode, strings.Fields(c.allow))
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if p.Verifies(c.image, true) != c.pulled || p.Verifies(c.image, false) != c.preloaded {
			t.Errorf("%+v: pulled %v, preloaded %v", c, p.Verifies(c.image, true), p.Verifies(c.image, false))
		}
		if c.preloaded && !p.VerifiesUnknown() {
			t.Errorf("%+v: pulls leave no record", c)
		}
	}
}

func TestInvalidPolicy(t *testing.T) {
	for _, c := range [][3]string{
		{"Sometimes", "", "Valid options are"},
		{AlwaysVerify, "a", "can't set"}, {"", "a", "can't set"},
		{NeverVerifyAllowlistedImages, "*", "only patterns ending with '/*'"},
		{NeverVerifyAllowlistedImages, "a*", "only patterns ending with '/*'"},
		{NeverVerifyAllowlistedImages, "a/*/b", "only patterns ending with '/*'"},
		{NeverVerifyAllowlistedImages, "a/*/*", "only patterns ending with '/*'"},
		{NeverVerifyAllowlistedImages, "/*", "registry hostname"},
		{NeverVerifyAllowlistedImages, " a", "spaces"}, {NeverVerifyAllowlistedImages, "a b", "image name"},
		{NeverVerifyAllowlistedImages, "a//b", "image name"}, {NeverVerifyAllowlistedImages, "a/", "image name"},
		{NeverVerifyAllowlistedImages, "a:1", "neither tag nor digest"},
		{NeverVerifyAllowlistedImages, "a@sha256:0", "neither tag nor digest"},
		{NeverVerifyAllowlistedImages, "a\x00", "image name"},
	} {
		var allow []string
		if c[1] != "" {
			allow = []string{c[1]}
		}
		if _, err := NewPolicy(c[0], allow); err == nil || !strings.Contains(err.Error(), c[2]) {
			t.Errorf("%q: %v", c, err)
		}
	}
}

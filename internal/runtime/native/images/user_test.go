package images

import (
	"math"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// The user of an image is reported as a number only if the kernel can hold it: the agent accepts
// every number but 0 for a pod that must not run as root.
func TestUserOfImage(t *testing.T) {
	for user, want := range map[string]struct {
		uid  int64 // -1: none
		name string
	}{
		"": {-1, ""}, "0": {0, ""}, "0:0": {0, ""}, "00": {0, ""}, "1000": {1000, ""}, "1000:4294967296": {1000, ""},
		"2147483647": {math.MaxInt32, ""},
		"www-data":   {-1, "www-data"}, ":5": {-1, ""},
		"2147483648": {-1, "2147483648"}, "4294967296": {-1, "4294967296"},
		"18446744073709551616": {-1, "18446744073709551616"},
		"-1":                   {-1, "-1"}, "+0": {-1, "+0"}, "+7": {-1, "+7"}, "0x0": {-1, "0x0"}, "1_0": {-1, "1_0"},
		" 0": {-1, " 0"},
	} {
		im := (&Store{}).describe(&record{config: imagespec.Image{Config: imagespec.ImageConfig{User: user}}})
		uid := int64(-1)
		if im.Uid != nil {
			uid = im.Uid.Value
		}
		if uid != want.uid || im.Username != want.name {
			t.Errorf("%q: uid %d, name %q, want %d, %q", user, uid, im.Username, want.uid, want.name)
		}
	}
}

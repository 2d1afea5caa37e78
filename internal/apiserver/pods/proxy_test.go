package pods

import "testing"

// An empty path stays empty, for then the proxy redirects GET and HEAD to the address with a slash.
func TestJoinPath(t *testing.T) {
	for in, want := range map[string]string{"": "", "/": "/", "/a": "/a", "/a/": "/a/", "/../a/./b/": "/a/b/"} {
		if got := joinPath(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

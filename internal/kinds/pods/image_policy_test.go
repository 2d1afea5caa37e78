package pods

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
)

// libraryPolicy is the default pull policy as the image library's regular expressions decide.
func libraryPolicy(image string) corev1.PullPolicy {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return corev1.PullIfNotPresent
	}
	tagged, hasTag := named.(reference.Tagged)
	_, digested := named.(reference.Digested)
	if hasTag && tagged.Tag() != "latest" || digested && !hasTag {
		return corev1.PullIfNotPresent
	}
	return corev1.PullAlways
}

// L1.15
func TestPullPolicyIsThatOfTheLibrary(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("0", 64)
	parts := []string{
		"a", "app", "A", "0", "docker.io", "index.docker.io", "localhost", "library", "registry.example", "[::1]", "xn--a",
		"/", ":", "@", ".", "..", "-", "_", "__", "___", "5000", "latest", ":latest", "1.37", digest, "@sha256:00", " ",
		"\n", "\x00", "é", "İ", strings.Repeat("a", 64), strings.Repeat("a", 63), strings.Repeat("b/", 120),
	}
	random := rand.New(rand.NewPCG(1, 2))
	answers := map[corev1.PullPolicy]int{}
	for range 4_000 {
		var image strings.Builder
		for range 1 + random.IntN(8) {
			image.WriteString(parts[random.IntN(len(parts))])
		}
		want := libraryPolicy(image.String())
		if got := DefaultPullPolicy(image.String()); got != want {
			t.Fatalf("%q: %s, want %s", image.String(), got, want)
		}
		answers[want]++
	}
	if answers[corev1.PullAlways] < 200 {
		t.Errorf("%v: too few names were valid", answers)
	}
}

// L1.15
func FuzzPullPolicy(f *testing.F) {
	for _, image := range []string{
		"", "nginx", "nginx:latest", "host:5000/team/app", "[::1]:5000/app", "a:b:c", "a/:latest", "a__b/c--d", "A/b",
		"a:", "a@", ":latest", "host:/app", "host:5:6/app", strings.Repeat("a", 64),
		"app:latest@sha256:" + strings.Repeat("0", 64),
	} {
		f.Add(image)
	}
	f.Fuzz(func(t *testing.T, image string) {
		if got, want := DefaultPullPolicy(image), libraryPolicy(image); got != want {
			t.Errorf("%q: %s, want %s", image, got, want)
		}
	})
}

func BenchmarkPullPolicy(b *testing.B) {
	for _, image := range []string{"nginx", "registry.example:5000/team/app:latest", "docker.io/library/busybox:1.37"} {
		b.Run(image, func(b *testing.B) {
			for b.Loop() {
				DefaultPullPolicy(image)
			}
		})
	}
}

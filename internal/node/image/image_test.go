package image

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// registry is a runtime whose pulls take a second and need the password of their host.
type registry struct {
	mu        sync.Mutex
	passwords map[string]string // by image; none: anonymous
	running   int
	most      int
	pulls     []string // name user:password
	aborted   int
	fail      error
}

func (r *registry) ImageStatus(_ context.Context, req *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error) {
	if req.Image.Image == "sha256:ref" {
		return &cri.ImageStatusResponse{Image: &cri.Image{Id: "sha256:ref", Size: 77}}, nil
	}
	return &cri.ImageStatusResponse{}, nil
}

func (r *registry) PullImage(ctx context.Context, req *cri.PullImageRequest) (*cri.PullImageResponse, error) {
	r.mu.Lock()
	r.running++
	r.most = max(r.most, r.running)
	r.pulls = append(r.pulls, fmt.Sprintf("%s %s:%s", req.Image.Image, req.GetAuth().GetUsername(),
		req.GetAuth().GetPassword()))
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.running--
		r.mu.Unlock()
	}()
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		r.mu.Lock()
		r.aborted++
		r.mu.Unlock()
		return nil, ctx.Err()
	}
	if r.fail != nil {
		return nil, r.fail
	}
	if want := r.passwords[req.Image.Image]; want != req.GetAuth().GetPassword() {
		return nil, errors.New("unauthorized")
	}
	return &cri.PullImageResponse{ImageRef: "sha256:ref"}, nil
}

type secrets map[string]*corev1.Secret

func (s secrets) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	if secret := s[name]; secret != nil {
		return secret, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
}

func dockerSecret(name, registry, user, password string) *corev1.Secret {
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, registry,
			auth)},
	}
}

func podWith(secrets ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}}
	for _, s := range secrets {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
	}
	return p
}

func manager(r *registry, s secrets, pulls int) (*Manager, *[]string) {
	events := &[]string{}
	m, err := New(Config{Runtime: r, Secrets: s, MaxPulls: pulls,
		Event: func(_ *corev1.Pod, _, reason, message string) {
			*events = append(*events, reason+": "+message)
		}})
	if err != nil {
		panic(err) // nothing is read without a directory
	}
	return m, events
}

// Credentials are tried until one fits, the most specific one first.
func TestCredentials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &registry{passwords: map[string]string{"reg.example.com/team/app:1": "right"}}
		m, _ := manager(r, secrets{
			"wrong": dockerSecret("wrong", "https://reg.example.com/v2/", "u", "wrong"),
			"right": dockerSecret("right", "*.example.com", "u", "right"),
			"other": dockerSecret("other", "elsewhere.example.com", "u", "other"),
			"deep":  dockerSecret("deep", "reg.example.com/team", "u", "deep"),
		}, 5)
		pulled, f := m.Pull(t.Context(), podWith("wrong", "right", "other", "deep"), "reg.example.com/team/app:1", nil)
		if f != nil || pulled.Ref != "sha256:ref" || pulled.Size != 77 {
			t.Fatalf("%+v, %+v", pulled, f)
		}
		want := "reg.example.com/team/app:1 u:deep, reg.example.com/team/app:1 u:wrong, reg.example.com/team/app:1 u:right"
		if got := strings.Join(r.pulls, ", "); got != want {
			t.Errorf("pulls %s\nwant  %s", got, want)
		}
	})
}

// Without credentials the pull is anonymous; missing secrets are reported when it fails (L10.33).
func TestMissingSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &registry{passwords: map[string]string{"docker.io/library/app:latest": "x"}}
		m, events := manager(r, secrets{}, 5)
		_, f := m.Pull(t.Context(), podWith("a", "b"), "app", nil)
		if f == nil || f.Reason != "ErrImagePull" || f.Message != "unauthorized" {
			t.Errorf("%+v", f)
		}
		want := "FailedToRetrieveImagePullSecret: Unable to retrieve some image pull secrets (a, b); attempting to pull the image may not succeed."
		if len(*events) != 1 || (*events)[0] != want {
			t.Errorf("events %v", *events)
		}
	})
}

// No more pulls run at one time than allowed (L0.47); waiting counts into Waited.
func TestMaxPulls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &registry{}
		m, _ := manager(r, nil, 2)
		var all sync.WaitGroup
		var longest time.Duration
		var mu sync.Mutex
		for i := range 6 {
			all.Go(func() {
				p, f := m.Pull(t.Context(), podWith(), fmt.Sprintf("app%d", i), nil)
				if f != nil || p.Took != time.Second {
					t.Errorf("%+v, %+v", p, f)
					return
				}
				mu.Lock()
				longest = max(longest, p.Waited)
				mu.Unlock()
			})
		}
		all.Wait()
		if r.most != 2 || longest != 3*time.Second {
			t.Errorf("%d at one time, the longest waited %v", r.most, longest)
		}
	})
}

// A pull without waiters is aborted; the next one starts over.
func TestAbort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &registry{}
		m, _ := manager(r, nil, 1)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if _, f := m.Pull(ctx, podWith(), "app", nil); f == nil {
					t.Error("a cancelled pull succeeded")
				}
			})
		}
		synctest.Wait()
		cancel()
		all.Wait()
		if _, f := m.Pull(t.Context(), podWith(), "app", nil); f != nil {
			t.Errorf("%+v", f)
		}
		if r.aborted != 1 || len(r.pulls) != 2 {
			t.Errorf("%d aborted of %v", r.aborted, r.pulls)
		}
	})
}

// Reasons of failures (L3.102, L3.108, L3.110, L3.111).
func TestFailures(t *testing.T) {
	for _, tt := range []struct{ image, err, reason, message string }{
		{"app", "not found", "ErrImagePull", "not found"},
		{"app", "rpc error: RegistryUnavailable: no route", "RegistryUnavailable",
			"image pull failed for app because the registry is unavailable: no route"},
		{"app", "SignatureValidationFailed", "SignatureValidationFailed",
			"image pull failed for app because the signature validation failed"},
		{"App", "", "InvalidImageName", `Failed to apply default image tag "App": couldn't parse image name "App": `},
	} {
		synctest.Test(t, func(t *testing.T) {
			m, _ := manager(&registry{fail: errors.New(tt.err)}, nil, 1)
			_, f := m.Pull(t.Context(), podWith(), tt.image, nil)
			if f == nil || f.Reason != tt.reason || !strings.HasPrefix(f.Message, tt.message) {
				t.Errorf("%s: %+v", tt.image, f)
			}
		})
	}
}

func TestNormalize(t *testing.T) {
	for name, want := range map[string]string{
		"nginx": "docker.io/library/nginx:latest", "a/b:1": "docker.io/a/b:1",
		"localhost:5000/x":                    "localhost:5000/x:latest",
		"x@sha256:" + strings.Repeat("0", 64): "docker.io/library/x@sha256:" + strings.Repeat("0", 64),
	} {
		if got, err := Normalize(name); err != nil || got != want {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}

// A key of a docker configuration, in all its spellings.
func TestSplitRegistry(t *testing.T) {
	for in, want := range map[string]string{
		"https://index.docker.io/v1/": "docker.io|", "registry-1.docker.io": "docker.io|",
		"http://r.io/v2/team": "r.io|team", "r.io:5000/a/b/": "r.io:5000|a/b",
	} {
		if host, path := splitRegistry(in); host+"|"+path != want {
			t.Errorf("%s: %s|%s, want %s", in, host, path, want)
		}
	}
}

package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/pullcredentials"
)

// store is a runtime that keeps what it pulled; each image needs a password, or none.
type store struct {
	passwords map[string]string
	here      map[string]bool // by name
	crash     error           // pulls bring the image and then fail
}

func (s *store) ImageStatus(_ context.Context, req *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error) {
	if name := req.Image.Image; s.here[name] || s.here[name[min(len(name), len("sha256:")):]] {
		return &cri.ImageStatusResponse{Image: &cri.Image{Id: "sha256:" + name}}, nil
	}
	return &cri.ImageStatusResponse{}, nil
}

func (s *store) PullImage(_ context.Context, req *cri.PullImageRequest) (*cri.PullImageResponse, error) {
	name := req.Image.Image
	if want := s.passwords[name]; want != "" && want != req.GetAuth().GetPassword() {
		return nil, errors.New("unauthorized")
	}
	s.here[name] = true
	return &cri.PullImageResponse{ImageRef: name}, s.crash
}

func tenant(uid string, secrets ...string) *corev1.Pod {
	p := podWith(secrets...)
	p.UID = types.UID(uid)
	return p
}

const private = "reg.example.com/app:1"

// L3.114
func TestPulledImageNeedsItsCredentials(t *testing.T) {
	s := &store{passwords: map[string]string{private: "right"},
		here: map[string]bool{"reg.example.com/preloaded:1": true}}
	dir := t.TempDir()
	all := secrets{
		"right": dockerSecret("right", "reg.example.com", "u", "right"),
		"copy":  dockerSecret("copy", "reg.example.com", "u", "right"),
		"wrong": dockerSecret("wrong", "reg.example.com", "u", "wrong"),
	}
	for name, secret := range all {
		secret.Namespace, secret.UID = "default", types.UID(name)
	}
	open := func() *Manager {
		t.Helper()
		m, err := New(Config{Runtime: s, Secrets: all, MaxPulls: 1, Records: dir,
			Event: func(*corev1.Pod, string, string, string) {}})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	present := func(m *Manager, pod *corev1.Pod, image string) bool {
		t.Helper()
		st := m.State(t.Context(), pod, image)
		if st.Err != "" || st.InvalidName != "" {
			t.Fatalf("%+v", st)
		}
		return st.Ref != ""
	}
	m := open()
	if !present(m, tenant("stranger"), "reg.example.com/preloaded:1") {
		t.Error("an image that nobody pulled is refused")
	}
	if _, f := m.Pull(t.Context(), tenant("owner", "right"), private, nil); f != nil {
		t.Fatal(f)
	}
	for _, m := range []*Manager{m, open()} { // and after a restart
		for _, x := range []struct {
			pod  *corev1.Pod
			want bool
		}{
			{tenant("owner", "right"), true}, {tenant("friend", "copy"), true}, {tenant("stranger"), false},
			{tenant("liar", "wrong"), false},
		} {
			if got := present(m, x.pod, private); got != x.want {
				t.Errorf("%s: present %t, want %t", x.pod.UID, got, x.want)
			}
		}
	}
	if _, f := m.Pull(t.Context(), tenant("liar", "wrong"), private, nil); f == nil {
		t.Error("a pull with the wrong password succeeds")
	}
	if present(m, tenant("liar", "wrong"), private) {
		t.Error("a failed pull opens the image")
	}
	// The registry opens it for everybody.
	s.passwords = nil
	if _, f := m.Pull(t.Context(), tenant("stranger"), private, nil); f != nil {
		t.Fatal(f)
	}
	if !present(m, tenant("another"), private) || !present(open(), tenant("another"), private) {
		t.Error("an image that anybody can pull is refused")
	}
}

// An agent that ends between the end of a pull and its record does not make the image free.
func TestPullWithoutRecord(t *testing.T) {
	dir := t.TempDir()
	r, err := openRecords(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.begin(private); err != nil {
		t.Fatal(err)
	}
	if r, err = openRecords(dir); err != nil { // the crash
		t.Fatal(err)
	}
	if !r.pulled(private, "sha256:x") || !r.pulled("reg.example.com/app:2", "sha256:x") || r.open(private, "sha256:x") ||
		r.pulled("reg.example.com/other:1", "sha256:x") {
		t.Error("what the pull brought is free, or other things are not")
	}
	if err := r.begin(private); err != nil {
		t.Fatal(err)
	}
	with := credential{Name: "s", Hash: "h"}
	for range 2 {
		if err := r.end(private, "sha256:x", with); err != nil {
			t.Fatal(err)
		}
	}
	if !r.pulled(private, "sha256:x") || r.open(private, "sha256:x") || r.pulled(private, "sha256:y") ||
		!r.allows(private, "sha256:x", []credential{with}) {
		t.Error("after the record it is not the record that counts")
	}
}

func TestRecordsOfImagesThatAreGone(t *testing.T) {
	dir := t.TempDir()
	r, err := openRecords(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"sha256:a", "sha256:b"} {
		if err := errors.Join(r.begin(private), r.end(private, id, credential{Hash: id})); err != nil {
			t.Fatal(err)
		}
		r.images[id].Time = r.images[id].Time.Add(-recordAge)
	}
	if err := r.prune([]*cri.Image{{Id: "sha256:b"}}); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 || r.images["sha256:a"] != nil ||
		r.images["sha256:b"] == nil {
		t.Errorf("%v %v %v", entries, err, r.images)
	}
}

// Each policy decides about images that are present (S11.28): of an unknown origin, pulled without
// credentials, and pulled with credentials. A pull that the policy demands opens the image.
func TestPolicies(t *testing.T) {
	const preloaded, public = "reg.example.com/preloaded:1", "reg.example.com/public:1"
	key := dockerSecret("right", "reg.example.com", "u", "right")
	key.Namespace, key.UID = "default", "right"
	for _, c := range []struct {
		mode      string
		allow     []string
		preloaded bool // a pod without credentials may use it
		private   bool
	}{
		{pullcredentials.NeverVerifyPreloadedImages, nil, true, false},
		{pullcredentials.NeverVerify, nil, true, true},
		{pullcredentials.AlwaysVerify, nil, false, false},
		{pullcredentials.NeverVerifyAllowlistedImages, []string{"reg.example.com/preloaded"}, true, false},
		{pullcredentials.NeverVerifyAllowlistedImages, []string{"reg.example.com/app"}, false, true},
	} {
		policy, err := pullcredentials.NewPolicy(c.mode, c.allow)
		if err != nil {
			t.Fatal(err)
		}
		s := &store{passwords: map[string]string{private: "right"}, here: map[string]bool{preloaded: true}}
		dir := t.TempDir()
		open := func() *Manager {
			m, err := New(Config{Runtime: s, Secrets: secrets{"right": key}, MaxPulls: 1, Records: dir, Policy: policy,
				Event: func(*corev1.Pod, string, string, string) {}})
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		m := open()
		if _, f := m.Pull(t.Context(), tenant("owner", "right"), private, nil); f != nil {
			t.Fatal(f)
		}
		if _, f := m.Pull(t.Context(), tenant("anybody"), public, nil); f != nil {
			t.Fatal(f)
		}
		check := func(m *Manager, pod *corev1.Pod, image string, want bool) {
			t.Helper()
			if st := m.State(t.Context(), pod, image); (st.Ref != "") != want || st.Err != "" {
				t.Errorf("%s %v: %s for %s: %+v, want %v", c.mode, c.allow, image, pod.UID, st, want)
			}
		}
		for _, m := range []*Manager{m, open()} { // and after a restart
			check(m, tenant("owner", "right"), private, true)
			check(m, tenant("stranger"), private, c.private)
			check(m, tenant("stranger"), public, true)
			check(m, tenant("stranger"), preloaded, c.preloaded)
		}
		// The pull that follows shows that the registry gives it to everybody.
		if _, f := m.Pull(t.Context(), tenant("stranger"), preloaded, nil); f != nil {
			t.Fatal(f)
		}
		check(open(), tenant("stranger"), preloaded, true)
	}
}

// TestDamagedRecords: the agent starts beside damaged records, and the images of these records cannot be used until a
// pod pulls them with credentials that the registry accepts.
func TestDamagedRecords(t *testing.T) {
	for _, damage := range []string{"", "{", "null", "{}", `{"image":"sha256:b","names":{}}`} {
		dir := t.TempDir()
		r, err := openRecords(dir)
		if err != nil {
			t.Fatal(err)
		}
		with := credential{Name: "s", Hash: "h"}
		for _, id := range []string{"sha256:a", "sha256:gone"} {
			if err := errors.Join(r.begin(private), r.end(private, id, with)); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.begin("reg.example.com/half"); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 3 {
			t.Fatal(entries, err)
		}
		for _, e := range entries {
			if err := os.WriteFile(filepath.Join(dir, e.Name()), []byte(damage), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Mkdir(filepath.Join(dir, "stray.json"), 0o700); err != nil {
			t.Fatal(err)
		}
		if r, err = openRecords(dir); err != nil {
			t.Fatalf("%q: %v", damage, err)
		}
		if !r.pulled(private, "sha256:a") || r.open(private, "sha256:a") ||
			r.allows(private, "sha256:a", []credential{with}) || !r.pulled("reg.example.com/half:1", "sha256:new") ||
			r.pulled(private, "sha256:other") {
			t.Errorf("%q: a damaged record opens its image, or closes another", damage)
		}
		if err := r.prune([]*cri.Image{{Id: "sha256:a"}}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(r.begin(private), r.end(private, "sha256:a", with)); err != nil {
			t.Fatal(err)
		}
		if err := r.free("reg.example.com/half:1", "sha256:new", false); err != nil {
			t.Fatal(err)
		}
		if r, err = openRecords(dir); err != nil || len(r.damaged) != 0 || len(r.images) != 1 ||
			!r.allows(private, "sha256:a", []credential{with}) || r.pulled("reg.example.com/half:1", "sha256:new") {
			t.Errorf("%q: a new pull does not repair the record: %+v, %v", damage, r, err)
		}
	}
}

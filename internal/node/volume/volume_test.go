package volume

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"carob/internal/base/securepath"
	"carob/internal/node/spec"
)

// world is a Manager with the API objects that it sees.
type world struct {
	*Manager
	t    *testing.T
	root string

	mu      sync.Mutex
	maps    map[string]*corev1.ConfigMap
	secrets map[string]*corev1.Secret
	bundles []*certificatesv1.ClusterTrustBundle
	signer  signer
	holders map[types.UID]func(types.UID)
	events  []string
	tokens  int
	life    time.Duration
	missed  chan struct{} // an object was requested that does not exist
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("volumes need root: they mount")
	}
	root := t.TempDir()
	w := &world{t: t, root: root, maps: map[string]*corev1.ConfigMap{}, secrets: map[string]*corev1.Secret{},
		holders: map[types.UID]func(types.UID){},
		missed:  make(chan struct{}, 1)}
	w.Manager = w.restart()
	t.Cleanup(func() {
		uids, err := w.OnDisk()
		if err != nil {
			t.Error(err)
		}
		for _, uid := range uids {
			if err := w.Remove(context.Background(), uid); err != nil {
				t.Error(err)
			}
		}
		w.unmountVolatile()
		if mounts := mountsBelow(t, root); len(mounts) > 0 {
			t.Errorf("mounts left: %q", mounts)
		}
	})
	return w
}

func (w *world) restart() *Manager {
	node := &spec.Node{HostIPs: []string{"192.0.2.1"},
		Allocatable: corev1.ResourceList{"memory": resource.MustParse("1Gi"), "cpu": resource.MustParse("2")}}
	return New(Config{
		Root: w.root, Node: func() *spec.Node { return node }, Objects: w, Tokens: w, Certificates: w,
		Logger: klog.Background(),
		Event: func(_ *corev1.Pod, _, reason, message string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, reason+" "+message)
		},
	})
}

func (w *world) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if o := w.maps[name]; o != nil {
		return o, nil
	}
	select {
	case w.missed <- struct{}{}:
	default:
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
}

func (w *world) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if o := w.secrets[name]; o != nil {
		return o, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
}

func (w *world) TrustBundle(_ context.Context, name string) (*certificatesv1.ClusterTrustBundle, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range w.bundles {
		if b.Name == name {
			return b, nil
		}
	}
	return nil, apierrors.NewNotFound(certificatesv1.Resource("clustertrustbundles"), name)
}

func (w *world) TrustBundles(_ context.Context, signer string) ([]*certificatesv1.ClusterTrustBundle, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []*certificatesv1.ClusterTrustBundle
	for _, b := range w.bundles {
		if b.Spec.SignerName == signer {
			list = append(list, b)
		}
	}
	return list, nil
}

func (w *world) Hold(pod *corev1.Pod, changed func(types.UID)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holders[pod.UID] = changed
}

func (w *world) Release(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.holders, uid)
}

// put stores a config map and notifies all pods.
func (w *world) put(name string, data map[string]string) {
	w.mu.Lock()
	w.maps[name] = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
	var notify []func()
	for uid, changed := range w.holders {
		notify = append(notify, func() { changed(uid) })
	}
	w.mu.Unlock()
	for _, f := range notify {
		f()
	}
}

func (w *world) Token(_ context.Context, ns, account string,
	req *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if req.Spec.BoundObjectRef == nil || req.Spec.BoundObjectRef.Kind != "Pod" {
		return nil, errors.New("token not bound to the pod")
	}
	w.tokens++
	now := time.Now()
	life := w.life
	if life == 0 {
		life = time.Duration(*req.Spec.ExpirationSeconds) * time.Second
	}
	body := fmt.Sprintf(`{"iat":%d,"exp":%d,"n":%d}`, now.Unix(), now.Add(life).Unix(), w.tokens)
	out := req.DeepCopy()
	out.Status.Token = "e30." + base64.RawURLEncoding.EncodeToString([]byte(body)) + ".sig"
	out.Status.ExpirationTimestamp = metav1.NewTime(now.Add(life))
	return out, nil
}

func (w *world) prepare(pod *corev1.Pod) error {
	w.t.Helper()
	return w.Prepare(w.t.Context(), pod)
}

func (w *world) mustPrepare(pod *corev1.Pod) map[string]spec.Volume {
	w.t.Helper()
	if err := w.prepare(pod); err != nil {
		w.t.Fatal(err)
	}
	return w.Volumes(pod.UID)
}

// podWith is a pod whose container uses all its volumes.
func podWith(uid string, volumes ...corev1.Volume) *corev1.Pod {
	c := corev1.Container{Name: "c"}
	for i := range volumes {
		name := volumes[i].Name
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: types.UID(uid),
			Labels: map[string]string{"app": "a", "b": "c"}},
		Spec: corev1.PodSpec{Volumes: volumes, Containers: []corev1.Container{c}},
	}
}

func volume(name string, src corev1.VolumeSource) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: src}
}

func configMapVolume(name string, src corev1.ConfigMapVolumeSource) corev1.Volume {
	return volume(name, corev1.VolumeSource{ConfigMap: &src})
}

func named(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }

func mountsBelow(t *testing.T, root string) []string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], root) {
			found = append(found, f[4])
		}
	}
	return found
}

// tree lists what a container sees: "path mode content".
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var walk func(path, name string)
	walk = func(path, name string) {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() {
			entries, err := os.ReadDir(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				walk(filepath.Join(path, e.Name()), name+"/"+e.Name())
			}
			return
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%s %o %s", name, info.Mode().Perm(), text))
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "..") {
			walk(filepath.Join(dir, e.Name()), e.Name())
		}
	}
	return out
}

// Contents, modes, items and optional references of written volumes (L3.139, L10.29).
func TestWrittenVolumes(t *testing.T) {
	tests := []struct {
		name   string
		volume corev1.VolumeSource
		change func(*corev1.Pod)
		want   []string
		err    string
	}{
		{name: "config map",
			volume: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named("cm")}},
			want:   []string{"bin 644 \xff", "k1 644 v1", "k2 644 v2"}},
		{name: "items",
			volume: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named("cm"),
				DefaultMode: new(int32(0o400)),
				Items: []corev1.KeyToPath{{Key: "k1", Path: "d/e/f"},
					{Key: "k2", Path: "g", Mode: new(int32(0o755))}}}},
			want: []string{"d/e/f 400 v1", "g 755 v2"}},
		{name: "missing key",
			volume: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named("cm"),
				Items: []corev1.KeyToPath{{Key: "no", Path: "x"}}}},
			err: `MountVolume.SetUp failed for volume "v" : configmap references non-existent config key: no`},
		{name: "missing key, optional",
			volume: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named("cm"),
				Optional: new(true),
				Items:    []corev1.KeyToPath{{Key: "no", Path: "x"}, {Key: "k1", Path: "y"}}}},
			want: []string{"y 644 v1"}},
		{name: "missing map",
			volume: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named("none")}},
			err:    `MountVolume.SetUp failed for volume "v" : configmap "none" not found`},
		{name: "missing map, optional",
			volume: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named("none"),
				Optional: new(true)}}},
		{name: "secret",
			volume: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s",
				DefaultMode: new(int32(0o400))}}, want: []string{"pw 400 hush"}},
		{name: "missing secret", volume: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "none"}},
			err: `MountVolume.SetUp failed for volume "v" : secret "none" not found`},
		{name: "missing secret key",
			volume: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s",
				Items: []corev1.KeyToPath{{Key: "k", Path: "k"}}}},
			err: `MountVolume.SetUp failed for volume "v" : references non-existent secret key: k`},
		{name: "downward",
			volume: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
				Items: []corev1.DownwardAPIVolumeFile{
					{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
					{Path: "mem", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "c",
						Resource: "limits.memory",
						Divisor:  resource.MustParse("1Mi")}}}}},
			want: []string{"labels 644 app=\"a\"\nb=\"c\"", "mem 644 1024"}},
		{name: "projected with fsGroup",
			volume: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: new(int32(0o600)),
				Sources: []corev1.VolumeProjection{
					{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: named("cm"),
						Items: []corev1.KeyToPath{{Key: "k1", Path: "ca"}}}},
					{Secret: &corev1.SecretProjection{LocalObjectReference: named("s")}}}}},
			change: func(p *corev1.Pod) {
				p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(1234))}
			},
			want: []string{"ca 640 v1", "pw 640 hush"}},
		{name: "trust bundle",
			volume: corev1.VolumeSource{
				Projected: &corev1.ProjectedVolumeSource{
					Sources: []corev1.VolumeProjection{{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}}}}},
			err: `MountVolume.SetUp failed for volume "v" : ClusterTrustBundle projection requires either name or signerName to be set`},
		{name: "path out of the volume",
			volume: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named("cm"),
				Items: []corev1.KeyToPath{{Key: "k1", Path: "a/../../x"}}}},
			err: `MountVolume.SetUp failed for volume "v" : invalid path "a/../../x": it must be relative and must not contain '..'`},
		{name: "claim",
			volume: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "pvc"}},
			err: `Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: error processing PVC ns/pvc: persistent volumes are not supported by this node`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // objects are waited for
				w := newWorld(t)
				w.maps["cm"] = &corev1.ConfigMap{Data: map[string]string{"k1": "v1", "k2": "v2"},
					BinaryData: map[string][]byte{"bin": {0xff}}}
				w.secrets["s"] = &corev1.Secret{Data: map[string][]byte{"pw": []byte("hush")}}
				pod := podWith("u1", volume("v", tc.volume))
				if tc.change != nil {
					tc.change(pod)
				}
				err := w.prepare(pod)
				if tc.err != "" {
					if err == nil || err.Error() != tc.err {
						t.Fatalf("got error %v, want %s", err, tc.err)
					}
					if want := []string{"FailedMount " + tc.err}; !cmp.Equal(w.events, want) {
						t.Errorf("events %q, want %q", w.events, want)
					}
					if w.State(pod).Mounted {
						t.Error("mounted in spite of the error")
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				v := w.Volumes("u1")["v"]
				if !v.ReadOnly {
					t.Error("written volumes are read only for containers")
				}
				if diff := cmp.Diff(tc.want, tree(t, v.HostPath)); diff != "" {
					t.Error(diff)
				}
				var st unix.Statfs_t
				if err := unix.Statfs(v.HostPath, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
					t.Errorf("content of the agent must not touch a disk: type %x, %v", st.Type, err)
				}
				if g := fsGroup(pod); g != nil {
					info, err := os.Stat(filepath.Join(v.HostPath, "pw"))
					if err != nil || int64(info.Sys().(*syscall.Stat_t).Gid) != *g {
						t.Errorf("file does not belong to the fsGroup: %v", err)
					}
				}
			})
		})
	}
}

// A pod whose object comes an instant after it needs no back-off.
func TestObjectThatComesLate(t *testing.T) {
	w := newWorld(t)
	pod := podWith("u1", configMapVolume("v", corev1.ConfigMapVolumeSource{LocalObjectReference: named("late")}))
	done := make(chan error)
	go func() { done <- w.Prepare(t.Context(), pod) }()
	<-w.missed // it looked, and there was nothing
	w.put("late", map[string]string{"k": "v"})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(w.events) > 0 {
		t.Errorf("events %q", w.events)
	}
}

// Contents follow their object in one step; files that vanish vanish, and an
// agent that starts again carries on.
func TestRefresh(t *testing.T) {
	w := newWorld(t)
	w.put("cm", map[string]string{"a": "1", "b": "1"})
	pod := podWith("u1", configMapVolume("v", corev1.ConfigMapVolumeSource{LocalObjectReference: named("cm")}),
		volume(
			"d", corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "l", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['app']"}}}}}))
	v := w.mustPrepare(pod)["v"]
	for round := range 2 {
		p := w.find("u1")
		w.put("cm", map[string]string{"a": "2", "c": fmt.Sprint(round)})
		changed := pod.DeepCopy()
		changed.Labels["app"] = fmt.Sprint("new", round)
		w.Update(changed)
		due, _ := w.due(time.Now(), true)
		if len(due) != 1 {
			t.Fatalf("%d pods due, want 1", len(due))
		}
		w.refresh(t.Context(), p)
		if diff := cmp.Diff([]string{"a 644 2", fmt.Sprintf("c 644 %d", round)}, tree(t, v.HostPath)); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{fmt.Sprintf("l 644 new%d", round)},
			tree(t, w.Volumes("u1")["d"].HostPath)); diff != "" {
			t.Error(diff)
		}
		if due, _ := w.due(time.Now(), true); len(due) != 0 {
			t.Error("still due after the refresh")
		}
		w.Manager = w.restart()
		if s := w.State(pod); s.Mounted || !s.Present {
			t.Errorf("after a restart: %+v", s)
		}
		w.mustPrepare(pod)
	}
	entries, err := os.ReadDir(v.HostPath)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 4 { // ..data, one version, a, c
		t.Errorf("old versions left: %v", entries)
	}
}

// Files show the resources that a pod may use, not those that it requests, and are updated after a resize (L3.135,
// L3.120).
func TestFilesFollowResize(t *testing.T) {
	w := newWorld(t)
	pod := podWith("u1",
		volume(
			"d", corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "c",
					Resource: "requests.cpu",
					Divisor:  resource.MustParse("1m")}},
				{Path: "l", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['app']"}}}}}))
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("100m")}
	dir := w.mustPrepare(pod)["d"].HostPath
	p := w.find("u1")
	look := func(due int, want ...string) {
		t.Helper()
		pods, _ := w.due(time.Now(), true)
		if len(pods) != due {
			t.Errorf("%d pods due, want %d", len(pods), due)
		}
		for range pods {
			w.refresh(t.Context(), p)
		}
		if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
			t.Error(diff)
		}
	}
	look(0, "cpu 644 100", "l 644 "+pod.Labels["app"])
	requested := pod.DeepCopy()
	requested.Generation++
	requested.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("200m")
	requested.Labels["app"] = "new"
	w.Update(requested)
	look(1, "cpu 644 100", "l 644 new") // requested only
	w.Resized(requested)
	look(1, "cpu 644 200", "l 644 new")
	again := requested.DeepCopy()
	again.Labels["app"] = "newer"
	w.Update(again)
	look(1, "cpu 644 200", "l 644 newer")
}

// A reader that goes through the links sees one version or the other, never a mix.
func TestPublishIsAtomic(t *testing.T) {
	dir := t.TempDir()
	version := func(n int) payload {
		text := []byte(fmt.Sprint(n))
		return payload{"a": {data: text, mode: 0o644}, "sub/b": {data: text, mode: 0o644}}
	}
	if _, err := publish(dir, version(0), owner{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			at, err := os.Open(filepath.Join(dir, dataLink)) // pins a version
			if errors.Is(err, fs.ErrNotExist) {
				continue // the version went between the link and its target; as everywhere, one tries again
			} else if err != nil {
				done <- err
				return
			}
			a, errA := readAt(at, "a")
			b, errB := readAt(at, "sub/b")
			at.Close()
			if errA == nil && errB == nil && a != b {
				done <- fmt.Errorf("saw a=%s b=%s", a, b)
				return
			}
		}
	}()
	for n := range 200 {
		if _, err := publish(dir, version(n), owner{}, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if changed, err := publish(dir, version(199), owner{}, time.Now()); changed || err != nil {
		t.Errorf("same content published again: %v, %v", changed, err)
	}
}

func readAt(dir *os.File, name string) (string, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var buf [16]byte
	n, err := f.Read(buf[:])
	return string(buf[:n]), err
}

// Tokens are bound to the pod, kept over a restart of the agent, and renewed at 80 % of their life.
func TestToken(t *testing.T) {
	w := newWorld(t)
	pod := podWith("u1",
		volume("v", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token",
				ExpirationSeconds: new(int64(3600))}}}}}))
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(1000))}
	v := w.mustPrepare(pod)["v"]
	first := tree(t, v.HostPath)
	if info, err := os.Stat(filepath.Join(v.HostPath, "token")); err != nil || info.Mode().Perm() != 0o600 ||
		info.Sys().(*syscall.Stat_t).Uid != 1000 {
		t.Errorf("the token must belong to the common user alone: %v %v", info, err)
	}
	_, next := w.due(time.Now(), true)
	if d := time.Until(next); d < 47*time.Minute || d > 49*time.Minute {
		t.Errorf("next renewal in %v, want 80 %% of an hour", d)
	}
	if next != next.Round(0) || pause(time.Now(), next) > time.Minute {
		t.Errorf("the renewal is due by a clock that stops while the machine is suspended: %v", next)
	}
	w.Manager = w.restart()
	w.mustPrepare(pod)
	if w.tokens != 1 || !cmp.Equal(first, tree(t, v.HostPath)) {
		t.Errorf("%d tokens requested, want the stored one", w.tokens)
	}
	p := w.find("u1")
	if due, _ := w.due(time.Now().Add(48*time.Minute+time.Second), true); len(due) != 1 {
		t.Error("not due after 80 % of its life")
	}
	for k, tok := range p.tokens {
		tok.renew = time.Now()
		p.tokens[k] = tok
	}
	w.refresh(t.Context(), p)
	if w.tokens != 2 || cmp.Equal(first, tree(t, v.HostPath)) {
		t.Errorf("%d tokens requested, want a second one in the volume", w.tokens)
	}
}

// hostPath checks and creates what its type requires (L10.29).
func TestHostPath(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		path string
		kind corev1.HostPathType
		err  string
		made fs.FileMode
	}{
		{path: dir, kind: corev1.HostPathDirectory},
		{path: file, kind: corev1.HostPathFile},
		{path: "/dev/null", kind: corev1.HostPathCharDev},
		{path: dir, kind: corev1.HostPathUnset},
		{path: dir + "/n1/n2", kind: corev1.HostPathDirectoryOrCreate, made: fs.ModeDir | 0o755},
		{path: dir + "/f1", kind: corev1.HostPathFileOrCreate, made: 0o644},
		{path: dir + "/n3", kind: corev1.HostPathUnset, made: fs.ModeDir | 0o755},
		{path: file, kind: corev1.HostPathDirectory,
			err: "hostPath type check failed: " + file + " is not a directory, it's a file"},
		{path: file, kind: corev1.HostPathDirectoryOrCreate,
			err: "hostPath type check failed: " + file + " is not a directory, it's a file"},
		{path: dir, kind: corev1.HostPathFile, err: "hostPath type check failed: " + dir +
			" is not a file, it's a directory"},
		{path: dir, kind: corev1.HostPathSocket, err: "hostPath type check failed: " + dir +
			" is not a socket file, it's a directory"},
		{path: "/dev/null", kind: corev1.HostPathBlockDev,
			err: "hostPath type check failed: /dev/null is not a block device, it's a character device"},
		{path: dir + "/none", kind: corev1.HostPathFile,
			err: "hostPath type check failed, " + dir + "/none is not a file, unable to determine its type: stat " +
				dir + "/none: no such file or directory"},
	}
	for _, tc := range tests {
		t.Run(string(tc.kind)+" "+filepath.Base(tc.path), func(t *testing.T) {
			v, err := hostPath(&corev1.HostPathVolumeSource{Path: tc.path, Type: &tc.kind})
			if got := fmt.Sprint(err); tc.err != "" && got != tc.err || tc.err == "" && err != nil {
				t.Fatalf("got %s, want %q", got, tc.err)
			}
			if tc.made != 0 {
				if info, err := os.Stat(v.HostPath); err != nil || info.Mode() != tc.made {
					t.Errorf("made %v, %v, want mode %v", info, err, tc.made)
				}
			}
		})
	}
}

// BenchmarkPod sets up and removes the volumes of the usual pod.
func BenchmarkPod(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("volumes need root: they mount")
	}
	w := &world{root: b.TempDir(),
		maps:    map[string]*corev1.ConfigMap{"ca": {Data: map[string]string{"ca.crt": strings.Repeat("x", 1000)}}},
		holders: map[types.UID]func(types.UID){}, missed: make(chan struct{}, 1)}
	w.Manager = w.restart()
	defer w.unmountVolatile()
	access := corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token",
			ExpirationSeconds: new(int64(3607))}},
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: named("ca"),
			Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
		{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "namespace",
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}},
	}}}
	for i := range b.N {
		pod := podWith(fmt.Sprint("u", i), volume("kube-api-access", access),
			volume("e", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
		if err := w.Prepare(b.Context(), pod); err != nil {
			b.Fatal(err)
		}
		if _, err := w.HostsFile(pod.UID, []byte("x")); err != nil {
			b.Fatal(err)
		}
		if _, err := w.TerminationLog(pod.UID, "c"); err != nil {
			b.Fatal(err)
		}
		if err := w.Remove(b.Context(), pod.UID); err != nil {
			b.Fatal(err)
		}
	}
}

// Run wakes for a changed object and for a token that is due, and for nothing else.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put("cm", map[string]string{"k": "1"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		pod := podWith("u1", configMapVolume("cm", corev1.ConfigMapVolumeSource{LocalObjectReference: named("cm")}),
			volume("token",
				corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token",
						ExpirationSeconds: new(int64(600))}}}}}))
		vs := w.mustPrepare(pod)
		w.put("cm", map[string]string{"k": "2"})
		synctest.Wait()
		if diff := cmp.Diff([]string{"k 644 2"}, tree(t, vs["cm"].HostPath)); diff != "" {
			t.Error(diff)
		}
		for renewals := range 3 {
			time.Sleep(478 * time.Second)
			synctest.Wait()
			if w.tokens != renewals+1 {
				t.Errorf("%d tokens before 80 %% of the life of number %d", w.tokens, renewals+1)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if w.tokens != renewals+2 {
				t.Errorf("%d tokens after 80 %% of the life of number %d", w.tokens, renewals+1)
			}
		}
		if err := w.Remove(t.Context(), "u1"); err != nil {
			t.Error(err)
		}
		tokens := w.tokens
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if w.tokens != tokens {
			t.Error("a token was requested for a pod that is gone")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if securepath.IsMounted(w.volatileDir()) {
			t.Error("the memory for secrets stays mounted without a pod")
		}
	})
}

// A subPath of a key that is not there yet is a directory; it makes way for the key.
func TestKeyThatReplacesSubPath(t *testing.T) {
	w := newWorld(t)
	w.put("cm", map[string]string{"k": "1"})
	pod := podWith("u1", configMapVolume("v", corev1.ConfigMapVolumeSource{LocalObjectReference: named("cm")}))
	dir := w.mustPrepare(pod)["v"].HostPath
	use := func(path string) {
		t.Helper()
		if _, err := w.SubPath(t.Context(),
			spec.SubPath{UID: "u1", Container: "c", Volume: "v", Path: path, ReadOnly: true}); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
			t.Error(diff)
		}
	}
	use("late")
	w.put("cm", map[string]string{"k": "1", "late": "2"})
	w.refresh(t.Context(), w.find("u1"))
	expect("k 644 1", "late 644 2")

	// Directories with something in them, one of which a key replaces: others are no obstacle to it.
	use("a/deep/path")
	use("b/deep")
	w.put("cm", map[string]string{"k": "1", "late": "2", "b": "3", "new": "4"})
	w.refresh(t.Context(), w.find("u1"))
	expect("b 644 3", "k 644 1", "late 644 2", "new 644 4")
	if _, err := os.Stat(filepath.Join(dir, "a/deep/path")); err != nil {
		t.Errorf("a directory that no key replaces: %v", err)
	}

	// Also for the next agent.
	next := w.restart()
	if err := next.Prepare(t.Context(), pod); err != nil {
		t.Error(err)
	}
}

// L3.115: the runtime mounts it, always read only.
func TestImageVolume(t *testing.T) {
	v, err := imageVolume(&corev1.ImageVolumeSource{Reference: "models/llama"})
	if err != nil || v.HostPath != "" || !v.ReadOnly || v.Image.GetImage() != "docker.io/models/llama:latest" ||
		v.Image.GetUserSpecifiedImage() != "models/llama" {
		t.Errorf("%+v %v", v, err)
	}
	for _, bad := range []string{"", "UPPER:case:"} {
		if _, err := imageVolume(&corev1.ImageVolumeSource{Reference: bad}); err == nil {
			t.Errorf("%q is an image", bad)
		}
	}
}

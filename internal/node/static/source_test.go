package static

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const manifest = `apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: web, image: web}]
`

func accept(*corev1.Pod) error { return nil }

// L7.110, L7.111
func TestManifestBecomesStaticPod(t *testing.T) {
	now := time.Unix(1000, 0)
	pod, err := decode([]byte(manifest), "/m/web.yaml", "Node1", accept, now)
	if err != nil {
		t.Fatal(err)
	}
	if pod.Name != "web-node1" || pod.Namespace != "default" || pod.Spec.NodeName != "Node1" || len(pod.UID) != 32 ||
		pod.Status.Phase != corev1.PodPending {
		t.Errorf("got %s/%s on %s, uid %s, phase %s", pod.Namespace, pod.Name, pod.Spec.NodeName, pod.UID,
			pod.Status.Phase)
	}
	if a := pod.Annotations; a[annotationSource] != "file" || a[annotationHash] != string(pod.UID) ||
		a[annotationSeen] == "" {
		t.Errorf("annotations: %v", a)
	}
	if !slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		return t.Operator == corev1.TolerationOpExists && t.Effect == corev1.TaintEffectNoExecute
	}) {
		t.Errorf("tolerations: %v", pod.Spec.Tolerations)
	}
	uid := func(text, path, node string) string {
		p, err := decode([]byte(text), path, node, accept, now.Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		return string(p.UID)
	}
	if uid(manifest, "/m/web.yaml", "Node1") != string(pod.UID) {
		t.Error("the same manifest is another pod later")
	}
	for _, other := range []string{
		uid(strings.Replace(manifest, "image: web", "image: web:2", 1), "/m/web.yaml", "Node1"),
		uid(manifest, "/m/other.yaml", "Node1"), uid(manifest, "/m/web.yaml", "node2"),
	} {
		if other == string(pod.UID) {
			t.Error("another manifest, file or node has the same uid")
		}
	}
}

// L7.111
func TestManifestIsRefused(t *testing.T) {
	with := func(spec string) string { return manifest + "  " + spec + "\n" }
	for text, want := range map[string]string{
		"a: [":                                             "neither YAML nor JSON",
		"kind: Service\n":                                  `kind "Service" instead of a v1 Pod`,
		"apiVersion: v1\nkind: Pod\nspec: {}\n":            "no name",
		with("restartPolicies: Always"):                    "unknown field",
		with("serviceAccountName: me"):                     "may not reference serviceaccounts",
		with("imagePullSecrets: [{name: s}]"):              "may not reference secrets",
		with("volumes: [{name: v, configMap: {name: c}}]"): "may not reference configmaps",
		with("volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]"): "persistentvolumeclaims",
		with(
			"volumes: [{name: v, projected: {sources: [{secret: {name: s}}]}}]"): "may not reference secrets",
		with(
			"initContainers: [{name: i, image: i, envFrom: [{configMapRef: {name: c}}]}]"): "may not reference configmaps",
	} {
		if _, err := decode([]byte(text), "f", "n", accept, time.Time{}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	refuse := func(*corev1.Pod) error { return errors.New("bad port") }
	if _, err := decode([]byte(manifest), "f", "n", refuse, time.Time{}); err == nil ||
		!strings.Contains(err.Error(), "bad port") {
		t.Errorf("what the API server refuses: %v", err)
	}
}

type watched struct {
	t    *testing.T
	dir  string
	pods chan []*corev1.Pod
	*Source
}

func watch(t *testing.T) *watched {
	w, stop := watchIn(t, t.TempDir(), "")
	t.Cleanup(stop)
	return w
}

// watchIn watches a directory until stop is called.
func watchIn(t *testing.T, dir, cache string) (w *watched, stop func()) {
	w = &watched{t: t, dir: dir, pods: make(chan []*corev1.Pod, 10)}
	w.Source = NewSource(SourceConfig{Path: w.dir, Node: "n", Complete: accept, Cache: cache,
		Wanted: func(p []*corev1.Pod) { w.pods <- p }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return w, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// next is the next set of pods; a change that goes unnoticed runs into the deadline.
func (w *watched) next(names ...string) []*corev1.Pod {
	w.t.Helper()
	select {
	case got := <-w.pods:
		var have []string
		for _, p := range got {
			have = append(have, p.Name)
		}
		if !slices.Equal(have, names) {
			w.t.Fatalf("wanted pods are %v, not %v", have, names)
		}
		return got
	case <-time.After(time.Minute):
		w.t.Fatalf("nothing was told, want %v", names)
		return nil
	}
}

func (w *watched) write(name, text string) {
	w.t.Helper()
	tmp := filepath.Join(w.dir, "."+name)
	if err := errors.Join(os.WriteFile(tmp, []byte(text), 0o600),
		os.Rename(tmp, filepath.Join(w.dir, name))); err != nil {
		w.t.Fatal(err)
	}
}

// L7.110
func TestSourceFollowsTheDirectory(t *testing.T) {
	w := watch(t)
	w.next()
	w.write("web.yaml", manifest)
	old := w.next("web-n")
	w.write("db.yaml", strings.Replace(manifest, "web", "db", 1))
	w.next("db-n", "web-n")
	w.write("web.yaml", strings.Replace(manifest, "image: web", "image: web:2", 1))
	if now := w.next("db-n", "web-n"); now[1].UID == old[0].UID {
		t.Error("a changed manifest is the same pod")
	}
	if err := os.Remove(filepath.Join(w.dir, "db.yaml")); err != nil {
		t.Fatal(err)
	}
	w.next("web-n")
}

func TestBadManifestLeavesThePod(t *testing.T) {
	w := watch(t)
	w.next()
	w.write("web.yaml", manifest)
	old := w.next("web-n")
	w.write("web.yaml", "kind: [")
	w.write("zz.yaml", strings.Replace(manifest, "web", "zz", 1))
	if now := w.next("web-n", "zz-n"); now[0].UID != old[0].UID {
		t.Error("a bad manifest changed its pod")
	}
}

// A pod also stays where the agent starts again while its manifest can't be used, until the manifest goes.
func TestBadManifestAtTheStart(t *testing.T) {
	dir, cache := t.TempDir(), filepath.Join(t.TempDir(), "kept")
	w, stop := watchIn(t, dir, cache)
	w.next()
	w.write("web.yaml", manifest)
	old := w.next("web-n")
	stop()
	w.write("web.yaml", "kind: [")
	w.write("never.yaml", "kind: [")
	w, stop = watchIn(t, dir, cache)
	if now := w.next("web-n"); now[0].UID != old[0].UID {
		t.Error("it is another pod")
	}
	w.write("web.yaml", strings.Replace(manifest, "image: web", "image: web:2", 1))
	if now := w.next("web-n"); now[0].UID == old[0].UID {
		t.Error("the mended manifest is not used")
	}
	stop()
	if err := os.Remove(filepath.Join(dir, "web.yaml")); err != nil { // while no agent runs
		t.Fatal(err)
	}
	w, stop = watchIn(t, dir, cache)
	w.next()
	stop()
	w.write("web.yaml", "kind: [")
	w, stop = watchIn(t, dir, cache)
	defer stop()
	w.next()
	if kept, err := os.ReadDir(cache); err != nil || len(kept) != 0 {
		t.Errorf("kept: %v, %v", kept, err)
	}
}

// L3.3
func TestSecondManifestOfANameIsIgnored(t *testing.T) {
	w := watch(t)
	w.next()
	w.write("a.yaml", manifest)
	first := w.next("web-n")
	w.write("b.yaml", manifest)
	if now := w.next("web-n"); now[0].UID != first[0].UID {
		t.Error("the second file took the name")
	}
}

func TestWakeFindsUnreportedChanges(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "real"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	w := watch(t)
	w.next()
	link := filepath.Join(w.dir, "web.yaml")
	if err := os.Symlink(filepath.Join(dir, "real"), link); err != nil {
		t.Fatal(err)
	}
	w.next("web-n")
	changed := strings.Replace(manifest, "web}", "api}", 1) + "# another size\n"
	if err := os.WriteFile(filepath.Join(dir, "real"), []byte(changed), 0o600); err != nil {
		// no event: another directory
		t.Fatal(err)
	}
	w.Wake()
	w.next("api-n")
}

// A named pipe in place of a manifest holds up nothing: the pods of other manifests run, also if the pipe is the only
// manifest.
func TestNamedPipeIsNoManifest(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := readManifest(pipe); err == nil || err.Error() != "it is not a regular file" {
		t.Errorf("%q, %v", text, err)
	}
	pods := make(chan []*corev1.Pod, 1)
	s := NewSource(SourceConfig{Path: pipe, Node: "n", Complete: accept, Wanted: func(p []*corev1.Pod) { pods <- p }})
	ended, end := context.WithCancel(t.Context())
	end()
	if err := s.Run(ended); err != nil {
		t.Fatal(err)
	}
	if got := <-pods; len(got) > 0 {
		t.Errorf("%d pods", len(got))
	}
}

// The priority of a system priority class is known without an API server: such a pod ends last in a shutdown of the
// machine. A priority in the manifest stays, as does the UID.
func TestPriorityOfSystemClasses(t *testing.T) {
	plain, err := decode([]byte(manifest), "/m/web.yaml", "n", accept, time.Now())
	if err != nil || plain.Spec.Priority != nil {
		t.Fatalf("%v, %v", plain, err)
	}
	for more, want := range map[string]int32{
		"priorityClassName: system-node-critical":                2_000_001_000,
		"priorityClassName: system-cluster-critical":             2_000_000_000,
		"priority: 7\n  priorityClassName: system-node-critical": 7,
		"priority: 7\n  priorityClassName: mine":                 7,
	} {
		text := strings.Replace(manifest, "spec:\n", "spec:\n  "+more+"\n", 1)
		pod, err := decode([]byte(text), "/m/web.yaml", "n", accept, time.Now())
		if err != nil || pod.Spec.Priority == nil || *pod.Spec.Priority != want {
			t.Errorf("%s: priority %v, %v, want %d", more, pod.Spec.Priority, err, want)
		}
	}
}

package eviction

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/eviction"
	"carob/internal/core/podlife"
	"carob/internal/node/pods"
	"carob/internal/node/spec"
)

// world is a Manager with everything it sees and does.
type world struct {
	*Manager
	root string

	mu        sync.Mutex
	memory    int64 // MiB left of 1000
	disk      int64 // left of size
	size      int64
	pods      map[types.UID]*pods.View
	memOf     map[types.UID]int64
	ends      time.Duration // what the end of a pod takes
	images    []*cri.Image
	usedBy    []*cri.Container
	removing  func() // while an image is removed; the lock is held
	unlisted  error  // the answer to lists
	log       []string
	requested map[string]int // calls of the runtime
	changed   chan struct{}
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *world) count(call string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requested[call]++
}

func (w *world) List() []pods.View {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []pods.View
	for _, v := range w.pods {
		all = append(all, *v)
	}
	slices.SortFunc(all, func(a, b pods.View) int { return strings.Compare(a.Pod.Name, b.Pod.Name) })
	return all
}

func (w *world) ByUID(uid types.UID) (pods.View, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, ok := w.pods[uid]
	if !ok {
		return pods.View{}, false
	}
	return *v, true
}

func (w *world) Next(types.UID) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

func (w *world) Stop(uid types.UID, s podlife.Stop) error {
	disrupted := "-"
	if s.Condition != nil {
		disrupted = s.Condition.Reason
	}
	w.note("stop %s %s grace %s %s", uid, s.Reason, *s.Grace, disrupted)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pods[uid].Life = podlife.Terminating
	time.AfterFunc(w.ends, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.pods[uid].Life, w.pods[uid].Status.Phase = podlife.Terminated, corev1.PodFailed
		w.memory += w.memOf[uid]
		close(w.changed)
		w.changed = make(chan struct{})
	})
	return nil
}

func (w *world) ListContainerStats(_ context.Context,
	req *cri.ListContainerStatsRequest) (*cri.ListContainerStatsResponse, error) {
	w.count("stats")
	w.mu.Lock()
	defer w.mu.Unlock()
	resp := &cri.ListContainerStatsResponse{}
	for uid := range w.pods {
		if want := req.GetFilter().GetLabelSelector()[spec.LabelPodUID]; want != "" && want != string(uid) {
			continue
		}
		resp.Stats = append(resp.Stats, &cri.ContainerStats{
			Attributes: &cri.ContainerAttributes{Labels: map[string]string{spec.LabelPodUID: string(uid),
				spec.LabelContainerName: "c"}},
			Memory:        &cri.MemoryUsage{WorkingSetBytes: &cri.UInt64Value{Value: uint64(w.memOf[uid]) << 20}},
			WritableLayer: &cri.FilesystemUsage{UsedBytes: &cri.UInt64Value{Value: 1000}},
		})
	}
	return resp, nil
}

func (w *world) ListPodSandboxStats(context.Context, *cri.ListPodSandboxStatsRequest) (*cri.ListPodSandboxStatsResponse,
	error) {
	return &cri.ListPodSandboxStatsResponse{}, nil
}

func (w *world) ListContainers(context.Context, *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return &cri.ListContainersResponse{Containers: slices.Clone(w.usedBy)}, w.unlisted
}

func (w *world) ListImages(context.Context, *cri.ListImagesRequest) (*cri.ListImagesResponse, error) {
	w.count("images")
	w.mu.Lock()
	defer w.mu.Unlock()
	return &cri.ListImagesResponse{Images: slices.Clone(w.images)}, nil
}

func (w *world) RemoveImage(_ context.Context, req *cri.RemoveImageRequest) (*cri.RemoveImageResponse, error) {
	w.note("remove image %s", req.Image.Image)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.removing != nil {
		w.removing()
	}
	for i, im := range w.images {
		if im.Id == req.Image.Image {
			w.disk += int64(im.Size)
			w.images = slices.Delete(w.images, i, i+1)
			break
		}
	}
	return &cri.RemoveImageResponse{}, nil
}

func (w *world) ImageFsInfo(context.Context, *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error) {
	return &cri.ImageFsInfoResponse{
		ImageFilesystems: []*cri.FilesystemUsage{{FsId: &cri.FilesystemIdentifier{Mountpoint: w.root}}}}, nil
}

func newWorld(t *testing.T, disk int64, settings eviction.Settings) *world {
	thresholds, err := eviction.Parse(settings)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		root: t.TempDir(), memory: 500, disk: disk, size: 100, pods: map[types.UID]*pods.View{},
		memOf: map[types.UID]int64{}, ends: time.Second,
		requested: map[string]int{}, changed: make(chan struct{}),
	}
	w.Manager = New(Config{
		Rules: eviction.Config{Thresholds: thresholds, MaxGrace: 20 * time.Second,
			Transition: eviction.DefaultTransition},
		Images: eviction.ImagePolicy{High: 85, Low: 80, MinAge: 2 * time.Minute}, Runtime: w, Pods: w, Root: w.root,
		Shortage:  &Shortage{},
		LogDir:    func(pod *corev1.Pod) string { return filepath.Join(w.root, "logs", pod.Name) },
		VolumeDir: func(uid types.UID, volume string) string { return filepath.Join(w.root, string(uid), volume) },
		PodDir:    func(uid types.UID) string { return filepath.Join(w.root, string(uid)) },
		PodEvent: func(pod *corev1.Pod, e podlife.Event, a map[string]string) {
			w.note("event %s %s %s: %s[%s]", pod.Name, e.Type, e.Reason, e.Message, a["starved_resource"])
		},
		NodeEvent: func(kind, reason, message string) { w.note("node %s %s: %s", kind, reason, message) },
		Again:     func() { w.note("again") },
		Reclaim:   func() { w.note("reclaim") },
		Measure: func(string, string) ([]eviction.Observation, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return []eviction.Observation{
				{Signal: eviction.MemoryAvailable, Available: w.memory << 20, Capacity: 1000 << 20},
				{Signal: eviction.ImageFsAvailable, Available: w.disk, Capacity: w.size},
			}, nil
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { w.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

func (w *world) add(name string, memory int64, edit ...func(*corev1.Pod)) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	for _, e := range edit {
		e(pod)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pods[pod.UID] = &pods.View{Pod: pod, Life: podlife.Syncing, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	w.memOf[pod.UID] = memory
}

// look is a look of the node; what it leads to is compared.
func (w *world) look(t *testing.T, pressure string, want ...string) {
	t.Helper()
	var under []string
	for _, p := range w.Look(t.Context(), time.Now()) {
		under = append(under, string(p.Kind))
	}
	if got := strings.Join(under, " "); got != pressure {
		t.Errorf("pressures %q, want %q", got, pressure)
	}
	synctest.Wait()
	w.mu.Lock()
	got := w.log
	w.log = nil
	w.mu.Unlock()
	if !slices.Equal(got, want) {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// L7.147, L7.149, L7.150, L7.151
func TestOnePodIsEvictedPerRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 90, eviction.Settings{})
		w.add("big", 300)
		w.add("small", 100)
		w.look(t, "")
		if w.requested["stats"] > 0 {
			t.Error("pods are measured while the node has enough")
		}
		w.mu.Lock()
		w.memory = 50
		w.mu.Unlock()
		message := "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. " +
			"Container c was using 300Mi, request is 0, has larger consumption of memory. "
		w.look(t, "MemoryPressure",
			"node Warning EvictionThresholdMet: Attempting to reclaim memory",
			"stop big Evicted grace 1s TerminationByKubelet",
			"event big Warning Evicted: "+message+"[memory]")
		w.look(t, "MemoryPressure") // the round waits for the pod's end
		time.Sleep(2 * time.Second)
		w.look(t, "MemoryPressure", "again")
		time.Sleep(6 * time.Minute)
		w.look(t, "")
	})
}

// A pod that was deleted and has a long time to end is evicted, once, before pods that use less; one that ends soon is
// not.
func TestDeletedPodIsEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 90, eviction.Settings{})
		w.ends = time.Hour // it does not even end then
		deleted := func(left time.Duration) func(*corev1.Pod) {
			return func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(left)} }
		}
		w.add("soon", 300, deleted(20*time.Second))
		w.add("late", 200, deleted(time.Hour))
		w.add("runs", 100)
		w.mu.Lock()
		w.pods["soon"].Life, w.pods["late"].Life, w.memory = podlife.Terminating, podlife.Terminating, 50
		w.mu.Unlock()
		evicted := func(name, uses string) []string {
			return []string{"node Warning EvictionThresholdMet: Attempting to reclaim memory",
				"stop " + name + " Evicted grace 1s TerminationByKubelet",
				"event " + name + " Warning Evicted: The node was low on resource: memory. Threshold quantity: " +
					"100Mi, available: 50Mi. Container c was using " + uses +
					", request is 0, has larger consumption of memory. [memory]"}
		}
		w.look(t, "MemoryPressure", evicted("late", "200Mi")...)
		time.Sleep(cleanupWait + time.Second)
		w.look(t, "MemoryPressure", append([]string{"again"}, evicted("runs", "100Mi")...)...)
	})
}

// L7.147: what a pod holds is waited for only so long.
func TestWaitForAnEvictedPodIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 90, eviction.Settings{Hard: map[string]string{},
			Soft:      map[string]string{"memory.available": "600Mi"},
			SoftGrace: map[string]string{"memory.available": "1m"}})
		w.ends = time.Hour
		w.add("big", 300)
		w.look(t, "MemoryPressure")
		time.Sleep(time.Minute)
		message := "The node was low on resource: memory. Threshold quantity: 600Mi, available: 500Mi. " +
			"Container c was using 300Mi, request is 0, has larger consumption of memory. "
		w.look(t, "MemoryPressure", "node Warning EvictionThresholdMet: Attempting to reclaim memory",
			"stop big Evicted grace 20s TerminationByKubelet", "event big Warning Evicted: "+message+"[memory]")
		time.Sleep(cleanupWait + time.Second)
		// and no pod is left
		w.look(t, "MemoryPressure", "again", "node Warning EvictionThresholdMet: Attempting to reclaim memory")
	})
}

// L10.75: failures of image garbage collection get events: a file system without a size, and from
// the second time in a row on that the collection fails; a disk that stays full at the
// pace of the collection.
func TestImagesThatCannotBeRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 10, eviction.Settings{Hard: map[string]string{}})
		const full = "Insufficient free disk space on the node's image filesystem (90% of 100 B used). " +
			"Failed to free sufficient space by deleting unused images (freed 0 bytes). " +
			"Investigate disk usage, as it could be used by active images, logs, volumes, or other data."
		w.look(t, "", "node Warning FreeDiskSpaceFailed: "+full)
		for range 29 {
			time.Sleep(10 * time.Second)
			w.look(t, "")
		}
		time.Sleep(10 * time.Second)
		w.look(t, "", "node Warning FreeDiskSpaceFailed: "+full, "node Warning ImageGCFailed: "+full)
		w.mu.Lock()
		w.disk, w.size = 90, 100
		w.mu.Unlock()
		time.Sleep(imagePeriod)
		w.look(t, "")
		w.mu.Lock()
		w.disk, w.size = 0, 0
		w.mu.Unlock()
		time.Sleep(imagePeriod)
		w.look(t, "", "node Warning InvalidDiskCapacity: invalid capacity 0 on image filesystem")
	})
}

// The image of a container that is about to be made is in use: it was pulled for it, or cannot be pulled at all.
func TestImageOfAStartingPodStays(t *testing.T) {
	w := newWorld(t, 90, eviction.Settings{})
	w.images = []*cri.Image{{Id: "init", RepoTags: []string{"docker.io/library/init:1"}, Size: 1},
		{Id: "own", RepoTags: []string{"docker.io/library/own:1"}, Size: 1},
		{Id: "other", RepoTags: []string{"docker.io/library/other:1"}, Size: 1}}
	w.add("starting", 1, func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "init:1"}}
		p.Spec.Containers[0].Image = "own:1"
	})
	kept := func() (ids []string) {
		w.removeUnused(t.Context())
		for _, im := range w.images {
			ids = append(ids, im.Id)
		}
		return ids
	}
	if got := kept(); !slices.Equal(got, []string{"init", "own"}) {
		t.Errorf("the pod starts: %v", got)
	}
	w.pods["starting"].Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "i", ContainerID: "x://1"}}
	if got := kept(); !slices.Equal(got, []string{"own"}) {
		t.Errorf("the init container has ended: %v", got)
	}
	w.pods["starting"].Status.Phase = corev1.PodFailed
	if got := kept(); len(got) > 0 {
		t.Errorf("the pod has ended: %v", got)
	}
}

// L7.152
func TestPodOverItsLocalLimitIsEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 90, eviction.Settings{})
		w.add("free", 1)
		w.add("limited", 1, func(p *corev1.Pod) {
			q := resource.MustParse("64Ki")
			p.Spec.Volumes = []corev1.Volume{{Name: "v",
				VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &q}}}}
		})
		dir := filepath.Join(w.root, "limited", "v", "sub")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		w.look(t, "")
		if w.requested["stats"] != 1 {
			t.Errorf("%d calls for one pod", w.requested["stats"])
		}
		if err := os.WriteFile(filepath.Join(dir, "f"), make([]byte, 100<<10), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		w.look(t, "", "stop limited Evicted grace 1s -",
			`event limited Warning Evicted: Usage of EmptyDir volume "v" exceeds the limit "64Ki". []`)
	})
}

// Critical pods are not evicted for their limits either: a static pod would not come back (L7.148, L7.152).
func TestCriticalPodsOverTheirLocalLimitStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 90, eviction.Settings{})
		limited := func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
				corev1.ResourceEphemeralStorage: resource.MustParse("64Ki")}
		}
		w.add("plain", 1, limited)
		w.add("priority", 1, limited, func(p *corev1.Pod) { p.Spec.Priority = new(int32(2_000_000_000)) })
		mirror := func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }
		w.add("mirror", 1, limited, mirror)
		for _, name := range []string{"plain", "priority", "mirror"} {
			dir := filepath.Join(w.root, name)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "etc-hosts"), make([]byte, 100<<10), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		w.look(t, "", "stop plain Evicted grace 1s -", "event plain Warning Evicted: "+
			"Pod ephemeral local storage usage exceeds the total limit of containers 64Ki. []")
	})
}

// Memory that is short does not wait until local storage is measured: that comes afterwards.
func TestMemoryBeforeLocalLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 90, eviction.Settings{})
		w.add("big", 300)
		w.add("limited", 1, func(p *corev1.Pod) {
			q := resource.MustParse("64Ki")
			p.Spec.Volumes = []corev1.Volume{{Name: "v",
				VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &q}}}}
		})
		dir := filepath.Join(w.root, "limited", "v")
		if err := errors.Join(os.MkdirAll(dir, 0o755),
			os.WriteFile(filepath.Join(dir, "f"), make([]byte, 100<<10), 0o600)); err != nil {
			t.Fatal(err)
		}
		w.memory = 50
		w.look(t, "MemoryPressure",
			"node Warning EvictionThresholdMet: Attempting to reclaim memory",
			"stop big Evicted grace 1s TerminationByKubelet",
			"event big Warning Evicted: The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. "+
				"Container c was using 300Mi, request is 0, has larger consumption of memory. [memory]")
		time.Sleep(2 * time.Second)
		w.look(t, "MemoryPressure", "again", "stop limited Evicted grace 1s -",
			`event limited Warning Evicted: Usage of EmptyDir volume "v" exceeds the limit "64Ki". []`)
	})
}

// What a container writes to the hosts file or as its termination message counts as the pod's, whose
// limit it may not pass by it (CVE-2020-8557). A link that it makes there leads nowhere.
func TestPodFilesCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 90, eviction.Settings{})
		limited := func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
				corev1.ResourceEphemeralStorage: resource.MustParse("64Ki")}
		}
		for _, name := range []string{"hosts", "message", "link", "free"} {
			if name == "free" {
				w.add(name, 1)
			} else {
				w.add(name, 1, limited)
			}
			if err := os.MkdirAll(filepath.Join(w.root, name, "below"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		w.look(t, "")
		big := make([]byte, 100<<10)
		for _, path := range []string{"hosts/etc-hosts", "message/termination.c.12345678", "free/etc-hosts",
			"outside"} {
			if err := os.WriteFile(filepath.Join(w.root, path), big, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(filepath.Join(w.root, "outside"), filepath.Join(w.root, "link", "etc-hosts")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(w.root, "link", "below", "volume"), big, 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		const message = `Evicted: Pod ephemeral local storage usage exceeds the total limit of containers 64Ki. []`
		w.look(t, "", "stop hosts Evicted grace 1s -", "event hosts Warning "+message,
			"stop message Evicted grace 1s -", "event message Warning "+message)
	})
}

func TestMeasureReadsTheMachine(t *testing.T) {
	all, err := measure(t.TempDir(), "")
	if err != nil || len(all) != 6 {
		t.Fatalf("%+v %v", all, err)
	}
	for _, o := range all {
		if o.Available < 0 || o.Available > o.Capacity {
			t.Errorf("%+v", o)
		}
	}
}

package csi

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"

	"carob/internal/node/plugins"
	"carob/test/csidriver"
)

const (
	driverOfTests = "test.carob.dev"
	patience      = time.Minute // of tests that wait for an event
)

// world is a node with a driver, a client, and a manager that can be killed.
type world struct {
	*Manager
	t      *testing.T
	root   string
	client *fake.Clientset
	driver *csidriver.Driver

	mu     sync.Mutex
	events []string
	stop   func() // of the manager
	node   *corev1.Node
	meter  meter
}

// Token implements Tokens.
func (w *world) Token(_ context.Context, _, account string, req *authenticationv1.TokenRequest) (
	*authenticationv1.TokenRequest, error) {
	req.Status = authenticationv1.TokenRequestStatus{Token: "token of " + account + " for " +
		strings.Join(req.Spec.Audiences, ","), ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour))}
	return req, nil
}

func newWorld(t *testing.T, cfg csidriver.Config, objects ...runtime.Object) *world {
	t.Helper()
	root, err := os.MkdirTemp("", "csi") // short: sockets are in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { clean(t, root) })
	w := &world{t: t, root: root, node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node-uid"}}}
	w.client = fake.NewClientset(append(objects, w.node)...)
	cfg.Name, cfg.Node, cfg.KubeletDir, cfg.Data = driverOfTests, "n1", w.root, filepath.Join(root, "data")
	if w.driver, err = csidriver.Start(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.driver.Stop)
	w.begin()
	t.Cleanup(func() { w.stop() })
	return w
}

// clean unmounts and removes what a test left.
func clean(t *testing.T, root string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(mounts), "\n") {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], root+"/") {
			if err := unix.Unmount(f[4], 0); err != nil {
				t.Errorf("unmount %s: %v", f[4], err)
			}
		}
	}
	devices, _ := exec.Command("losetup", "--noheadings", "--output", "NAME,BACK-FILE").Output()
	for line := range strings.SplitSeq(string(devices), "\n") {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], root+"/") {
			_ = exec.Command("losetup", "--detach", f[0]).Run()
		}
	}
	if err := os.RemoveAll(root); err != nil {
		t.Error(err)
	}
}

// begin makes the manager, as a start of the agent does, and has it find the driver.
func (w *world) begin() {
	w.t.Helper()
	var err error
	w.Manager, err = New(Config{Root: w.root, Node: "n1", Client: w.client, Tokens: w, Object: func() *corev1.Node {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.node
	}, Event: func(_ *corev1.Pod, _, reason, message string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.events = append(w.events, reason+": "+message)
	}, Meter: &w.meter, Logger: klog.Background()})
	if err != nil {
		w.t.Fatal(err)
	}
	watcher, err := plugins.New(plugins.Config{Dir: filepath.Join(w.root, "plugins_registry"),
		Handlers: map[string]plugins.Handler{"CSIPlugin": w.Manager}, Logger: klog.Background()})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { _ = watcher.Run(ctx) })
	m := w.Manager
	all.Go(func() { _ = m.Run(ctx) })
	w.stop = func() { cancel(); all.Wait() }
	w.registered()
}

// reported returns the recorded events.
func (w *world) reported() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

// registered waits until the driver got the result of its registration.
func (w *world) registered() {
	w.t.Helper()
	select {
	case s := <-w.driver.Registered():
		if !s.PluginRegistered {
			w.t.Fatalf("not registered: %s", s.Error)
		}
	case <-time.After(patience):
		w.t.Fatal("the driver was not registered")
	}
}

// installed are the names of the drivers in the CSINode object.
func (w *world) installed() []string {
	w.t.Helper()
	n, err := w.client.StorageV1().CSINodes().Get(w.t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var names []string
	for _, d := range n.Spec.Drivers {
		names = append(names, d.Name)
	}
	return names
}

// kill ends the manager and begins with a new one, as kill -9 of the agent does.
func (w *world) kill() {
	w.t.Helper()
	w.stop()
	w.begin()
}

// until waits for something that has no event.
func (w *world) until(what string, is func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("not reached: %s; calls: %s", what, w.driver.Names())
		}
	}
}

// left are the files below the kubelet's directory that belong to volumes.
func (w *world) left() []string {
	var list []string
	_ = filepath.WalkDir(w.root, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(w.root, path)
		if err == nil && (strings.HasPrefix(rel, "pods/") || strings.HasPrefix(rel, "plugins/kubernetes.io/csi/")) &&
			(!d.IsDir() || strings.HasSuffix(rel, "/mount") || strings.HasSuffix(rel, "/globalmount")) {
			list = append(list, rel)
		}
		return nil
	})
	return list
}

func (w *world) nothingLeft() {
	w.t.Helper()
	w.until("nothing is staged", func() bool { return w.driver.Staged() == 0 && len(w.left()) == 0 })
	if n := w.InUse(nil); len(n) > 0 || len(w.Pods()) > 0 {
		w.t.Fatalf("still in use: %v, pods %v", n, w.Pods())
	}
}

func podOf(uid string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p-" + uid, Namespace: "ns", UID: types.UID(uid)},
		Spec: corev1.PodSpec{ServiceAccountName: "robot"}}
}

// request is a pod's for a volume, which the driver has.
func (w *world) request(uid, pv string, block bool) Request {
	w.t.Helper()
	if err := w.driver.Make(pv+"-handle", block, 16<<20); err != nil {
		w.t.Fatal(err)
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	return Request{Pod: podOf(uid), Volume: &corev1.Volume{Name: "data"}, Block: block,
		Claim: &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "claim-" + pv, Namespace: "ns", UID: "c1"},
			Spec: corev1.PersistentVolumeClaimSpec{
				VolumeName: pv,
			},
			Status: corev1.PersistentVolumeClaimStatus{Capacity: size},
		},
		PV: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: pv}, Spec: corev1.PersistentVolumeSpec{
			Capacity:     size,
			AccessModes:  []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			MountOptions: []string{"noatime"}, PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{
					Driver:           driverOfTests,
					VolumeHandle:     pv + "-handle",
					FSType:           "ext4",
					VolumeAttributes: map[string]string{"color": "red"},
				}}}}}
}

// unattached is a driver whose volumes need no VolumeAttachment.
func unattached(change func(*storagev1.CSIDriverSpec)) *storagev1.CSIDriver {
	d := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverOfTests},
		Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)}}
	if change != nil {
		change(&d.Spec)
	}
	return d
}

// meter counts what has no time.
type meter struct {
	noMeter

	mu     sync.Mutex
	counts map[string]int
}

func (m *meter) count(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.counts == nil {
		m.counts = map[string]int{}
	}
	m.counts[what]++
}

func (m *meter) Reconstructed(err error) { m.count(fmt.Sprint("reconstructed, failed ", err != nil)) }
func (m *meter) ForceCleaned(err error)  { m.count(fmt.Sprint("cleaned, failed ", err != nil)) }
func (m *meter) Labelled(plugin, mode string, conflict bool) {
	m.count(fmt.Sprint(plugin, " ", mode, ", conflict ", conflict))
}

// counted compares a count.
func (w *world) counted(what string, want int) {
	w.t.Helper()
	w.meter.mu.Lock()
	defer w.meter.mu.Unlock()
	if got := w.meter.counts[what]; got != want {
		w.t.Errorf("%s: %d, want %d (%v)", what, got, want, w.meter.counts)
	}
}
